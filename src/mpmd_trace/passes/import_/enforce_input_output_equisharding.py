"""`mpmd-enforce-input-output-equisharding`."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, make_transfer
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.building_blocks import check_constraints, result_location


@dataclasses.dataclass(frozen=True)
class EnforceInputOutputEquisharding(FunctionPass):
    """Give constrained outputs of entry points the type of their input: mesh, sharding and memory.

    Pairs are compared as they were before the pass. Where they differ, a transfer is added in front of the return.

    Before, with {constraints=0:0}:

        func.func public @main(%p: !a, %q: !b) -> !b attributes {topology = #meshes} {
          return %q : !b
        }

    After:

        func.func public @main(%arg0: !a, %arg1: !b) -> !a attributes {topology = #meshes} {
          %0 = mpmd.transfer %arg1 : (!b) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-enforce-input-output-equisharding"
    summary = "transfer outputs to the meshes and shardings of the inputs that they must match"
    mpmd_only = True
    entry_only = True

    constraints: tuple[SameMesh, ...] = option((), "pairs that must be placed alike, as INPUT:OUTPUT,...")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        check_constraints(function, self.constraints, diagnostics)
        before = function.type
        returning = function.body.terminator
        changed = False
        for i, o in self.constraints:
            if before.inputs[i] is before.results[o]:
                continue
            transfer = make_transfer(returning.operand(o), before.inputs[i], loc=result_location(function, o))
            function.body.insert_before(returning, transfer)
            returning.set_operand(o, transfer.result)
            changed = True
        function.refresh_type()
        return changed
