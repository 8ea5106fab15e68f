"""`mpmd-infer-mesh-rewrite-using-analysis`: every op into a fragment, mesh types for callees and calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, DenseArrayAttr, DictAttr
from mpmd_trace.ir.core import Block, Op, OpResult, Use, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, ForOp, FragmentOp, FuncOp, Module, make_assign, make_unassign
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.absorb_meshless import Absorber
from mpmd_trace.passes.import_.building_blocks import (
    assign_before,
    assign_operand,
    on_mesh,
    put_behind,
    wrap_in_fragment,
)
from mpmd_trace.passes.import_.mesh_flow import function_name, mesh_list, op_line
from mpmd_trace.passes.import_.mesh_sets import (
    EMPTY,
    MeshSets,
    clear_sets,
    is_meshless,
    names,
    pick,
    src_of_op,
    use_of_op,
    without_sets,
)
from mpmd_trace.passes.mesh_order import in_topology_order, sort_by_mesh_order

COPIES = "mpmd.copies"


@dataclasses.dataclass(frozen=True)
class InferMeshRewriteUsingAnalysis(Pass):
    """Move meshless ops into fragments, and let callees take and return mesh tensors, one copy per mesh.

    Callees come first. The results of a callee are assigned to every mesh on which they are needed; copies come behind
    the other results (`mpmd.copies` says where). Then ops are visited from the last to the first; at that point, all
    users of a meshless op are assigns:

    - if these feed only one fragment, the op moves to the front of its body;
    - if something else reads it, or more fragments than `max_clones` (and it has operands, and is not a pure op with
      one operand and result), it becomes a fragment on every mesh that needs it, inferred by
      `infer_mesh_wrap_meshless_ops`;
    - otherwise it is copied into every fragment.

    Operands of an op that moves are assigned in front of the fragment. Then arguments become mesh tensors, with copies
    behind the others; calls pass the copies.

    Before:

        func.func public @main(%x: !t) -> !a attributes {topology = #meshes} {
          %0 = stablehlo.sine %x : !t
          %1 = mpmd.assign %0 : (!t) -> !a
          %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %2 : !a
        }

    After:

        func.func public @main(%arg0: !t) -> !a attributes {topology = #meshes} {
          %0 = mpmd.assign %arg0 : (!t) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) (%arg1: !t) {
            %2 = stablehlo.sine %arg1 : !t
            %3 = stablehlo.negate %2 : !t
            mpmd.return %3 : !t
          } : (!a) -> !a
          return %1 : !a
        }
    """

    name = "mpmd-infer-mesh-rewrite-using-analysis"
    summary = "put meshless ops into fragments and type callees"
    max_clones: int = option(1, "copy an op into at most this many fragments, else give it its own")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        sets = MeshSets(module)
        for function in sorted(functions, key=lambda f: f.is_entry_point):  # callees first
            rewrite = _Rewrite(function, sets, self.max_clones, diagnostics)
            if not function.is_entry_point:
                rewrite.callee_results()
            rewrite.body(function.body)
            if not function.is_entry_point:
                rewrite.callee_arguments()
            rewrite.absorber.finish()
        for function in functions:
            function.refresh_type()
        return bool(functions)


class _Rewrite:
    """Rewrites one function."""

    def __init__(self, function: FuncOp, sets: MeshSets, max_clones: int, diagnostics: Diagnostics) -> None:
        assert function.topology is not None
        self.function = function
        self.topology = function.topology
        self.sets = sets
        self.max_clones = max_clones
        self.diagnostics = diagnostics
        self.absorber = Absorber()
        self.signatures: dict[FuncOp, _Signature] = {}

    def sorted_meshes(self, meshes: list[str]) -> list[str]:
        """Distinct meshes in pipeline order."""
        return sort_by_mesh_order(in_topology_order(meshes, self.topology), lambda m: m)

    # Callees.

    def callee_results(self) -> None:
        function, terminator = self.function, self.function.body.terminator
        uses = self.sets.boundary(function).result_use
        for i, value in enumerate(terminator.operands):
            if not isinstance(value.type, TensorType):
                continue
            meshes = list(names(uses[i]))
            if not meshes:
                possible = src_of_op(value.op) if isinstance(value, OpResult) else None
                chosen = None if possible is None else pick(possible)
                meshes = [chosen or min(self.topology.meshes, key=str.encode)]
            count = terminator.num_operands
            if len(meshes) > 1:
                copies = DenseArrayAttr.get(range(count, count + len(meshes) - 1))
                function.set_res_attr(i, COPIES, copies)
            for number, mesh in enumerate(meshes):
                assigned = assign_before(terminator, value, mesh)
                if number == 0:
                    terminator.set_operand(i, assigned)
                else:
                    terminator.append_operands([assigned])

    def callee_arguments(self) -> None:
        function, block = self.function, self.function.body
        last: Op | None = None
        for arg in list(block.args):
            type = arg.type
            if not isinstance(type, TensorType):
                continue
            groups: dict[str, list[Use]] = {}
            for use in arg.uses:
                target = self.absorber.assigned_type(use)
                if target is None:
                    raise self._still_used(use.owner, f"argument {arg.index} of @{function.sym_name}")
                groups.setdefault(target.mesh, []).append(use)
            if not groups:
                raise self.diagnostics.fatal(
                    function,
                    f"argument {arg.index} of @{function_name(function)} is not used, so that it has no "
                    "mesh; remove it (mpmd-erase-unused-callee-block-arguments does)",
                )
            meshes = self.sorted_meshes(list(groups))
            count = len(block.args)
            if len(meshes) > 1:
                copies = DenseArrayAttr.get(range(count, count + len(meshes) - 1))
                function.set_arg_attr(arg.index, COPIES, copies)
            for number, mesh in enumerate(meshes):
                target = cast(MeshTensorType, on_mesh(type, mesh))
                if number == 0:
                    arg.type = target
                    copy = arg
                else:
                    copy = block.add_arg(target, loc=arg.loc)
                last = put_behind(last, make_unassign(copy), block)
                for use in groups[mesh]:
                    use.set(last.result)

    # Bodies.

    def body(self, block: Block) -> None:
        for op in reversed(block):
            if isinstance(op, CallOp):
                self.call(op)
            elif isinstance(op, ForOp):
                self.loop(op)
            elif is_meshless(op):
                self.meshless(op)

    def meshless(self, op: Op) -> None:
        clear_sets(op)
        assigns: list[AssignOp] = []
        #: For each fragment the operands that read the op, by number, and which of its results.
        read: dict[FragmentOp, dict[int, int]] = {}
        tokens: list[Use] = []
        elsewhere = False
        for result in op.results:
            for use in result.uses:
                user = use.owner
                if isinstance(user, AssignOp):
                    assigns.append(user)
                    for inner in user.result.uses:
                        if isinstance(inner.owner, FragmentOp):
                            read.setdefault(inner.owner, {})[inner.index] = result.index
                        else:
                            elsewhere = True
                elif self.absorber.assigned_type(use) is not None:
                    read.setdefault(cast(FragmentOp, user), {})[use.index] = result.index
                elif isinstance(result.type, TensorType):
                    raise self._still_used(user, f"the result of {op_line(op)}")
                else:
                    tokens.append(use)
        most = max(self.max_clones, 1)  # into its only reader an op goes whatever it is
        if not read or elsewhere or (len(read) > most and op.num_operands and not _is_trivial(op)):
            self.wrap(op)
        else:
            for use in tokens:
                if isinstance(use.owner, FragmentOp) and use.owner in read:
                    read[use.owner][use.index] = cast(OpResult, use.value).index
            for fragment, operands in read.items():
                self.absorber.absorb(op, fragment, operands)
            for assign in assigns:
                assign.erase()
            op.erase()

    def wrap(self, op: Op) -> None:
        last: FragmentOp | None = None
        for result in op.results:
            self.absorber.settle(result)
        meshes = [user.mesh_type.mesh for user in op.users if isinstance(user, AssignOp)]
        for mesh in self.sorted_meshes(meshes):

            def on_this_mesh(user: Op, mesh: str = mesh) -> bool:
                return isinstance(user, AssignOp) and user.mesh_type.mesh == mesh

            last = wrap_in_fragment(op, mesh, "infer_mesh_wrap_meshless_ops", self.diagnostics, accept=on_this_mesh)
        if last is not None:
            for result, new in zip(op.results, last.results, strict=True):
                if not isinstance(new.type, MeshTensorType):  # a token follows the last copy
                    result.replace_all_uses_with(new)
        op.erase()

    def _still_used(self, user: Op, what: str) -> Exception:
        return self.diagnostics.fatal(
            user,
            f"{what} is used by {op_line(user)}, which has no mesh; run "
            "mpmd-infer-mesh-assign-mesh-func-leaves before this pass",
        )

    # Calls.

    def call(self, call: CallOp) -> None:
        callee = self.sets.callee(call)
        assert callee is not None and call.block is not None
        signature = self.signatures.get(callee)
        if signature is None:
            signature = self.signatures[callee] = _Signature(callee)
        around: list[Op] = []
        operands: list[Value | None] = [None] * len(signature.args)
        for use, positions in zip(call.operand_uses, signature.operands, strict=False):
            value = use.value
            if not isinstance(value.type, TensorType):
                operands[use.index] = value
                continue
            for position in positions:
                type = signature.args[position]
                if isinstance(type, MeshTensorType):
                    assign = make_assign(value, type)
                    around.append(assign)
                    operands[position] = assign.results[0]
                else:
                    operands[position] = value
        assert None not in operands, "every argument of the callee is fed"
        new = op_like(call, cast("list[Value]", operands), signature.results)
        around.append(new)
        for result in call.results:
            if isinstance(result.type, MeshTensorType):
                result.replace_all_uses_with(new.results[result.index])
                continue
            for use in result.uses:
                target = self.absorber.assigned_type(use)
                if target is None:
                    raise self._still_used(use.owner, f"result {result.index} of the {op_line(call)}")
                for position in signature.returned[result.index]:
                    if signature.results[position] is target:
                        unassign = make_unassign(new.results[position])
                        around.append(unassign)
                        use.set(unassign.results[0])
                        break
                else:
                    self.absorber.settle(result)
                    raise self._not_returned(cast(AssignOp, use.owner), result.index, callee)
        call.block.insert_all_before(call, around)
        call.erase()

    def _not_returned(self, assign: AssignOp, index: int, callee: FuncOp) -> Exception:
        target, name = assign.mesh_type, function_name(callee)
        if target.memory_kind is not None:
            why = "the result of a call cannot be assigned to a memory kind"
        else:
            why = "the analysis did not find out that it is needed there"
        return self.diagnostics.fatal(
            assign,
            f"result {index} of @{name} is needed as {target.text}, but @{name} does not return it so: "
            f"{why}. Pass the result through a named computation, and assign that",
        )

    # Loops.

    def loop(self, loop: ForOp) -> None:
        place_loop_results(loop, self.diagnostics)
        for op in reversed(loop.body.block):
            if isinstance(op, ForOp):
                raise self.diagnostics.fatal(
                    op, f"the loop {op_line(op)} is inside another loop; unroll the loops first"
                )
        self.body(loop.body.block)
        for value in (*loop.body.block.args, *loop.results):
            self.absorber.settle(value)
        finish_loop(loop, self.diagnostics)


class _Signature:
    """What calls of a callee take and give, once it has been rewritten."""

    def __init__(self, callee: FuncOp) -> None:
        self.args = [arg.type for arg in callee.body.args]
        self.results = [value.type for value in callee.returned]
        #: Where each operand and result of a call that has not been rewritten belongs: there, and as copies.
        self.operands = _positions(callee.arg_attrs)
        self.returned = _positions(callee.res_attrs)


def _positions(dicts: Sequence[DictAttr]) -> list[tuple[int, ...]]:
    copies = [entry.entries.get(COPIES) for entry in dicts]
    return [(i, *(entry.values if isinstance(entry, DenseArrayAttr) else ())) for i, entry in enumerate(copies)]


def _is_trivial(op: Op) -> bool:
    """Return whether copying the op costs nothing worth mentioning."""
    return op.num_operands <= 1 and len(op.results) == 1 and not op.regions and is_pure(op)


# Gives mesh types to the arguments, operands and results of an `mpmd.for`.


def place_loop_results(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Assign what the body yields to the mesh on which it is needed."""
    terminator = loop.body.block.terminator
    for i, value in enumerate(terminator.operands):
        if not isinstance(value.type, TensorType):
            continue
        destinations = use_of_op(value.op) if isinstance(value, OpResult) else EMPTY
        meshes = names(destinations)
        if len(meshes) != 1:
            raise diagnostics.fatal(
                loop,
                f"value {i} that the loop {op_line(loop)} carries is needed on {mesh_list(meshes)}, but a "
                "loop that is not unrolled keeps each value on one mesh; unroll the loop (unroll_factor) or "
                "compute the value in a named computation",
            )
        assign_operand(terminator, i, meshes[0])


