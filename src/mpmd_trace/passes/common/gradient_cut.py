"""Where, in the backward computation of a stage, gradients of activations end and those of parameters begin.

A gradient of a parameter is one contraction (matrix product, convolution, sum over the batch ...) away from
the gradient of an activation: dW = x^T dy, db = sum(dy).  The gradient of an activation of a lower layer
takes a contraction as well, dx = dy W^T, but then there is at least one more behind it on the way to the
gradients of that layer's parameters.  And what several gradients are computed from belongs to none of them.
So the results that an op flows into, and the contractions on the way, tell the two apart, for any model,
without looking at names.
"""

from __future__ import annotations

from mpmd_trace.ir.bodies import effective_operands, remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.common.splitting import backward_closure

_CONTRACTIONS = frozenset(
    {
        "stablehlo.convolution",
        "stablehlo.custom_call",
        "stablehlo.dot",
        "stablehlo.dot_general",
        "stablehlo.reduce",
        "stablehlo.reduce_window",
        "stablehlo.scatter",
        "stablehlo.select_and_scatter",
        "stablehlo.while",
        "chlo.ragged_dot",
    }
)
_LAYOUT = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose"})


@remembers
def activation_ops(body: Region, gradients: tuple[int, ...]) -> tuple[Op, ...]:
    """Return the ops that compute gradients of activations, and what these need, in order.

    `gradients` are the arguments that carry gradients from the following stage.  Empty when every result
    is at most one contraction away from them.
    """
    dependent = _dependent_ops(body, gradients)
    reached = _reached_results(body)
    ahead = _contractions_ahead(body, reached)
    upper = [
        op
        for op in dependent
        if reached[op] and (ahead[op] > 1 or (op.name not in _CONTRACTIONS and reached[op].bit_count() > 1))
    ]
    return backward_closure(body, [r for op in upper for r in op.results])


def _is_layout(op: Op) -> bool:
    """Return whether the op only presents the same numbers differently."""
    if op.name not in _LAYOUT:
        return False
    source, target = op.operand(0).type, op.results[0].type
    return (
        isinstance(source, TensorType) and isinstance(target, TensorType) and source.num_elements == target.num_elements
    )


def _dependent_ops(body: Region, arguments: tuple[int, ...]) -> list[Op]:
    block = body.block
    reached: set[Value] = {block.args[i] for i in arguments}
    result = []
    for op in block:
        if op is not block.terminator and any(v in reached for v in effective_operands(op)):
            reached.update(op.results)
            result.append(op)
    return result


def _reached_results(body: Region) -> dict[Op, int]:
    """For each op, the set of distinct returned values that it flows into, as bits."""
    bits: dict[Value, int] = {}
    for i, value in enumerate(dict.fromkeys(body.returned)):
        bits[value] = 1 << i
    reached: dict[Op, int] = {}
    for op in reversed(body.block):
        mine = 0
        for result in op.results:
            mine |= bits.get(result, 0)
        reached[op] = mine
        for value in effective_operands(op):
            bits[value] = bits.get(value, 0) | mine
    return reached


def _contractions_ahead(body: Region, reached: dict[Op, int]) -> dict[Op, int]:
    """For each op, the largest number of contractions on a way from it, inclusive, to a result.

    A contraction whose result is only laid out differently and then summed counts once with that sum: the
    gradient of a parameter may be summed over the batch in several steps.
    """
    ahead: dict[Op, int] = {}
    to_sum: set[Op] = set()  # the longest way begins with a sum, or with layout changes and a sum
    uses: dict[Value, list[Op]] = {}
    for op in reversed(body.block):
        following = [u for r in op.results for u in uses.get(r, []) if reached[u]]
        contraction = op.name in _CONTRACTIONS
        best, summed = 0, True
        for user in following:
            count = ahead[user] + (1 if contraction and user not in to_sum else 0)
            if count > best:
                best, summed = count, True
            if count == best and user not in to_sum:
                summed = False
        if contraction:
            best = max(best, 1)
        ahead[op] = best
        if op.name == "stablehlo.reduce" or (_is_layout(op) and summed and best > 0):
            to_sum.add(op)
        for value in effective_operands(op):
            uses.setdefault(value, []).append(op)
    return ahead
