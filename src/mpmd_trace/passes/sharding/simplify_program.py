"""`mpmd-simplify-program`: fragments have the operands and results that they need."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.region_simplification import simplify_region
from mpmd_trace.passes.greedy import Choices, apply_greedily

_RULES = Choices([simplify_region("mpmd.fragment", keep_attributes=True)])


class SimplifyProgram(FunctionPass):
    """Remove repeated, forwarded and unused operands and results of fragments, and unused ops.

    The rewriting is greedy, with unique constants and region clean-up; `simplify_region`
    (`passes/common/region_simplification.py`) defines what happens to a fragment, and in which order. Attributes do not
    change, lists included.

    Before:

        %0:3 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %p) (%u: !t, %v: !t) {
          %w = stablehlo.add %u, %v : !t
          mpmd.return %w, %v, %w : !t, !t, !t
        } : (!a, !a) -> (!a, !a, !a)
        return %0#0, %0#1, %0#2 : !a, !a, !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.add %u, %u : !t
          mpmd.return %1 : !t
        } : (!a) -> !a
        return %0, %p, %0 : !a, !a, !a
    """

    name = "mpmd-simplify-program"
    summary = "minimize the operands and results of fragments"
    distributed_only = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        result = apply_greedily(function, _RULES, unique_constants=True, region_dce=True)
        if not result.converged:
            diagnostics.error(
                function, f"@{function.sym_name} still changes after ten rounds of simplification; this is a bug"
            )
            diagnostics.fail()
        return result.changed
