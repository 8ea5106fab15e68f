"""`mpmd-simplify-named-computations`."""

from __future__ import annotations

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp, Module, NamedComputationOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.region_simplification import simplify_region
from mpmd_trace.passes.greedy import Rewriter, apply_greedily, rewrites, walk_mutable
from mpmd_trace.passes.import_.building_blocks import holds_computations, interned_body

_BARRIER = "stablehlo.optimization_barrier"
_SIMPLIFY = simplify_region("mpmd.named_computation", keep_attributes=False)


class SimplifyNamedComputations(FunctionPass):
    """Remove repeated operands and results of named computations, and values that only pass through them.

    First, arguments that an optimization barrier in a named computation only passes to the return are removed from the
    barrier. Then follows greedy rewriting with region clean-up; `simplify_region`
    (`passes/common/region_simplification.py`) defines what happens to a computation, and in which order. Attributes
    other than the name are removed.

    Before:

        %0:3 = mpmd.named_computation<"f"> (%x, %x) (%u: !t, %v: !t) {
          %w = stablehlo.add %u, %v : !t
          mpmd.return %w, %v, %w : !t, !t, !t
        } : (!t, !t) -> (!t, !t, !t)
        return %0#0, %0#1, %0#2 : !t, !t, !t

    After:

        %0 = mpmd.named_computation<"f"> (%x) (%u: !t) {
          %1 = stablehlo.add %u, %u : !t
          mpmd.return %1 : !t
        } : (!t) -> !t
        return %0, %x, %0 : !t, !t, !t
    """

    name = "mpmd-simplify-named-computations"
    summary = "drop repeated, unused and passed-through values of named computations"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        thawed = [
            op
            for op in walk_mutable(function.regions[0])
            if isinstance(op, NamedComputationOp) and holds_computations(op.body)
        ]
        for op in thawed:
            _thaw(op)
        changed = apply_greedily(function, [_bypass_barriers_in_body, _bypass_barrier]).changed
        changed = apply_greedily(function, [_SIMPLIFY], region_dce=True).changed or changed
        if thawed:
            _freeze(function.regions[0])
        return changed


# A computation that holds others is simplified, inside and outside in turns, as a mutable op.


def _thaw(op: Op) -> None:
    """Give the computation, and those inside, bodies of their own that may be changed."""
    region = op.regions[0] = op.regions[0].clone()
    region.parent = op
    for nested in list(walk_mutable(region)):
        if isinstance(nested, NamedComputationOp):
            _thaw(nested)


def _freeze(region: Region) -> None:
    """Freeze all bodies of named computations again."""
    for op in walk_mutable(region):
        if isinstance(op, NamedComputationOp) and not op.body.frozen:
            op.body = interned_body(freeze(op.body))


@rewrites("mpmd.named_computation")
def _bypass_barriers_in_body(op: Op, rewriter: Rewriter) -> bool:
    """Do the same as `_bypass_barrier` for all barriers in a frozen body."""
    body = op.regions[0]
    if body.frozen and any(nested.name == _BARRIER for nested in body.block):
        op.regions[0] = map_ops(body, "bypass-barriers", lambda copy: apply_greedily(copy, [_bypass_barrier]).changed)
    return op.regions[0] is not body


@rewrites(_BARRIER)
def _bypass_barrier(op: Op, rewriter: Rewriter) -> bool:
    """Take arguments out of an optimization barrier that the named computation only returns."""
    if op.parent_op is not None and not isinstance(op.parent_op, NamedComputationOp):
        return False
    transparent = [
        value.defining_op is None and result.has_one_use and result.users[0].name == "mpmd.return"
        for value, result in zip(op.operands, op.results, strict=True)
    ]
    if not any(transparent):
        return False
    kept = [i for i, passes in enumerate(transparent) if not passes]
    operands: list[Value] = op.operands
    types = [op.results[i].type for i in kept]
    new = make_op(_BARRIER, [operands[i] for i in kept], types, loc=op.loc)
    rewriter.insert_before(op, new)
    for i, result in zip(kept, new.results, strict=True):
        operands[i] = result
    rewriter.replace_op(op, operands)
    return True
