"""`mpmd-from-unroll-to-call-counter`: the iteration of an unrolled call is its call counter."""

from __future__ import annotations

from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops


class FromUnrollToCallCounter(FunctionPass):
    """Rename the attribute `unroll_counter` of calls to `call_counter`. Other ops keep `unroll_counter`.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%x) {unroll_counter = 3 : ui32} : (!t) -> !t
          return %0 : !t
        }
        func.func private @f(%x: !t) -> !t attributes {topology = #meshes} {
          return %x : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg0) {call_counter = 3 : ui32} : (!t) -> !t
          return %0 : !t
        }
        func.func private @f(%arg0: !t) -> !t attributes {topology = #meshes} {
          return %arg0 : !t
        }
    """

    name = "mpmd-from-unroll-to-call-counter"
    summary = "turn the unroll_counter of calls into their call_counter"
    only_with = ("mpmd.for",)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for op in function_ops(function):
            if isinstance(op, CallOp):
                counter = op.attrs.get("unroll_counter")
                if isinstance(counter, IntegerAttr):
                    del op.attrs["unroll_counter"]
                    op.attrs["call_counter"] = counter
                    changed = True
        return changed
