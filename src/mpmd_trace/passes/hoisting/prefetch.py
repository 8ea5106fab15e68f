"""What a fragment gathers by itself is gathered one product ahead, and not all of it at first.

XLA may gather the weights of all layers before it computes, and hold them all.  A barrier in front of each product
makes the weight of the next one wait for what the product reads, so that one is gathered while another one is used.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Container, Iterable, Sequence

from mpmd_trace.ir.attributes import TensorShardingPerValueAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.passes.hoisting.value_numbering import Expression, KnownExpressions
from mpmd_trace.passes.sharding.edges import SHARDING, body_sharding, sharding_list

__all__ = ["Gathered", "gathered", "tie"]

_BARRIER = "stablehlo.optimization_barrier"


@dataclasses.dataclass(frozen=True)
class Gathered:
    """An op that gathers its operand `index`, with another operand that differs between microbatches.

    shardings: those of the two as they are, if both are known.
    """

    op: Op
    index: int
    expression: Expression
    beside: int
    shardings: TensorShardingPerValueAttr | None


def gathered(fragment: FragmentOp, known: KnownExpressions, left: Container[Expression]) -> tuple[Gathered, ...]:
    """Return the ops of a fragment that gather one of the expressions `left`, in their order."""
    at = {
        op: (index, one)
        for (op, index), one in known.uses.items()
        if one in left and one.is_reshard and not any(result in known.values for result in op.results)
    }
    results: list[Gathered] = []
    for op in fragment.body.block if len(at) > 1 else ():
        beside = next((i for i in range(op.num_operands) if op.operand(i) not in known.values), None)
        if op not in at or beside is None:
            continue
        index, one = at[op]
        other = body_sharding(fragment, op.operand(beside))
        own = one.operands[0].sharding
        shardings = None if own is None or other is None else sharding_list((own, other))
        results.append(Gathered(op, index, one, beside, shardings))
    return tuple(results)


def tie(gathers: Sequence[tuple[Gathered, Op]]) -> None:
    """Put the barriers into a copy of the body; each op that gathers comes with its copy."""
    for (a, before), (b, after) in itertools.pairwise(gathers):
        if a.expression is b.expression:  # the last layer of a forward with its backward
            after.set_operand(b.index, before.operand(a.index))
            continue
        waiting, beside = after.operand(b.index), before.operand(a.beside)
        _move(waiting, before)
        barrier = make_op(_BARRIER, [waiting, beside], [waiting.type, beside.type], loc=before.loc)
        if a.shardings is not None and b.shardings is not None:
            barrier.attrs[SHARDING] = sharding_list((b.shardings.shardings[0], a.shardings.shardings[1]))
        assert before.block is not None
        before.block.insert_before(before, barrier)
        after.set_operand(b.index, barrier.results[0])
        before.set_operand(a.beside, barrier.results[1])


def _move(value: Value, before: Op) -> None:
    """Move what makes a value, of arguments alone, in front of an op."""

    def late(values: Iterable[Value]) -> list[Op]:
        return [op for v in values if (op := v.defining_op) is not None and before.is_before(op)]

    for op in list(postorder(late([value]), lambda op: late(op.operands))):
        op.move_before(before)
