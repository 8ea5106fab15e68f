"""`mpmd-sink-negligible-ops-into-call-op`: what costs nothing to compute is computed by the callee."""

from __future__ import annotations

from mpmd_trace.ir.bodies import region_dce
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import calls_by_callee, enclosing_function


class SinkNegligibleOpsIntoCallOp(Pass):
    """Move ops without operands (constant, iota, ...) that all calls of a function pass into the function.

    Functions are visited in the order of the module, and their arguments in order. The op is copied to the front of the
    function, and the argument is removed from the function and its calls (calls without used results do not count).
    Then dead ops of the callers are removed. Calls without operands are not moved: nothing would inline them inside a
    called function.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %c = stablehlo.constant dense<1.0> : !t
          %0 = mpmd.call @f(%x, %c) : (!t, !t) -> !t
          return %0 : !t
        }
        func.func private @f(%u: !t, %v: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.add %u, %v : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg0) : (!t) -> !t
          return %0 : !t
        }
        func.func private @f(%arg0: !t) -> !t attributes {topology = #meshes} {
          %cst = stablehlo.constant dense<1.000000e+00> : !t
          %0 = stablehlo.add %arg0, %cst : !t
          return %0 : !t
        }
    """

    name = "mpmd-sink-negligible-ops-into-call-op"
    summary = "move operand-free ops that all calls pass into the called function"
    only_with = ("mpmd.call",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        all_calls = calls_by_callee(module)
        changed = False
        for function in module.functions:
            if not function.is_mpmd or function.is_declaration:
                continue
            calls = all_calls.get(function.sym_name, [])
            # A call whose results are unused does not count, but must fit the function afterwards.
            deciding = [c for c in calls if c.has_uses]
            if any(enclosing_function(c).is_mpmd for c in deciding):
                changed = _sink(function, deciding, calls) or changed
        return changed


def _sink(function: FuncOp, deciding: list[CallOp], calls: list[CallOp]) -> bool:
    block = function.body
    first = block.first
    assert first is not None
    sunk: list[int] = []
    for i, passed in enumerate(zip(*(call.operands for call in deciding), strict=True)):
        op = passed[0].defining_op
        if len(set(passed)) > 1 or op is None or not is_negligible(op) or isinstance(op, CallOp):
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
    for caller in dict.fromkeys(map(enclosing_function, deciding)):
        region_dce(caller.regions[0])
    return True
