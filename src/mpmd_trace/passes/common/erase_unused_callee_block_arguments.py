"""`mpmd-erase-unused-callee-block-arguments`: called functions take only what they compute with."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.body_rewrites import replace_op
from mpmd_trace.passes.common.walks import calls_by_callee, enclosing_function


@dataclasses.dataclass(frozen=True)
class EraseUnusedCalleeBlockArguments(Pass):
    """Remove arguments of called functions that are unused or only returned.

    Callees are visited in the order of the module; calls without used results do not count. Uses of a result that is
    such an argument are replaced by the operand of the call, and result and argument are removed from the function and
    its calls. A function that only returns arguments is removed with its calls.

    Before:

        func.func public @main(%p: !a, %r: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0:2 = mpmd.call @f(%p, %r) : (!a, !a) -> (!a, !a)
          return %0#0, %0#1 : !a, !a
        }
        func.func private @f(%u: !a, %v: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.transfer %v : (!a) -> !a
          return %u, %0 : !a, !a
        }

    After:

        func.func public @main(%arg0: !a, %arg1: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg1) : (!a) -> !a
          return %arg0, %0 : !a, !a
        }
        func.func private @f(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.transfer %arg0 : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-erase-unused-callee-block-arguments"
    summary = "remove arguments of called functions that are unused or only returned"
    only_with = ("mpmd.call",)

    def counts(self, call: CallOp) -> bool:
        """Return whether the call makes its function one that is called."""
        return call.has_uses

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        calls = calls_by_callee(module)
        changed = False
        for function in module.functions:
            if not function.is_mpmd or function.is_entry_point or function.is_declaration:
                continue
            to_it = calls.get(function.sym_name, [])
            if any(self.counts(c) and enclosing_function(c).is_mpmd for c in to_it):
                changed = _erase(function, to_it) or changed
        return changed


def _erase(function: FuncOp, calls: list[CallOp]) -> bool:
    terminator = function.body.terminator
    gone_args: list[int] = []
    source: dict[int, int] = {}  # removed result -> the argument that it is
    for arg in function.body.args:
        uses = arg.uses
        if all(use.owner is terminator for use in uses):
            gone_args.append(arg.index)
            source.update((use.index, arg.index) for use in uses)
    if not gone_args:
        return False
    removed = sorted(source)
    for call in calls:
        for j in removed:
            call.results[j].replace_all_uses_with(call.operand(source[j]))
    if len(removed) == len(function.type.results):
        for call in calls:
            call.erase()
        function.erase()
        return True
    function.erase_results(removed)
    function.erase_args(gone_args)
    for call in calls:
        operands = [v for i, v in enumerate(call.operands) if i not in gone_args]
        replace_op(call, operands, [r for r in call.results if r.index not in source])
    return True
