"""Groups of fragments are what merging pair by pair makes, down to the order of uses."""

from __future__ import annotations

import random

import pytest
from random_programs import Program, Shape

from mpmd_trace.ir.core import Value
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.common.fragment_groups import Groups
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
