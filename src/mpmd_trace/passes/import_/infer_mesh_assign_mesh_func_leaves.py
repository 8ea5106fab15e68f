"""`mpmd-infer-mesh-assign-mesh-func-leaves`: a mesh for everything at which the analysis ends."""

from __future__ import annotations

import dataclasses
from typing import cast

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.core import Block, Op, OpResult
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import ForOp, FuncOp, Module, make_assign
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.building_blocks import (
    assign_before,
    assign_operand,
    on_mesh,
    result_location,
    unassign_before,
    wrap_in_fragment,
)
from mpmd_trace.passes.import_.error_limit import ErrorCounter
from mpmd_trace.passes.import_.mesh_flow import Flow, function_name, lines, op_line, ways_out
from mpmd_trace.passes.import_.mesh_sets import (
    EMPTY,
    USE_SET,
    MeshSet,
    MeshSets,
    clear_sets,
    insert,
    is_meshless,
    is_terminal,
    names,
    pick,
    src_of_op,
    use_of_op,
)
from mpmd_trace.passes.mesh_order import first_mesh, sort_by_mesh_order

_ALLOW = "set mpmd_infer_transfers in the partitioning options to let values move wherever needed"


@dataclasses.dataclass(frozen=True)
class InferMeshAssignMeshFuncLeaves(Pass):
    """Assign meshes to outputs, unused values, operands of broadcasts and reduces, and ops without tensor results.

    If the analysis allows several meshes, the one that is needed is taken, then the smallest name. If it has no
    information, the mesh that is needed is taken, or the first one. If it allows none, the first mesh is taken with
    `infer_transfers`; otherwise this is an error. In each function, in the order of the module: unused arguments of an
    entry point, its outputs (`inferred_out`), then op by op the operands of broadcasts and reduces, unused ops
    (`inferred_unused`), and ops without tensor results, which become fragments on each mesh that they can be on
    (inferred by `infer_mesh_wrap_resultless_ops`; a pure one only on the first). Unused arguments and results of a
    callee get a use set. Use sets of ops and arguments are removed, because they are computed again.

    Before:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %x {mpmd.src_set = #mpmd.meshes_with_origins<"b">} : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !t) -> !b attributes {topology = #meshes} {
          %0 = stablehlo.negate %arg0 {mpmd.src_set = #mpmd.meshes_with_origins<"b">} : !t
          %1 = mpmd.assign {origin = "inferred_out"} %0 : (!t) -> !b
          return %1 : !b
        }
    """

    name = "mpmd-infer-mesh-assign-mesh-func-leaves"
    summary = "give a mesh to outputs, unused values and ops without results"
    infer_transfers: bool = option(False, "place values on the first mesh where the analysis finds none")
    error_limit: int = option(5, "fail after this many errors; -1: never")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        errors = ErrorCounter(self.error_limit, self.name, diagnostics)
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        sets = MeshSets(module)
        for function in functions:
            worker = _Leaves(function, sets, errors, self.infer_transfers)
            if function.is_entry_point:
                worker.unused_inputs()
                worker.outputs()
                worker.block(function.body)
                worker.clear_argument_uses()
                function.refresh_type()
            else:
                worker.block(function.body)
                worker.clear_argument_uses()
                worker.unused_callee_inputs()
                worker.unused_callee_outputs()
        if errors.too_many:
            diagnostics.fail()
        sets.flush()
        return bool(functions)


