"""One clock for all processes, and the times of all of them on it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

#: The place of an instruction in the plan, when it started, and when it ended, in seconds.
Span = tuple[int, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Offset:
    """The offset from times of this process to those of another one, and by how much it may be wrong."""

    seconds: float
    error: float


def offset_of(ask: Callable[[], float], *, rounds: int = 20, now: Callable[[], float] = time.perf_counter) -> Offset:
    """Return the offset of another clock, by asking for it.

    The answer was given between question and answer, so the quickest round says it best (F. Cristian, Probabilistic
    clock synchronization, Distributed Computing 3, 1989).

    Args:
        ask: gives the time of the other process.
        rounds: how often to ask.
        now: gives the time of this one.
    """
    samples = []
    for _ in range(rounds):
        before = now()
        theirs = ask()
        after = now()
        samples.append(Offset(theirs - (before + after) / 2, (after - before) / 2))
    return min(samples, key=lambda one: one.error)


def merged(parts: Iterable[Sequence[Span]]) -> tuple[list[Span], float]:
    """Return the instructions of all processes, in the order of the plan, with times from the start of the first one.

    What several processes do together starts when the last of them starts it, and ends when the last one is done.
    Gives also how long everything took.

    Args:
        parts: the times of each process, on one clock.
    """
    bounds: dict[int, tuple[float, float]] = {}
    first, last = float("inf"), float("-inf")
    for part in parts:
        for at, start, end in part:
            known = bounds.get(at, (start, end))
            bounds[at] = max(known[0], start), max(known[1], end)
            first, last = min(first, start), max(last, end)
    return [(at, s - first, e - first) for at, (s, e) in sorted(bounds.items())], max(0.0, last - first)
