"""Groups of fragments are what merging pair by pair makes, down to the order of uses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from random_programs import Program, Shape

from mpmd_trace.ir.core import Value
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.common.fragment_groups import Groups
from mpmd_trace.passes.common.group_operands import GroupOperands, Slot
from mpmd_trace.passes.common.merge import merge_fragments


def use_lists(module: Module) -> list[list[tuple[int, int]]]:
    """For each value of main its uses, newest first: number of the op and of the operand."""
    number = {op: i for i, op in enumerate(module.main.body)}
    values: list[Value] = [*module.main.body.args, *(r for op in number for r in op.results)]
    return [[(number[use.owner], use.index) for use in value.uses] for value in values]


def follows(consumer: FragmentOp, producer: FragmentOp) -> bool:
    """Whether the two may be merged at the place of the consumer."""
    users = producer.users
    return (
        producer.mesh == consumer.mesh
        and producer.stage == consumer.stage
        and not any(user is not consumer and user.is_before(consumer) for user in users)
    )


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_what_pairs_make(seed: int) -> None:
    """Random merges, each carried out at once in one copy of the program and put off in the other."""
    text = Program(seed, Shape(fragments=14, transfers=0.3, effects=False)).text()
    now, later = parse(text), parse(text)
    groups, rng = Groups(), random.Random(seed)
    pairs = [
        (a, groups.add(b, None))
        for a, b in zip(now.main.body, later.main.body, strict=True)
        if isinstance(a, FragmentOp) and isinstance(b, FragmentOp)
    ]
    for _ in range(10):
        order = {a: i for i, a in enumerate(now.main.body)}
        pairs.sort(key=lambda pair: order[pair[0]])
        choices = [(i, j) for j in range(len(pairs)) for i in range(j) if follows(pairs[j][0], pairs[i][0])]
        if not choices:
            break
        i, j = rng.choice(choices)
        (producer, first), (consumer, second) = pairs[i], pairs[j]
        merged = merge_fragments(producer, consumer)
        pairs[i] = (merged, groups.merge(first, second, at_consumer=True, attrs={}))
        del pairs[j]
    assert groups.build()
    assert str(later) == str(now)
    assert use_lists(later) == use_lists(now)


def test_operands_of_fragments_that_are_only_looked_at_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    make = GroupOperands.__init__

    def count(self: GroupOperands, slots: Sequence[Slot]) -> None:
        listed.append(len(slots))
        make(self, slots)

    monkeypatch.setattr(GroupOperands, "__init__", count)
    module = parse(Program(3, Shape(fragments=14, transfers=0.3, effects=False)).text())
    groups = Groups()
    found = [groups.add(op, i) for i, op in enumerate(module.main.body) if isinstance(op, FragmentOp)]
    assert sum(len(groups.users(group)) for group in found) > 0
    assert not groups.build() and not listed
    for op in module.main.body:
        if isinstance(op, FragmentOp):
            following = next((c for c in op.users if isinstance(c, FragmentOp) and follows(c, op)), None)
            first, second = groups.of(op), None if following is None else groups.of(following)
            if first is not None and second is not None:
                groups.merge(first, second, at_consumer=True, attrs={})
                break
    assert len(listed) == 2, "those of the two that are merged"
