"""`mpmd-call-inline`: calls are replaced by copies of what they call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpmd_trace.diagnostics.messages import Note
from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.bodies import copied_ops
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, ForOp, FragmentCallOp, FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import function_ops

#: Attributes of the call of these names would become inherent attributes of the ops that get them.
_INHERENT: dict[type[Op], frozenset[str]] = {
    FragmentOp: frozenset({"origin", "mesh_name", "stage_id", "in_shardings", "out_shardings"}),
    FragmentCallOp: frozenset({"origin", "mesh_name", "callee"}),
}


class CallInline(Pass):
    """Replace each `mpmd.call` by a copy of the body of its callee, in the order of the program.

    Attributes of the call except the callee, such as `call_counter`, replace those of the fragments and fragment calls
    in the copy. The copies share the bodies of the callee's fragments, so inlining M microbatches copies no
    computation. `symbol-dce` removes the callees.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.call @f(%p) {call_counter = 3 : ui32} : (!a) -> !a
          return %0 : !a
        }
        func.func private @f(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) {call_counter = 3 : ui32} (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
        func.func private @f(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-call-inline"
    summary = "replace every mpmd.call by a copy of the function it calls"
    only_with = ("mpmd.call",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = {f.sym_name: f for f in module.functions}
        calls = [(f, op) for f in module.functions for op in function_ops(f) if isinstance(op, CallOp)]
        for caller, call in calls:
            check_callee(call, caller, functions.get(call.callee), diagnostics)
        if diagnostics.failed:
            return False
        for _, call in calls:
            _inline(call, functions[call.callee])
        return bool(calls)


def check_callee(call: CallOp, caller: FuncOp, callee: FuncOp | None, diagnostics: Diagnostics) -> None:
    """Refuse a call that cannot be replaced by the body of its callee."""
    name = call.callee
    notes = [] if callee is None else [Note(f"@{name} is defined here", callee.loc)]
    if callee is None:
        problem = "there is no function of this name in the module"
    elif callee.is_declaration:
        problem = "it is only declared; give it a body"
    elif len(callee.regions[0].blocks) != 1:
        problem = "it has more than one block; only straight-line functions can be inlined"
    elif callee is caller:
        problem = "it calls itself; a recursive function has no finite inlined form"
    elif callee.type.inputs != tuple([use.value.type for use in call.operand_uses]):
        problem = (
            f"the call passes ({', '.join(v.type.text for v in call.operands)}), "
            f"but the function takes ({', '.join(t.text for t in callee.type.inputs)})"
        )
    elif callee.type.results != tuple([r.type for r in call.results]):
        problem = (
            f"the call expects ({', '.join(r.type.text for r in call.results)}), "
            f"but the function returns ({', '.join(t.text for t in callee.type.results)})"
        )
    else:
        return
    diagnostics.refuse(call, f"@{name} cannot be inlined: {problem}", notes)


def _inline(call: CallOp, callee: FuncOp) -> None:
    """Replace the call."""
    copies, returned = inlined(callee, call.operands, {**call.props, **call.attrs})
    assert call.block is not None
    call.block.insert_all_before(call, copies)
    call.replace_all_uses_with(returned)
    call.erase()


def inlined(callee: FuncOp, operands: Sequence[Value], attrs: Mapping[str, Attribute]) -> tuple[list[Op], list[Value]]:
    """Return what a call with these operands and attributes becomes: detached ops, and the values of its results."""
    attrs = {k: v for k, v in attrs.items() if k != "callee"}
    copies, returned = copied_ops(callee.body, operands)
    for copy in copies if attrs else ():
        _annotate(copy, attrs)
    return copies, returned


def _annotate(op: Op, attrs: dict[str, Attribute]) -> None:
    """Set the attributes on the op, or on the ops in it, that stand for fragments."""
    inherent = _INHERENT.get(type(op))
    if inherent is not None:
        for name, value in attrs.items():
            (op.props if name in inherent else op.attrs)[name] = value
    elif isinstance(op, ForOp):
        for nested in op.body.block:
            _annotate(nested, attrs)
