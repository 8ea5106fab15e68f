"""Times of several processes on one clock."""

from __future__ import annotations

import itertools
import random

import pytest

from fuzz.plans import random_example
from mpmd_trace.backend.distribution.clock import merged, offset_of
from mpmd_trace.backend.distribution.measured_step import in_order
from mpmd_trace.backend.plan import Free


@pytest.mark.parametrize("seed", range(20))
def test_the_offset_is_as_good_as_it_says(seed: int) -> None:
    """A clock that is `true` seconds ahead, over a connection of which both ways take any time."""
    rng = random.Random(seed)
    true, here = rng.uniform(-1e6, 1e6), [0.0]

    def ask() -> float:
        here[0] += rng.expovariate(1 / 3e-4)
        answer = here[0] + true
        here[0] += rng.expovariate(1 / 3e-4)
        return answer

    found = offset_of(ask, now=lambda: here[0])
    assert abs(found.seconds - true) <= found.error + 1e-9
    assert found.error < 2e-4, "the quickest of twenty rounds"


def test_the_quickest_round_counts() -> None:
    times = itertools.chain.from_iterable((t, t + (8 if t != 20 else 2)) for t in itertools.count(0, 10))
    found = offset_of(lambda: 121.0, rounds=5, now=lambda: float(next(times)))
    assert (found.seconds, found.error) == (100.0, 1.0)


def test_what_processes_do_together_is_there_once() -> None:
    spans, seconds = merged([[(0, 5.0, 6.0), (2, 6.0, 9.0)], [(1, 5.5, 5.75), (2, 7.0, 8.5)], []])
    assert spans == [(0, 0.0, 1.0), (1, 0.5, 0.75), (2, 2.0, 4.0)]
    assert seconds == 4.0
    assert merged([]) == ([], 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_before_what_it_reads(seed: int) -> None:
    """Times that are wrong by a little are put in order; those that are in order stay."""
    rng = random.Random(seed)
    plan = random_example(rng).plan
    work = [at for at, instruction in enumerate(plan.instructions) if not isinstance(instruction, Free)]
    exact = [(at, float(n), n + 1.0) for n, at in enumerate(work)]
    assert [(e.start, e.end) for e in in_order(plan, exact)] == [(s, e) for _, s, e in exact]
    shifts = [rng.uniform(-3, 3) for _ in exact]
    entries = in_order(plan, [(at, s + d, e + d) for (at, s, e), d in zip(exact, shifts, strict=True)])
    ended: dict[int | str, float] = {}
    for entry, at, shift in zip(entries, work, shifts, strict=True):
        read = plan.instructions[at].inputs
        assert max((ended.get(x, 0.0) for x in (entry.lane, *read)), default=0.0) <= entry.start <= entry.end
        assert entry.start - (entry.instruction + shift) < 7, "no later than it has to be"
        ended.update(dict.fromkeys((entry.lane, *plan.instructions[at].outputs), entry.end))
