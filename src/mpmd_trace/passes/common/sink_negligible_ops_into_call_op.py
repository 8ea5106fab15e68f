"""`mpmd-sink-negligible-ops-into-call-op`: what costs nothing to compute is computed by the callee."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.bodies import region_dce
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import calls_by_callee, enclosing_function

__all__ = ["SinkNegligibleOpsIntoCallOp"]


@dataclasses.dataclass(frozen=True)
class SinkNegligibleOpsIntoCallOp(Pass):
    """No argument of a called function is the same operand-free op (constant, iota ...) in all calls.

    Such an op moves into the function; dead code of the callers is removed.

        %c = stablehlo.constant dense<1.0>
        %0 = mpmd.call @f(%p, %c)        // func.func private @f(%a, %b) { use of %b }
    becomes
        %0 = mpmd.call @f(%p)            // func.func private @f(%a) { %c = constant; use of %c }
    """

    name: ClassVar[str] = "mpmd-sink-negligible-ops-into-call-op"
    summary: ClassVar[str] = "move operand-free ops that all calls pass into the called function"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        all_calls = calls_by_callee(module)
        changed = False
        for function in module.functions:
            if not function.is_mpmd or function.is_declaration:
                continue
            calls = all_calls.get(function.sym_name, [])
            # A call whose results nobody uses has no say, but must fit the function afterwards.
            deciding = [c for c in calls if c.has_uses]
            if any(_caller(c).is_mpmd for c in deciding):
                changed = _sink(function, deciding, calls) or changed
        return changed


def _caller(call: CallOp) -> FuncOp:
    function = enclosing_function(call)
    assert function is not None, "a call is inside of a function"
    return function


def _sink(function: FuncOp, deciding: list[CallOp], calls: list[CallOp]) -> bool:
    block = function.body
    first = block.first
    assert first is not None
    sunk: list[int] = []
    candidates = deciding[0].operands
    shared = [True] * len(candidates)
    for call in deciding[1:]:
        for i, value in enumerate(call.operands):
            shared[i] = shared[i] and value is candidates[i]
    for i, value in enumerate(candidates):
        op: Op | None = value.defining_op
        if not shared[i] or op is None or not is_negligible(op):
            continue
        copy = op.clone()
        block.insert_before(first, copy)
        block.args[i].replace_all_uses_with(copy.result)
        sunk.append(i)
    if not sunk:
        return False
    function.erase_args(sunk)
    for call in calls:
        call.erase_operands(sunk)
    for caller in dict.fromkeys(_caller(c) for c in deciding):
        region_dce(caller.regions[0])
    return True
