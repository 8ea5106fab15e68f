"""How much of the work of a body is left for later."""

from __future__ import annotations

from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.flops import RAGGED_DOT, flops, flops_of

_CONTRACTIONS = frozenset({"stablehlo.convolution", "stablehlo.custom_call", "stablehlo.dot_general", RAGGED_DOT})
#: What waits must be at least this part of the work.
_PART = 0.02


def contracts(op: Op) -> bool:
    """Return whether the op contains a matrix product, a convolution, or what may be one."""
    return any(inner.name in _CONTRACTIONS for inner in op.walk())


@remembers
def waits_for(body: Region, stay: tuple[Op, ...]) -> bool:
    """Return whether enough of the body's work is done by other ops than those."""
    early = set(stay)
    # Adding gradients to their sums is not worth a program of its own.
    waiting = flops_of(op for op in body.block if op not in early and op.name != "stablehlo.add")
    return waiting > _PART * flops(body)
