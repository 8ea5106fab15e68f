"""What goes where memory is short is what costs least for its bytes, as if everything were looked at each time."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.ir.types import tensor
from mpmd_trace.passes.hoisting.gathered_params import Copy, Timeline
from mpmd_trace.passes.hoisting.select_hoists import Held, HoistedExpr, Room
from mpmd_trace.passes.hoisting.value_numbering import Expression
from util import max_examples

FRAGMENTS, LAUNCH = 12, 5.0


def random_held(rng: random.Random, expression: Expression) -> Held:
    """A copy that some of the fragments read, which run at times 2, 4, 6 and so on."""
    readers = sorted(rng.sample(range(FRAGMENTS), rng.randint(2, 6)))
    times = tuple(2 * reader + 2 for reader in readers)
    gaps = {i: (a, b - 1) for i, (a, b) in enumerate(itertools.pairwise(times)) if b - a > 2}
    if readers[0]:
        gaps[-1] = 0, times[0] - 1
    copy = Copy(cast(Any, tuple(readers)), times, gaps, set())
    once = float(rng.randint(0, 40))
    kept = HoistedExpr(expression, float(rng.randint(0, 8)), once * (len(readers) - 1), rng.random() < 0.5)
    return Held(kept, copy, once, rng.random() < 0.8)


def held_at(base: list[float], held: list[Held]) -> list[float]:
    return [b + sum(h.kept.bytes for h in held if h.copy.is_held(t)) for t, b in enumerate(base)]


def fit_slowly(base: list[float], limit: float, held: dict[Expression, Held]) -> Expression | None:
    while True:
        movable = {one: h for one, h in held.items() if h.is_movable}
        bytes, there = held_at(base, list(held.values())), held_at([0.0] * len(base), list(movable.values()))
        at = max((t for t, size in enumerate(there) if size), key=bytes.__getitem__, default=None)
        if at is None or bytes[at] <= limit:
            return None
        offers: list[tuple[float, int, int, int | None, Expression]] = []
        for one, h in movable.items():
            if h.copy.is_held(at):
                size = max(h.kept.bytes, 1.0)
                offers.append((h.saved / size, one.number, 0, None, one))
                gap = next((i for i, (a, b) in h.copy.gaps.items() if a < at < b and i not in h.copy.dropped), None)
                if gap is not None:
                    offers.append(((LAUNCH + (h.once if gap >= 0 else 0.0)) / size, one.number, 1, gap, one))
        _, _, _, which, worst = min(offers, key=lambda offer: offer[:3])
        if which is None:
            return worst
        held[worst].copy.dropped.add(which)


@given(st.integers(0, 10**9))
@max_examples(200)
def test_the_cheapest_goes_first(seed: int) -> None:
    check(seed)


def check(seed: int) -> int:
    """Give the number of changes."""
    base = [float(random.Random(seed).randint(0, 9)) for _ in range(2 * FRAGMENTS + 2)]
    limit = float(random.Random(seed + 1).randint(5, 40))
    expressions = [Expression(i, tensor((), "f32"), None) for i in range(8)]
    fast, slow = ({one: random_held(random.Random(seed + one.number), one) for one in expressions} for _ in range(2))
    room = Room(cast(Timeline, SimpleNamespace(base=base)), limit, LAUNCH)
    for one in expressions:
        room.put(one, fast[one])
    given_up = []
    while (worst := room.fit()) is not None:
        room.put(worst, None)
        del fast[worst]
        given_up.append(worst)
    for worst in [*given_up, None]:
        assert fit_slowly(base, limit, slow) is worst
        if worst is not None:
            del slow[worst]
    assert [h.copy.dropped for h in fast.values()] == [h.copy.dropped for h in slow.values()]
    return len(given_up) + sum(len(h.copy.dropped) for h in fast.values())


def test_something_goes() -> None:
    assert sum(map(check, range(20))) > 20


@pytest.mark.parametrize("memory", [math.inf, 10.0**9])
def test_with_memory_all_stays(memory: float) -> None:
    room = Room(cast(Timeline, SimpleNamespace(base=[0.0] * (2 * FRAGMENTS + 2))), memory, LAUNCH)
    one = Expression(0, tensor((), "f32"), None)
    room.put(one, random_held(random.Random(0), one))
    assert room.fit() is None
