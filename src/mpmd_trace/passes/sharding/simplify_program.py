"""`mpmd-simplify-program`: fragments have the operands and results that they need.

Source: section 3.9 of the specification of sharding propagation.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.region_simplification import SimplifyRegionOp
from mpmd_trace.passes.greedy import Choices, apply_greedily
from mpmd_trace.passes.settled import Settled

__all__ = ["SimplifyProgram"]


@dataclasses.dataclass(frozen=True)
class SimplifyProgram(FunctionPass):
    """No fragment has repeated, forwarded or unused operands and results; nothing unused is left.

    %f:3 = mpmd.fragment<..> (%a, %b, %a) (%x: t, %y: t, %z: t) {
      %s = stablehlo.subtract %x, %z : t
      mpmd.return %s, %y, %s : t, t, t
    } : (!s, !s, !s) -> (!s, !s, !s)                              // %f#1 is read as %b from now on
    becomes
    %f = mpmd.fragment<..> (%a) (%x: t) { %s = stablehlo.subtract %x, %x : t  mpmd.return %s : t } ..
    """

    name: ClassVar[str] = "mpmd-simplify-program"
    summary: ClassVar[str] = "minimize the operands and results of fragments"
    distributed_only: ClassVar[bool] = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        patterns = Choices([SimplifyRegionOp("mpmd.fragment", keep_attributes=True)])
        settled = Settled(patterns, unique_constants=True)
        result = apply_greedily(function, patterns, unique_constants=True, region_dce=True, settled=settled)
        if not result.converged:
            diagnostics.error(
                function,
                f"@{function.sym_name} still changes after ten rounds of simplification; this is a bug",
            )
            diagnostics.fail()
        return result.changed
