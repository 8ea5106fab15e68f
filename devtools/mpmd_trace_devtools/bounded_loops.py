"""Loops that always end: a module that a wrong pass left, or that was made smaller, may have loops that never do."""

from __future__ import annotations

from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.core import Block, Op, Value, make_op, op_like
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.types import tensor
from mpmd_trace.passes.stablehlo.elements import make_constant

#: More iterations than a loop of a training step has.
MOST_ITERATIONS = 1_000_000
_COUNT, _BOOL = tensor((), "i32"), tensor((), "i1")


def bound_loops(module: Module) -> None:
    """End each loop of a module after `MOST_ITERATIONS`, whatever its condition says."""
    for op in list(module.walk()):
        if op.name == "stablehlo.while":
            _bound(op)


def _bound(loop: Op) -> None:
    """Let a loop carry the number of iterations that are left."""
    assert loop.block is not None
    left = _number(loop.block, loop, MOST_ITERATIONS)
    condition, body = (region.block for region in loop.regions)
    test = condition.terminator
    operands = [condition.add_arg(_COUNT), _number(condition, test, 0)]
    direction = {"comparison_direction": parse_attribute("#stablehlo<comparison_direction GT>")}
    may_go_on = condition.insert_before(test, make_op("stablehlo.compare", operands, [_BOOL], props=direction))
    both = make_op("stablehlo.and", [test.operand(0), may_go_on.result], [_BOOL])
    test.set_operand(0, condition.insert_before(test, both).result)
    end = body.terminator
    fewer = make_op("stablehlo.subtract", [body.add_arg(_COUNT), _number(body, end, 1)], [_COUNT])
    end.append_operands([body.insert_before(end, fewer).result])
    types = [*(result.type for result in loop.results), _COUNT]
    bounded = op_like(loop, [*loop.operands, left], types, regions=loop.regions)
    loop.regions = []
    loop.block.insert_before(loop, bounded)
    loop.replace_all_uses_with(bounded.results[:-1])
    loop.erase()


def _number(block: Block, anchor: Op, number: int) -> Value:
    return block.insert_before(anchor, make_constant(str(number), _COUNT, anchor.loc)).result
