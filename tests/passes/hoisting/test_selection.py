"""What is worth keeping, when some may not be kept, is the same as if all were judged anew each time."""

from __future__ import annotations

import heapq
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpmd_trace.ir.types import tensor
from mpmd_trace.passes.hoisting import selection
from mpmd_trace.passes.hoisting.cost import HoistCost
from mpmd_trace.passes.hoisting.selection import Selection
from mpmd_trace.passes.hoisting.value_numbering import Expression

Readers = dict[Expression, set[Any]]


@pytest.fixture(autouse=True)
def fragments_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a microbatch have the same last digit."""
    monkeypatch.setattr(selection, "are_of_several", lambda readers: len({n % 10 for n in readers}) > 1)


def judge_all(wanted: Readers, judge: Any, refused: set[Expression]) -> dict[Expression, tuple[Any, ...]]:
    readers = {one: set(fragments) for one, fragments in wanted.items()}
    pending = [(-one.number, one) for one in readers]
    heapq.heapify(pending)
    kept: dict[Expression, tuple[Any, ...]] = {}
    while pending:
        one = heapq.heappop(pending)[1]
        if one not in refused and judge(one, readers[one]):
            kept[one] = tuple(sorted(readers[one]))
            continue
        for operand in one.operands:
            if operand not in readers:
                readers[operand] = set()
                heapq.heappush(pending, (-operand.number, operand))
            readers[operand] |= readers[one]
    return kept


def check(seed: int) -> int:
    """Give the number of refusals."""
    rng = random.Random(seed)
    expressions: list[Expression] = []
    for number in range(14):
        operands = tuple(rng.sample(expressions, min(len(expressions), rng.randint(0, 2))))
        expressions.append(Expression(number, tensor((), "f32"), None, operands))
    work = {one: float(rng.randint(0, 3)) for one in expressions}
    fake = SimpleNamespace(bytes=lambda one: 1.0, work=work.__getitem__, gathers=lambda one: False)
    fragments = [10 * i + rng.randint(0, 2) for i in range(8)]
    wanted: Readers = {one: set(rng.sample(fragments, rng.randint(1, 3))) for one in rng.sample(expressions, 6)}
    found = Selection(cast(Any, wanted), {}, cast(HoistCost, fake), 1.0)

    def judge(one: Expression, readers: set[Any]) -> bool:
        return len({n % 10 for n in readers}) > 1 and work[one] >= 1.0

    refused: set[Expression] = set()
    known: dict[Expression, tuple[Any, ...]] = {}
    while True:
        for one in found.take_changes():
            known.pop(one, None)
            if one in found.kept:
                known[one] = tuple(sorted(cast(Any, found.kept[one].readers)))
        assert known == judge_all(wanted, judge, refused)
        if not known:
            return len(refused)
        worst = rng.choice(sorted(known, key=lambda one: one.number))
        refused.add(worst)
        found.refuse([worst])


@given(st.integers(0, 10**9))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_refusing_looks_at_operands_alone(seed: int) -> None:
    check(seed)


def test_something_is_refused() -> None:
    assert sum(map(check, range(20))) > 20
