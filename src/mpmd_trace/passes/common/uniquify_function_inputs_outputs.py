"""`mpmd-uniquify-function-inputs-outputs`: no value is returned twice, no argument directly."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import BlockArg, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, local_type, make_fragment, make_transfer
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import FunctionPass, option


@dataclasses.dataclass(frozen=True)
class UniquifyFunctionInputsOutputs(FunctionPass):
    """Make every returned value the result of an op, returned only once.

    Returned arguments, and values that are returned several times, pass through one inferred fragment per mesh in front
    of the return; meshes and values are in the order in which they are returned. With
    `use_transfer_instead_of_fragment`, each of them, except the first return of a value that is not an argument, passes
    through a transfer to its own type.

    Before:

        return %p, %p : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=[]> (%p) {mpmd.inferred_by = ["uniquify"]} (%u: !t) {
          mpmd.return %u, %u : !t, !t
        } : (!a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a

    Before, with {use-transfer-instead-of-fragment}:

        return %p, %p : !a, !a

    After:

        %0 = mpmd.transfer %p : (!a) -> !a
        %1 = mpmd.transfer %p : (!a) -> !a
        return %0, %1 : !a, !a
    """

    name = "mpmd-uniquify-function-inputs-outputs"
    summary = "return every value once and no argument directly"
    mpmd_only = True

    use_transfer_instead_of_fragment: bool = option(False, "copy with identity transfers instead of fragments")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        bad = [(i, v) for i, v in enumerate(function.returned) if not isinstance(v.type, MeshTensorType)]
        for i, value in bad:
            diagnostics.refuse(
                value,
                f"result {i} of @{function.sym_name} has type {value.type}, which is on no mesh; "
                "every returned value must be a mesh tensor here (run the import passes before)",
            )
        if bad:
            return False
        copy = _copy_by_transfers if self.use_transfer_instead_of_fragment else _copy_by_fragments
        return copy(function)


def _copy_by_transfers(function: FuncOp) -> bool:
    terminator = function.body.terminator
    seen: set[Value] = set()
    changed = False
    for i, value in enumerate(terminator.operands):
        if value in seen or isinstance(value, BlockArg):
            transfer = make_transfer(value, value.type)
            function.body.insert_before(terminator, transfer)
            terminator.set_operand(i, transfer.result)
            changed = True
        seen.add(value)
    return changed


def _copy_by_fragments(function: FuncOp) -> bool:
    terminator = function.body.terminator
    by_mesh: dict[str, dict[Value, list[int]]] = {}
    for i, value in enumerate(terminator.operands):
        assert isinstance(value.type, MeshTensorType)
        by_mesh.setdefault(value.type.mesh, {}).setdefault(value, []).append(i)
    changed = False
    for mesh, positions in by_mesh.items():
        copied = {v: where for v, where in positions.items() if isinstance(v, BlockArg) or len(where) > 1}
        if not copied:
            continue
        builder = BodyBuilder()
        args = {value: builder.arg(local_type(value.type), value.location) for value in copied}
        order = [(value, i) for value, where in copied.items() for i in where]
        fragment = make_fragment(
            mesh,
            list(copied),
            [value.type for value, _ in order],
            builder.finish([args[value] for value, _ in order]),
            attrs={"mpmd.inferred_by": ArrayAttr.get([StringAttr.get("uniquify")])},
            loc=terminator.loc,
        )
        function.body.insert_before(terminator, fragment)
        for (_, i), result in zip(order, fragment.results, strict=True):
            terminator.set_operand(i, result)
        changed = True
    return changed