class _Leaves:
    """Works on one function."""

    def __init__(self, function: FuncOp, sets: MeshSets, errors: ErrorCounter, infer_transfers: bool) -> None:
        assert function.topology is not None
        self.function = function
        self.sets = sets
        self.errors = errors
        self.infer_transfers = infer_transfers
        self.first = first_mesh(function.topology)
        self.diagnostics = errors.diagnostics

    def leaf_mesh(self, possible: MeshSet | None, wanted: MeshSet) -> str | None:
        """One of the possible meshes, a wanted one if there is; None when nothing is possible."""
        if possible is None:
            return pick(wanted) or self.first
        return pick(possible, wanted)

    # Function boundaries.

    def unused_inputs(self) -> None:
        for arg in self.function.body.args:
            if not arg.has_uses and isinstance(arg.type, TensorType):
                arg.type = on_mesh(arg.type, self.first)

    def outputs(self) -> None:
        terminator = self.function.body.terminator
        for i, value in enumerate(terminator.operands):
            if not isinstance(value.type, TensorType):
                continue
            wanted = use_of_op(value.op) if isinstance(value, OpResult) else EMPTY
            mesh = self.leaf_mesh(self.sets.src_of(value), wanted)
            if mesh is None and not self.infer_transfers:
                self.errors.report(terminator, self.output_message(i))
            loc = result_location(self.function, i)
            assign_operand(terminator, i, mesh or self.first, "inferred_out", loc=loc)

    def clear_argument_uses(self) -> None:
        dicts = self.function.arg_attrs
        self.function.set_all_arg_attrs([d.without(USE_SET) if USE_SET in d.entries else d for d in dicts])
        boundary = self.sets.boundary(self.function)
        boundary.arg_use = [EMPTY] * len(boundary.arg_use)

    def unused_callee_inputs(self) -> None:
        name, boundary = function_name(self.function), self.sets.boundary(self.function)
        for arg in self.function.body.args:
            if arg.has_uses or not isinstance(arg.type, TensorType):
                continue
            mesh = self.leaf_mesh(self.sets.src_of(arg), EMPTY)
            if mesh is None and not self.infer_transfers:
                self.errors.report(
                    arg,
                    f"argument {arg.index} of @{name}, which @{name} does not use, can be on no mesh: "
                    f"its calls pass values without a common mesh; remove the argument, or {_ALLOW}",
                )
                return
            meshes = insert(EMPTY, mesh or self.first, "inferred_unused_callee_in")
            boundary.store(boundary.arg_use, arg.index, meshes)

    def unused_callee_outputs(self) -> None:
        name, boundary = function_name(self.function), self.sets.boundary(self.function)
        calls = self.sets.used_calls(self.function)
        if not calls:
            return
        for i, value in enumerate(self.function.returned):
            if any(c.results[i].has_uses for c in calls) or not isinstance(value.type, TensorType):
                continue
            mesh = self.leaf_mesh(self.sets.src_of(value), EMPTY)
            if mesh is None and not self.infer_transfers:
                self.errors.report(
                    self.function.body.terminator,
                    f"output {i} of @{name}, which no call uses, can be on no mesh: it combines values "
                    f"of different meshes; do not return it, or {_ALLOW}",
                )
                return
            meshes = insert(EMPTY, mesh or self.first, "inferred_unused_callee_out")
            boundary.store(boundary.result_use, i, meshes)

    # Ops.

    def block(self, block: Block) -> None:
        for op in block:
            if is_meshless(op):
                if not _has_tensor_result(op):
                    self.resultless(op)
                elif not op.has_uses:
                    self.unused(op)
                else:
                    op.attrs.pop(USE_SET, None)
            elif isinstance(op, ForOp):
                self.block(op.body.block)
            elif is_terminal(op):
                self.terminal(op)

    def terminal(self, op: Op) -> None:
        """Each operand of a broadcast or reduce comes from a mesh."""
        label = op.name.removeprefix("mpmd.")
        wanted = use_of_op(op)
        for i, operand in enumerate(op.operands):
            mesh = self.leaf_mesh(self.sets.src_of(operand), wanted)
            if mesh is None and not self.infer_transfers:
                raise self.diagnostics.fatal(
                    op,
                    f"operand {i} of the {label} can be on no mesh: it combines values of different "
                    f"meshes; put that computation into a named computation, or {_ALLOW}",
                )
            assigned = assign_before(op, operand, mesh or pick(wanted) or self.first, label)
            op.set_operand(i, unassign_before(op, assigned))
        op.attrs.pop(USE_SET, None)

    def unused(self, op: Op) -> None:
        assert op.block is not None
        mesh = self.leaf_mesh(src_of_op(op), EMPTY)
        if mesh is None and not self.infer_transfers:
            self.diagnostics.refuse(
                op,
                f"the unused {op_line(op)} can be on no mesh: its operands are on different meshes; remove "
                f"it, put it into a named computation, or {_ALLOW}",
            )
            return
        mesh = mesh or self.first
        behind = op
        for result in op.results:
            if isinstance(result.type, TensorType):
                target = cast(MeshTensorType, on_mesh(result.type, mesh))
                behind = op.block.insert_after(behind, make_assign(result, target, "inferred_unused", loc=op.loc))
        op.attrs.pop(USE_SET, None)

    def resultless(self, op: Op) -> None:
        """Wrap an op that only has an effect, or a token, for every mesh where it can be; a pure one for one only."""
        possible = src_of_op(op)
        meshes = [self.first] if possible is None else list(names(possible))
        if not meshes:
            self.diagnostics.refuse(
                op,
                f"{op_line(op)} has no tensor result and can be on no mesh: its operands are on different "
                "meshes; put it into a named computation, or give it operands of one mesh",
            )
            return
        clear_sets(op)
        ordered = sort_by_mesh_order(meshes, lambda m: m)
        for mesh in ordered[:1] if is_pure(op) else ordered:
            wrap_in_fragment(op, mesh, "infer_mesh_wrap_resultless_ops", self.diagnostics)
        op.erase()

    # Messages.

    def output_message(self, index: int) -> str:
        value = self.function.returned[index]
        flow = Flow(self.sets)
        info = result_location(self.function, index)
        called = f" ({info.name})" if info.name else ""
        text = [
            f"output {index}{called} of @{function_name(self.function)} can be on no mesh: it combines "
            "values of different meshes"
        ]
        text += lines("it comes from", flow.sources([value]))
        text += ways_out(
            "compute it in a named computation that is assigned to a mesh",
            f"assign the output to a mesh ({quote(f'{index}@MESH')} in the output assignment)",
            _ALLOW,
        )
        return "\n".join(text)


def _has_tensor_result(op: Op) -> bool:
    for result in op.results:  # noqa: SIM110 (asked of all ops; a generator costs more than the question)
        if isinstance(result.type, TensorType):
            return True
    return False
