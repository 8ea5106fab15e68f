"""Which values results are made of, result by result through loops, conditionals and manual computations."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.semantics import COLLECTIVES, is_removable

LOOP = "stablehlo.while"
CONDITIONALS = ("stablehlo.case", "stablehlo.if")
MANUAL = "sdy.manual_computation"
#: Gives each operand as the result of the same number.
BARRIER = "stablehlo.optimization_barrier"
_DIVISIBLE = frozenset({LOOP, *CONDITIONALS, MANUAL, BARRIER})

#: Not removable for MLIR, but every device runs the same program, so an unused one has no effect.
_WITHOUT_EFFECT = COLLECTIVES | {"sdy.sharding_constraint"}


def is_divisible(op: Op) -> bool:
    """Return whether results of the op can be computed apart from each other."""
    return op.name in _DIVISIBLE and all(len(region.blocks) == 1 for region in op.regions)


def has_effects(op: Op) -> bool:
    """Return whether the op, or one in its regions, does something besides computing its results."""
    for inner in op.walk():
        # An op with regions is what these do, unless its dialect is unknown.
        unknown = not inner.regions or not inner.name.startswith(("stablehlo.", "sdy.", "chlo."))
        if inner.name not in _WITHOUT_EFFECT and unknown and not is_removable(inner):
            return True
    return False


def demanded(roots: Iterable[Value], whole: Container[Op]) -> set[Value]:
    """Return the values that some are made of, also those inside of divisible ops, except of those in `whole`."""

    def sources(value: Value) -> Iterable[Value]:
        op = value.defining_op
        index = value.index
        if isinstance(value, BlockArg):
            around = value.owner.parent_op
            if around is None:
                return ()
            return [around.results[index] if around.name == LOOP else around.operand(index)]
        if op is None:
            return ()
        if op in whole or not is_divisible(op):
            return effective_operands(op)
        if op.name == BARRIER:
            return [op.operand(index)]
        if op.name == LOOP:
            condition, body = op.regions
            return [op.operand(index), *condition.returned, body.returned[index]]
        return [*(op.operands if op.name in CONDITIONALS else ()), *(r.returned[index] for r in op.regions)]

    return set(postorder(roots, sources))
