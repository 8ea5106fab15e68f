"""How much of the work of a body is left for later."""

from __future__ import annotations

from collections.abc import Iterable

from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.work import RAGGED_DOT, elements_computed
from mpmd_trace.passes.fission.demand import BARRIER, LOOP
from mpmd_trace.passes.fission.trip_count import counter_of

#: What is not worth a program of its own: adding gradients to their sums, and changes of layout.
_NO_WORK = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "bitcast_convert", "broadcast_in_dim", "constant", "convert", "dynamic_slice", "dynamic_update_slice"),
        *("iota", "reshape", "slice", "transpose"),
    )
) | {BARRIER, "sdy.sharding_constraint"}
_CONTRACTIONS = frozenset({"stablehlo.convolution", "stablehlo.custom_call", "stablehlo.dot_general", RAGGED_DOT})
#: What waits must be at least this part of the work.
_PART = 0.02


def contracts(op: Op) -> bool:
    """Return whether the op contains a matrix product, a convolution, or what may be one."""
    return any(inner.name in _CONTRACTIONS for inner in op.walk())


@remembers
def waits_for(body: Region, stay: tuple[Op, ...]) -> bool:
    """Return whether enough of the body's work is done by other ops than those."""
    block = body.block
    early = set(stay)
    work = _count(block)
    waiting = _count(op for op in block if op not in early)
    return waiting > _PART * work


def _count(ops: Iterable[Op]) -> float:
    """Return the elements computed by some ops, by those in loops as often as these run."""
    total = 0.0
    pending = [(op, 1) for op in ops]
    while pending:
        op, runs = pending.pop()
        if op.name.startswith(("stablehlo.reduce", "stablehlo.scatter", "stablehlo.sort", "stablehlo.select_and")):
            total += runs * elements_computed(op)
        elif op.regions:
            counter = counter_of(op) if op.name == LOOP else None
            inner = runs * (counter.trips if counter is not None else 1)
            pending += [(one, inner) for region in op.regions for block in region.blocks for one in block]
        elif op.name not in _NO_WORK and not op.is_terminator:
            total += runs * elements_computed(op)
    return total