def finish_loop(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Type the loop after its body has been rewritten."""
    _type_arguments(loop, diagnostics)
    for result, value in zip(loop.results, loop.body.block.terminator.operands, strict=True):
        result.type = value.type
    assert loop.block is not None
    for i, value in enumerate(loop.operands):
        target = loop.body.block.args[i].type
        if isinstance(value.type, TensorType) and isinstance(target, MeshTensorType):
            assign = make_assign(value, target)
            loop.block.insert_before(loop, assign)
            loop.set_operand(i, assign.result)
    behind: Op = loop
    for result in loop.results:
        if not isinstance(result.type, MeshTensorType):
            continue
        for user in result.users:
            if isinstance(user, AssignOp):
                unassign = make_unassign(result)
                behind = loop.block.insert_after(behind, unassign)
                user.set_operand(0, unassign.result)
    _drop_sets(loop)


def _type_arguments(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Put every argument of the body on the mesh of its users and of the value yielded for it."""
    block = loop.body.block
    yielded = block.terminator.operands
    last: Op | None = None
    for arg in block.args:
        if not isinstance(arg.type, TensorType):
            continue
        assigns = [user for user in arg.users if isinstance(user, AssignOp)]
        meshes = list(dict.fromkeys(a.mesh_type.mesh for a in assigns))
        after = yielded[arg.index].type if arg.index < len(yielded) else None
        if isinstance(after, MeshTensorType) and after.mesh not in meshes:
            meshes.append(after.mesh)
        if len(meshes) > 1:
            raise diagnostics.fatal(
                loop,
                f"value {arg.index} that the loop {op_line(loop)} carries is needed on "
                f"{mesh_list(meshes)}, but a loop that is not unrolled keeps each value on one mesh; "
                "unroll the loop (unroll_factor)",
            )
        if not meshes:
            continue
        arg.type = on_mesh(arg.type, meshes[0])
        if not assigns:
            continue
        last = put_behind(last, make_unassign(arg), block)
        for assign in assigns:
            assign.set_operand(0, last.result)


def _drop_sets(loop: ForOp) -> None:
    attributes = loop.attrs.get("arg_attrs")
    if not isinstance(attributes, ArrayAttr):
        return
    cleaned = [without_sets(d) for d in attributes.elements if isinstance(d, DictAttr)]
    kept = [d for d in cleaned if d.entries]
    if kept:
        loop.attrs["arg_attrs"] = ArrayAttr.get(kept)
    else:
        del loop.attrs["arg_attrs"]
