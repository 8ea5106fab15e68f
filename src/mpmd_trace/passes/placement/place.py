"""`mpmd-place`: unnamed code goes where the fewest bytes move.  See `docs/placement_algorithm.md`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.bodies import free_values
from mpmd_trace.ir.core import BlockArg, Op, Use, Value
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
    make_unassign,
)
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.building_blocks import (
    check_constraints,
    on_mesh,
    put_behind,
    result_location,
    wrap_in_fragment,
)
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.placement.close_conditionals import close_conditionals
from mpmd_trace.passes.placement.cut import cut
from mpmd_trace.passes.placement.groups import group_ops
from mpmd_trace.passes.placement.hypergraph import TOGETHER, DataflowHypergraph
from mpmd_trace.passes.placement.rematerializable import CHEAP, is_cheap
from mpmd_trace.passes.placement.single_mesh_loops import warn_of_whole

_PLACED = "placed"
_CONTROL_FLOW = ("stablehlo.if", "stablehlo.case", "stablehlo.while")


@dataclasses.dataclass(frozen=True)
class Place(Pass):
    """Assign each op to a mesh so that a step sends as few bytes as possible between meshes.

    In the program, pure ops of a mesh become fragments: one for all ops between two points where values leave the mesh
    and come back. In callees, values that are sent are assigned to the mesh where they are computed. Arguments and
    results of the program get meshes, too. The passes of mesh inference that follow then have no choice: they wrap the
    rest into fragments where it is needed, and send values to the meshes that read them. Cheap ops whose result is
    larger than their operands are computed on each mesh that reads them. Results that share a number in `mpmd.together`
    are on one mesh, unless this would send more bytes than they have; the attribute is removed.

    Before:

        %u = mpmd.unassign %p : (!a) -> !t
        %0 = stablehlo.tanh %u : !t
        %1 = mpmd.assign %0 : (!t) -> !b
        return %0, %1 : !t, !b

    After:

        %u = mpmd.unassign %p : (!a) -> !t
        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) {mpmd.inferred_by = ["infer_mesh_wrap_meshless_ops"]} (%z: !t) {
          %4 = stablehlo.tanh %z : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %1 = mpmd.unassign %0 : (!a) -> !t
        %2 = mpmd.assign %1 : (!t) -> !b
        %3 = mpmd.assign {origin = "placed_out"} %1 : (!t) -> !a
        return %3, %2 : !a, !b
    """

    name = "mpmd-place"
    summary = "place unnamed code where the fewest bytes move"
    constraints: tuple[SameMesh, ...] = option((), "input:output pairs of indices that are to share a mesh")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        if not functions:
            return False
        for function in functions:
            drop_markers(function)
            _own_constants(function)
            if function.is_entry_point:
                check_constraints(function, self.constraints, diagnostics)
        pairs = {pair.output: pair.input for pair in self.constraints}
        flow = DataflowHypergraph(module, pairs)
        edges = list(flow.edges())
        labels = cut(flow.count, len(flow.meshes), edges)
        warn_of_whole(flow, edges, labels, diagnostics)
        plan = Placed(flow, labels, diagnostics)
        for function in flow.functions:
            if function.is_entry_point:
                plan.place_arguments(function)
            plan.close(function)
            if not function.is_entry_point:
                plan.pin(function)
            else:
                plan.keep_returned(function)
                plan.group(function)
                plan.place_results(function)
                for result in flow.together:
                    function.set_res_attr(result, TOGETHER, None)
                function.refresh_type()
        return True


def drop_markers(function: FuncOp) -> None:
    """Leave out what the user marked as used or made on several meshes."""
    for op in function.body:
        if isinstance(op, BroadcastOp) or (isinstance(op, ReduceOp) and op.kind == "none"):
            op.replace_all_uses_with(op.operands)
            op.erase()


def _own_constants(function: FuncOp) -> None:
    """Copy constants into the regions that read them, other than those of control flow.

    Such a region, as the order of a sort, may read nothing from outside in XLA but constants, and a constant outside
    may come to be made by another fragment.
    """
    for op in function.body:
        if not op.regions or op.name in _CONTROL_FLOW or not is_meshless(op):
            continue
        blocks = [block for region in op.regions for block in region.blocks]
        for value in free_values(op):
            maker = value.defining_op
            if maker is None or maker.name != "stablehlo.constant":
                continue
            for block in blocks:
                uses = [use for use in value.uses if use.owner.block is block]
                if uses:
                    copy = maker.clone()
                    block.insert_front(copy)
                    for use in uses:
                        use.set(copy.results[0])


class Placed:
    """A placement, and how the module becomes what it says."""

    def __init__(self, flow: DataflowHypergraph, labels: Sequence[int], diagnostics: Diagnostics) -> None:
        self.flow = flow
        self.labels = labels
        self.diagnostics = diagnostics
        #: The label of each op that is on one mesh.
        self.label: dict[Op, int] = {op: labels[node] for op, node in flow.node_of.items()}

    def readers_of(self, value: Value) -> set[int]:
        """Return the meshes on which a value is read, by number."""
        labels = self.labels
        return {labels[node] for node in self.flow.readers.get(value, ())}

    def readers(self, value: Value) -> list[str]:
        """Return the meshes on which a value is read, in the order of the topology."""
        return [self.flow.meshes[number] for number in sorted(self.readers_of(value))]

    # Arguments and results of the program.

    def place_arguments(self, function: FuncOp) -> None:
        """Each argument of the program is on one of the meshes that read it, that of its last reader if possible."""
        last: Op | None = None
        for arg in function.body.args:
            meshes = self.readers(arg)
            if not isinstance(arg.type, TensorType) or not meshes or _has_memory(arg):
                continue
            arg.type = on_mesh(arg.type, self._home_of_argument(arg, meshes))
            unassign = make_unassign(arg, "placed_in")
            last = put_behind(last, unassign, function.body)
            arg.replace_all_uses_with(unassign.result)
            unassign.set_operand(0, arg)

    def _home_of_argument(self, arg: Value, meshes: list[str]) -> str:
        if arg in self.flow.home_of:
            return self.flow.meshes[self.labels[self.flow.home_of[arg]]]
        readers = [user for user in arg.users if user in self.flow.node_of]
        if len(meshes) == 1 or not readers:
            return meshes[0]
        last = readers[0]
        for user in readers:
            if user.block is last.block and last.is_before(user):
                last = user
        return self.flow.meshes[self.label[last]]

    def place_results(self, function: FuncOp) -> None:
        """Each result of the program is where it is made."""
        returning = function.body.terminator
        known: dict[Value, str] = {}
        for i, value in enumerate(returning.operands):
            mesh = self.home(value, known)
            if mesh is None or not isinstance(value.type, TensorType):
                continue
            if i in self.flow.pairs and function.body.args[self.flow.pairs[i]].type is not on_mesh(value.type, mesh):
                continue  # comes to the mesh of the argument in the end
            target = cast(MeshTensorType, on_mesh(value.type, mesh))
            assign = make_assign(value, target, "placed_out", loc=result_location(function, i))
            function.body.insert_before(returning, assign)
            returning.set_operand(i, assign.result)

    def home(self, value: Value, known: dict[Value, str]) -> str | None:
        """Return the mesh on which a value without a mesh is, if it is on one.

        Args:
          value: what is asked for.
          known: the meshes of free values that were looked at before; gets those that are looked at now.
        """
        pending, free = [value], list[Value]()
        mesh = None
        while pending and mesh is None:
            value = pending.pop()
            producer = value.defining_op
            if isinstance(producer, UnassignOp):
                mesh = producer.mesh_type.mesh
            elif producer in self.label:
                mesh = self.flow.meshes[self.label[producer]]
            elif isinstance(producer, CallOp):
                callee = self.flow.graph.callees.get(producer.callee)
                if callee is not None:
                    inside = callee.body.terminator.operand(value.index)
                    pending.append(producer.operand(inside.index) if isinstance(inside, BlockArg) else inside)
            elif producer in self.flow.free and producer.num_operands:
                free.append(value)
                mesh = known.get(value) or next(iter(self.readers(value)), None)
                pending = list(reversed(producer.operands))  # it has a mesh: no other value is asked
        if mesh is None and free:
            mesh = self.flow.meshes[0]
        if mesh is not None:
            known.update(dict.fromkeys(free, mesh))
        return mesh

    # Ops.

    def close(self, function: FuncOp) -> None:
        """Make conditionals of what was opened."""
        if function in self.flow.opened:
            self.label.update(close_conditionals(function, self.label, self.flow.free))

    def keep_returned(self, function: FuncOp) -> None:
        """Have free ops whose results the program returns on one mesh each, besides where they are made for others.

        Results that are made of the same are made together then.  Where values of some microbatches are stacked, the
        program is so the same whether all microbatches are compiled or `mpmd-repeat-steady-state` adds most of them.
        """
        returning = function.body.terminator
        known: dict[Value, str] = {}
        copies: dict[Op, Op] = {}
        for i, value in enumerate(returning.operands):
            op = value.defining_op
            if op is None or op not in self.flow.free or not op.num_operands:
                continue
            mesh = self.home(value, known)
            if op not in copies and mesh is not None:
                copies[op] = function.body.insert_after(op, op.clone())
                self.label[copies[op]] = self.flow.mesh_number[mesh]
            returning.set_operand(i, copies[op].results[0])

    def group(self, function: FuncOp) -> None:
        """Put the ops of the program into fragments."""
        meshes, names = {}, self.flow.meshes
        for op in list(function.body):
            label = self.label.get(op)
            if label is not None and not self._wrapped(op, label):
                meshes[op] = names[label]
        group_ops(function, meshes, self.flow.free)

    def pin(self, function: FuncOp) -> None:
        """Assign what a callee makes and others read elsewhere, so that it is asked for there alone."""
        outside = self._outside(function)
        for op in list(function.body):
            label = self.label.get(op)
            if label is None or self._wrapped(op, label):
                continue
            for result in op.results:
                away = [use for use in result.uses if not self._is_at(use, label, outside)]
                if away or (not result.has_one_use and not is_cheap(op)):  # fragments that read it do not repeat it
                    self._pin(result, label, away)

    def _wrapped(self, op: Op, label: int) -> bool:
        """Put an op with effects into a fragment of its own; False if it has none."""
        if op.name in CHEAP or _may_move(op):
            return False
        wrap_in_fragment(op, self.flow.meshes[label], "infer_mesh_wrap_meshless_ops", self.diagnostics)
        op.erase()
        return True

    def _outside(self, function: FuncOp) -> list[set[int]]:
        """For each result of a callee the meshes on which it is read outside."""
        calls = self.flow.graph.calls[function]
        return [
            set().union(*(self.readers_of(call.results[i]) for call in calls)) for i in range(len(function.returned))
        ]

    def _is_at(self, use: Use, label: int, outside: Sequence[set[int]]) -> bool:
        """Return whether a user wants the value on that mesh and no other."""
        user = use.owner
        if user in self.label:
            return self.label[user] == label
        if isinstance(user, AssignOp):
            return self.flow.mesh_number[user.mesh_type.mesh] == label
        if user in self.flow.free:
            wanted = self.readers_of(user.result)
        elif isinstance(user, CallOp):
            callee = self.flow.graph.callees.get(user.callee)
            wanted = set() if callee is None else self.readers_of(callee.body.args[use.index])
        else:
            wanted = outside[use.index] if user.is_terminator else set()
        return wanted == {label}

    def _pin(self, value: Value, label: int, away: Sequence[Use]) -> None:
        maker = value.defining_op
        assert maker is not None and maker.block is not None
        target = cast(MeshTensorType, on_mesh(value.type, self.flow.meshes[label]))
        assign = make_assign(value, target, _PLACED, loc=maker.loc)
        unassign = make_unassign(assign.result, _PLACED, loc=maker.loc)
        for use in away:
            use.set(unassign.result)
        maker.block.insert_after(maker, assign)
        maker.block.insert_after(assign, unassign)


def _may_move(op: Op) -> bool:
    """Return whether it does not matter for its effects, if any, where the op is, and how often it is there."""
    return is_pure(op) and all(isinstance(value.type, TensorType) for value in (*op.operands, *op.results))


def _has_memory(arg: Value) -> bool:
    """Return whether a reader wants the argument in some memory, which mesh inference then gives it."""
    return any(isinstance(user, AssignOp) and user.mesh_type.memory_kind is not None for user in arg.users)
