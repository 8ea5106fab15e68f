"""Topological sorting of a block."""

from __future__ import annotations

from mpmd_trace.ir.core import Block, Op
from mpmd_trace.passes.block_order import sort_block
from util import run


def block(count: int, edges: list[tuple[int, int]]) -> tuple[Block, list[Op]]:
    """Ops 0, 1, ... where op b uses op a for every edge (a, b)."""
    ops = [Op("stablehlo.custom_call", (), [TOKEN]) for _ in range(count)]
    made = Block()
    for op in ops:
        made.append(op)
    made.append(Op("func.return"))
    for a, b in edges:
        ops[b].append_operands([ops[a].results[0]])
    return made, ops


TOKEN = run("func.func @f(%t: !stablehlo.token) { return }", []).functions[0].args[0].type


def numbers(made: Block, ops: list[Op]) -> list[int]:
    return [ops.index(op) for op in made if op in ops]


def test_waiting_ops_come_behind_the_whole_scan() -> None:
    """An op that waits is placed after everything that was ready, not directly behind its producer."""
    made, ops = block(5, [(3, 0), (0, 1)])
    assert sort_block(made)
    assert numbers(made, ops) == [2, 3, 4, 0, 1]


def test_cycle_is_broken_at_the_first_op() -> None:
    """The first op of the rest is placed as it is; the others follow."""
    made, ops = block(4, [(1, 0), (0, 1), (1, 2)])
    assert not sort_block(made)
    assert numbers(made, ops) == [3, 0, 1, 2]
