"""`mpmd-from-unroll-to-call-counter`: the iteration of an unrolled call is its call counter."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops

__all__ = ["FromUnrollToCallCounter"]


@dataclasses.dataclass(frozen=True)
class FromUnrollToCallCounter(FunctionPass):
    """Calls made by unrolling a loop have the iteration as `call_counter`, and no `unroll_counter`.

        %0 = mpmd.call @g(%x) {unroll_counter = 3 : ui32}
    becomes
        %0 = mpmd.call @g(%x) {call_counter = 3 : ui32}
    """

    name: ClassVar[str] = "mpmd-from-unroll-to-call-counter"
    summary: ClassVar[str] = "turn the unroll_counter of calls into their call_counter"

    def run_on_function(
        self, function: FuncOp, module: Module, diagnostics: Diagnostics
    ) -> bool:
        changed = False
        for op in function_ops(function):
            if isinstance(op, CallOp):
                counter = op.attrs.get("unroll_counter")
                if isinstance(counter, IntegerAttr):
                    del op.attrs["unroll_counter"]
                    op.attrs["call_counter"] = counter
                    changed = True
        return changed
