"""`mpmd-place`: unnamed code goes where the fewest bytes move.  See `docs/placement.md`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, cast

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import (
    AssignOp,
    BroadcastOp,
    CallOp,
    FuncOp,
    Module,
    ReduceOp,
    UnassignOp,
    make_assign,
    make_fragment,
    make_unassign,
)
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.building_blocks import (
    INFERRED_BY,
    check_constraints,
    on_mesh,
    op_as_body,
    result_location,
)
from mpmd_trace.passes.placement.close_conditionals import close_conditionals
from mpmd_trace.passes.placement.cut import cut
from mpmd_trace.passes.placement.flow import Flow
from mpmd_trace.passes.placement.free import reads

__all__ = ["Place"]

_BY_US = {INFERRED_BY: ArrayAttr.get([StringAttr.get("infer_mesh_wrap_meshless_ops")])}


@dataclasses.dataclass(frozen=True)
class Place(Pass):
    """Every op that reads something is in a fragment, on the mesh where the fewest bytes move in a whole step.

    Arguments and results of the program are on meshes, too. Values that are needed elsewhere are sent there by the
    passes of mesh inference that follow; constants are made where they are needed. Cheap ops whose result is larger
    than what they read are made on each mesh that reads them.

    Before:

        %u = mpmd.unassign %p : (!a) -> !t
        %0 = stablehlo.tanh %u : !t
        return %0 : !t

    After:

        %u = mpmd.unassign %p : (!a) -> !t
        %0 = mpmd.assign %u : (!t) -> !a
        %1 = mpmd.fragment<mesh="a", origin=[]> (%0) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%y: !t) {
          %4 = stablehlo.tanh %y : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %2 = mpmd.unassign %1 : (!a) -> !t
        %3 = mpmd.assign {origin = "placed_out"} %2 : (!t) -> !a
        return %3 : !a
    """

    name: ClassVar[str] = "mpmd-place"
    summary: ClassVar[str] = "place unnamed code where the fewest bytes move"
    constraints: tuple[SameMesh, ...] = option((), "input:output pairs of indices that are to share a mesh")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        if not functions:
            return False
        for function in functions:
            _drop_markers(function)
        pairs = {pair.output: pair.input for pair in self.constraints}
        for function in functions:
            if function.is_entry_point:
                check_constraints(function, self.constraints, diagnostics)
        flow = Flow(module, pairs)
        edges = [(edge.weight, edge.nodes) for edge in flow.edges()]
        labels = cut(flow.count, len(flow.meshes), edges)
        plan = _Plan(flow, labels)
        for callee in flow.functions:
            if not callee.is_entry_point:
                plan.split_arguments(callee)
        for function in flow.functions:
            if function.is_entry_point:
                plan.place_arguments(function)
            plan.close(function)
            plan.wrap(function)
            if function.is_entry_point:
                plan.place_results(function, pairs)
            function.refresh_type()
        return True


def _drop_markers(function: FuncOp) -> None:
    """What the user marked as used or made on several meshes needs no mark here."""
    for op in function.body:
        if isinstance(op, BroadcastOp) or (isinstance(op, ReduceOp) and op.kind == "none"):
            op.replace_all_uses_with(op.operands)
            op.erase()


class _Plan:
    """A placement, and how the module becomes what it says."""

    def __init__(self, flow: Flow, labels: Sequence[int]) -> None:
        self.flow = flow
        self.labels = labels
        #: What stands for a value on each mesh where it is made.
        self.made: dict[Value, dict[str, Value]] = {}
        #: The label of each op that is on one mesh.
        self.label: dict[Op, int] = {op: labels[node] for op, node in flow.node_of.items()}
        #: The mesh on which an argument of a callee is read.
        self.argument_mesh: dict[Value, str] = {}

    def meshes_of(self, nodes: dict[int, None]) -> list[str]:
        """The meshes of some nodes, in the order of the topology."""
        numbers = sorted({self.labels[node] for node in nodes})
        return [self.flow.meshes[number] for number in numbers]

    def readers(self, value: Value) -> list[str]:
        """The meshes on which a value is read."""
        return self.meshes_of(self.flow.readers.get(value, {}))

    def mesh_of(self, op: Op) -> str:
        return self.flow.meshes[self.label[op]]

    def at(self, value: Value, mesh: str) -> Value:
        """The value without a mesh that is `value`, made on that mesh if it is made there."""
        made = self.made.get(value)
        if made is None:
            return value
        return made.get(mesh) or next(iter(made.values()))

    # Boundaries.

    def split_arguments(self, callee: FuncOp) -> None:
        """Each argument of a callee is read on one mesh; calls pass a value once for each mesh."""
        calls = self.flow.graph.calls[callee]
        for arg in list(callee.body.args):
            if not isinstance(arg.type, TensorType):
                continue
            meshes = self.readers(arg)
            copies: dict[str, Value] = dict.fromkeys(meshes[:1], arg)
            for mesh in meshes[1:]:
                copies[mesh] = callee.body.add_arg(arg.type, loc=arg.loc)
                for call in calls:
                    call.append_operands([call.operand(arg.index)])
            if len(copies) > 1:
                self.made[arg] = copies
            self.argument_mesh.update((copy, mesh) for mesh, copy in copies.items())
        callee.refresh_type()

    def place_arguments(self, function: FuncOp) -> None:
        """Each argument of the program is on one of the meshes that read it, that of its last reader if possible."""
        last: Op | None = None
        for arg in function.body.args:
            meshes = self.readers(arg)
            if not isinstance(arg.type, TensorType) or not meshes or _has_memory(arg):
                continue
            arg.type = on_mesh(arg.type, self._home(arg, meshes))
            unassign = make_unassign(arg, "placed_in")
            if last is None:
                function.body.insert_front(unassign)
            else:
                function.body.insert_after(last, unassign)
            last = unassign
            arg.replace_all_uses_with(unassign.result)
            unassign.set_operand(0, arg)
            self.flow.readers[unassign.result] = self.flow.readers[arg]

    def _home(self, arg: Value, meshes: list[str]) -> str:
        if arg in self.flow.home_of:
            return self.flow.meshes[self.labels[self.flow.home_of[arg]]]
        readers = [user for user in arg.users if user in self.flow.node_of]
        if len(meshes) == 1 or not readers:
            return meshes[0]
        last = readers[0]
        for user in readers:
            if user.block is last.block and last.is_before(user):
                last = user
        return self.mesh_of(last)

    def place_results(self, function: FuncOp, pairs: dict[int, int]) -> None:
        """Each result of the program is where it is made."""
        returning = function.body.terminator
        for i, value in enumerate(returning.operands):
            mesh = self.home(value)
            if mesh is None or not isinstance(value.type, TensorType):
                continue
            if i in pairs and function.body.args[pairs[i]].type is not on_mesh(value.type, mesh):
                continue  # comes to the mesh of the argument in the end
            self._assign(returning, i, mesh, result_location(function, i))

    def _assign(self, op: Op, index: int, mesh: str, loc: object) -> None:
        value = op.operand(index)
        assert op.block is not None
        assign = make_assign(value, cast(MeshTensorType, on_mesh(value.type, mesh)), "placed_out", loc=loc)  # type: ignore[arg-type]
        op.block.insert_before(op, assign)
        op.set_operand(index, assign.result)

    def home(self, value: Value) -> str | None:
        """The mesh on which a value without a mesh is, if it is on one."""
        producer = value.defining_op
        if isinstance(producer, UnassignOp):
            return producer.mesh_type.mesh
        if isinstance(producer, CallOp):
            callee = self.flow.graph.callees.get(producer.callee)
            if callee is None:
                return None
            inside = callee.returned[value.index]
            if isinstance(inside, BlockArg):
                return self.home(producer.operand(inside.index))
            return self.home(inside)
        return None

    # Ops.

    def close(self, function: FuncOp) -> None:
        """Make conditionals of what was opened."""
        self.label.update(close_conditionals(function, self.label, self.flow.free))

    def wrap(self, function: FuncOp) -> None:
        """Put each op that reads something into a fragment on its mesh, or into one on each mesh that reads it."""
        gone: list[Op] = []
        for op in function.body:
            if isinstance(op, AssignOp):
                self._redirect(op, [op.mesh_type.mesh])
            elif isinstance(op, CallOp):
                callee = self.flow.graph.callees.get(op.callee)
                if callee is not None:
                    self._redirect(op, [self.argument_mesh.get(arg) for arg in callee.body.args])
            elif op in self.label:
                self._wrap(op, [self.mesh_of(op)])
                gone.append(op)
            elif op in self.flow.free and op.num_operands:
                self._wrap(op, self.readers(op.result) or [self._nearest(op)])
                gone.append(op)
            elif op not in self.flow.free:
                self._redirect(op, [None] * op.num_operands)
        for op in reversed(gone):
            op.erase()

    def _redirect(self, op: Op, meshes: Sequence[str | None]) -> None:
        for use, mesh in zip(op.operand_uses, meshes, strict=True):
            value = self.at(use.value, mesh or "")
            if value is not use.value:
                use.set(value)

    def _nearest(self, op: Op) -> str:
        """A mesh for an op that no mesh needs: that of something it reads."""
        for value in op.operands:
            made = self.made.get(value)
            mesh = next(iter(made)) if made else self.home(value)
            if mesh is not None:
                return mesh
        return self.flow.meshes[0]

    def _wrap(self, op: Op, meshes: Sequence[str]) -> None:
        values = reads(op)
        assert op.block is not None
        for mesh in meshes:
            operands: list[Value] = []
            for value in values:
                target = on_mesh(value.type, mesh)
                here = self.at(value, mesh)
                if isinstance(target, MeshTensorType):
                    assign = make_assign(here, target, loc=op.loc)
                    op.block.insert_before(op, assign)
                    here = assign.result
                operands.append(here)
            fragment = make_fragment(
                mesh,
                operands,
                [on_mesh(r.type, mesh) for r in op.results],
                op_as_body(op, values),
                attrs=_BY_US,
                loc=op.loc,
            )
            op.block.insert_before(op, fragment)
            for result, new in zip(op.results, fragment.results, strict=True):
                outside: Value = new
                if isinstance(new.type, MeshTensorType):
                    unassign = make_unassign(new, loc=op.loc)
                    op.block.insert_before(op, unassign)
                    outside = unassign.result
                self.made.setdefault(result, {})[mesh] = outside


def _has_memory(arg: Value) -> bool:
    """Whether a reader wants the argument in some memory, which mesh inference then gives it."""
    return any(isinstance(user, AssignOp) and user.mesh_type.memory_kind is not None for user in arg.users)
