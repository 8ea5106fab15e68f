"""`mpmd-infer-mesh-finalize`: the end of mesh inference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.bodies import BodyBuilder, map_ops
from mpmd_trace.ir.core import BlockArg, Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import (
    AssignOp,
    CallOp,
    FragmentOp,
    FuncOp,
    Module,
    ReduceOp,
    TransferOp,
    UnassignOp,
    local_type,
    make_fragment,
    make_transfer,
    make_unassign,
)
from mpmd_trace.ir.semantics import REDUCTION_OPS
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.common.walks import enclosing_function
from mpmd_trace.passes.greedy import OpPattern, Rewriter, apply_greedily
from mpmd_trace.passes.import_.building_blocks import (
    INFERRED_BY,
    chain_of_transfers,
    cross_mesh_assigns,
    interned_body,
    on_mesh,
    put_behind,
)
from mpmd_trace.passes.import_.mesh_flow import LET_MOVE, function_name, op_line, place, ways_out
from mpmd_trace.passes.import_.mesh_sets import (
    SRC_SET,
    USE_SET,
    clear_sets,
    is_meshless,
    names,
    use_of_op,
    without_sets,
)
from mpmd_trace.passes.mesh_order import in_topology_order


def _transfer_to(value: Value, assign: AssignOp) -> TransferOp | None:
    """Return the newest transfer of `value` to the type of `assign` that `assign` could use."""
    for user in value.users:
        if (
            isinstance(user, TransferOp)
            and user.target_type is assign.mesh_type
            and user.block is not None
            and assign.ancestor_in(user.block) is not None
        ):
            return user
    return None


def _is_input(value: Value) -> bool:
    """Return whether the value is an argument of an entry point."""
    if not isinstance(value, BlockArg):
        return False
    function = value.owner.parent_op
    return isinstance(function, FuncOp) and function.is_entry_point


def _lower_broadcast(diagnostics: Diagnostics, op: Op, rewriter: Rewriter) -> bool:
    """Make a broadcast a chain of transfers through all meshes that ask for it."""
    unassign = op.operand(0).defining_op
    if not isinstance(unassign, UnassignOp):
        raise diagnostics.fatal(
            op,
            f"nothing says on which mesh the operand of {op_line(op)} is; run "
            "mpmd-infer-mesh-assign-mesh-func-leaves before this pass",
        )
    assigns = [user for user in op.users if isinstance(user, AssignOp)]
    chain_of_transfers(assigns, unassign.operand(0), rewriter)
    return bool(assigns)


def _lower_reduce(diagnostics: Diagnostics, op: Op, rewriter: Rewriter) -> bool:
    """Reduce values of one mesh there; the partial results are transferred and reduced where needed.

    %r = mpmd.reduce<add> %a, %b, %c     =>   %0 = mpmd.fragment<mesh="p0", ...> (%a, %b)   // add
    (a, b on p0, c on p1; needed on p1)       %1 = mpmd.transfer %0 : p0 -> p1
                                              %r = mpmd.fragment<mesh="p1", ...> (%1, %c)   // add
    """
    assert isinstance(op, ReduceOp)
    groups: dict[str, list[Value]] = {}
    for i, operand in enumerate(op.operands):
        unassign = operand.defining_op
        if not isinstance(unassign, UnassignOp):
            raise diagnostics.fatal(
                op,
                f"nothing says on which mesh operand {i} of {op_line(op)} is; run "
                "mpmd-infer-mesh-assign-mesh-func-leaves before this pass",
            )
        groups.setdefault(unassign.mesh_type.mesh, []).append(unassign.operand(0))
    for user in op.users:
        if not isinstance(user, AssignOp):
            raise diagnostics.fatal(
                user,
                f"the reduction {op_line(op)} is used by {op_line(user)}, which has no mesh; run "
                "mpmd-infer-mesh-rewrite-using-analysis before this pass",
            )
    wanted: dict[str, list[AssignOp]] = {mesh: [] for mesh in names(use_of_op(op))}
    for user in op.users:
        if isinstance(user, AssignOp):
            wanted.setdefault(user.mesh_type.mesh, []).append(user)
    behind: Op = op

    def add(new: Op) -> Value:
        nonlocal behind
        behind = rewriter.insert_after(behind, new)
        return new.results[0]

    def combined(mesh: str, values: Sequence[Value], type: Type) -> FragmentOp:
        return make_fragment(
            mesh,
            values,
            [type],
            _fold(op.kind, [v.type for v in values]),
            attrs={INFERRED_BY: ArrayAttr.get([StringAttr.get("infer_mesh_convert_reduce_ops")])},
            loc=op.loc,
        )

    partial: list[Value] = []
    for mesh in in_topology_order(groups, enclosing_function(op).topology):
        values = groups[mesh]
        if len(values) == 1:
            partial.append(values[0])
        else:
            partial.append(add(combined(mesh, values, values[0].type)))
    for mesh, assigns in wanted.items():
        if not assigns:  # what needed it there has been removed as dead code
            continue
        target: MeshTensorType = assigns[0].mesh_type
        arrived = [v if v.type is target else add(make_transfer(v, target)) for v in partial]
        result = add(combined(mesh, arrived, target))
        for assign in assigns:
            rewriter.replace_op(assign, [result])
    return True


def _fold(kind: str, types: Sequence[Type]) -> Region:
    """Return a body that reduces its arguments from left to right."""
    builder = BodyBuilder()
    args = [builder.arg(local_type(t)) for t in types]
    total = args[0]
    for arg in args[1:]:
        total = builder.op(REDUCTION_OPS[kind], [total, arg], [total.type]).results[0]
    return interned_body(builder.finish([total]))


@dataclasses.dataclass(frozen=True)
class InferMeshFinalize(Pass):
    """Put every value of an MPMD function on a mesh: replace assigns, broadcasts, reduces and meshless ops.

    Arguments of entry points come first: each is on the mesh with the smallest name among those that need it, in the
    memory that all of them require. Then assigns of unassigned values are rewritten greedily with region clean-up, as
    in `mpmd-introduce-transfers`; transfers to other meshes are made for arguments, and with `infer_transfers` for all
    values. A broadcast becomes a chain of transfers. A reduce becomes a fragment for the values of each mesh,
    transfers, and a fragment on each mesh that needs the result (inferred by `infer_mesh_convert_reduce_ops`). If a
    value then still has no mesh, this is reported, and the pass fails.

    Before:

        func.func public @main(%x: !t) -> (!a, !b) attributes {topology = #meshes} {
          %0 = mpmd.assign %x : (!t) -> !a
          %1 = mpmd.assign %x : (!t) -> !b
          return %0, %1 : !a, !b
        }

    After:

        func.func public @main(%arg0: !a) -> (!a, !b) attributes {topology = #meshes} {
          %0 = mpmd.transfer %arg0 : (!a) -> !b
          return %arg0, %0 : !a, !b
        }
    """

    name = "mpmd-infer-mesh-finalize"
    summary = "remove all assigns and unassigns and check that everything has a mesh"
    infer_transfers: bool = option(False, "transfer a value to every mesh that asks for it")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        for function in functions:
            if function.is_entry_point and not _type_arguments(function, diagnostics):
                return True
        patterns = [
            OpPattern("mpmd.assign", self._assign_of_unassign),
            OpPattern("mpmd.broadcast", functools.partial(_lower_broadcast, diagnostics)),
            OpPattern("mpmd.reduce", functools.partial(_lower_reduce, diagnostics)),
        ]
        if not apply_greedily(module, patterns, region_dce=True).converged:
            raise diagnostics.fatal(None, f"{self.name} did not come to an end; please report this program")
        for function in functions:
            function.refresh_type()
        self.finish(functions)
        for function in functions:
            if not _verify(function, diagnostics):
                diagnostics.fail()
            _clear_boundary(function)
        return True

    def _assign_of_unassign(self, op: Op, rewriter: Rewriter) -> bool:
        """Use the value itself on its own mesh, else a transfer that exists, else new ones where they are allowed."""
        assert isinstance(op, AssignOp)
        unassign = op.operand(0).defining_op
        if not isinstance(unassign, UnassignOp):
            return False
        value = unassign.operand(0)
        is_here = unassign.mesh_type.mesh == op.mesh_type.mesh
        if is_here and not self.changes_memory(unassign, op):
            rewriter.replace_op(op, [value])
        elif (transfer := _transfer_to(value, op)) is not None:
            assert transfer.block is not None
            here = op.ancestor_in(transfer.block)
            assert here is not None
            if here.is_before(transfer):
                rewriter.move_before(transfer, here)
            rewriter.replace_op(op, transfer.results)
        elif is_here:
            transfer = make_transfer(value, op.mesh_type)
            rewriter.insert_before(op, transfer)
            rewriter.replace_op(op, transfer.results)
        elif self.infer_transfers or _is_input(value):
            chain_of_transfers(cross_mesh_assigns(unassign), value, rewriter)
        else:
            return False
        return True

    def changes_memory(self, unassign: UnassignOp, assign: AssignOp) -> bool:
        """Return whether a value that is unassigned and assigned on one mesh is wanted in another memory.

        This is so if a call wants it: its callee says in which one, by type.
        """
        if unassign.mesh_type.memory_kind == assign.mesh_type.memory_kind:
            return False
        return any(isinstance(user, CallOp) for user in assign.results[0].users)

    def finish(self, functions: Sequence[FuncOp]) -> None:
        """Do what is left, once all values have their types."""


# Entry points.


def _type_arguments(function: FuncOp, diagnostics: Diagnostics) -> bool:
    """Put each argument on the smallest of the meshes that ask for it; says whether that was possible."""
    name = function_name(function)
    last: Op | None = None
    for arg in function.body.args:
        if isinstance(arg.type, MeshTensorType):
            continue
        users = arg.users
        if not users or not all(isinstance(u, AssignOp) for u in users):
            other = next((u for u in users if not isinstance(u, AssignOp)), None)
            why = "is not used" if other is None else f"is used by {op_line(other)}"
            raise diagnostics.fatal(
                other or function,
                f"input {arg.index} of @{name} {why}, so that it has no mesh; run "
                "mpmd-infer-mesh-assign-mesh-func-leaves and -rewrite-using-analysis before this pass",
            )
        types = [cast(AssignOp, u).mesh_type for u in users]
        kinds = list(dict.fromkeys(t.memory_kind for t in types))
        if len(kinds) > 1:
            shown = " and ".join(sorted("no memory kind" if k is None else f"'{k}'" for k in kinds))
            diagnostics.refuse(
                function,
                f"input {arg.index} of @{name} is assigned to different memory kinds: {shown}; write the "
                "same kind (MESH#KIND) in every assignment that uses it",
            )
            return False
        mesh = min((t.mesh for t in types), key=str.encode)
        arg.type = on_mesh(arg.type, mesh, kinds[0])
        last = put_behind(last, make_unassign(arg), function.body)
        arg.replace_all_uses_with(last.result)  # its own use goes along, to the end of the list
        last.set_operand(0, arg)
    return True


# Checks.


def _verify(function: FuncOp, diagnostics: Diagnostics) -> bool:
    """Report everything that is without a mesh; remove left-over mesh sets on the way."""
    before = len(diagnostics.errors)
    name = function_name(function)
    for what, types in (("input", function.type.inputs), ("output", function.type.results)):
        for i, type in enumerate(types):
            if not isinstance(type, MeshTensorType):
                diagnostics.error(
                    function,
                    f"{what} {i} of @{name} has the type {type.text} and is on no mesh; every {what} must be on one",
                )
    _check(function.regions[0], diagnostics)
    return len(diagnostics.errors) == before


def _check(region: Region, diagnostics: Diagnostics) -> None:
    for block in region.blocks:
        for op in block:
            if isinstance(op, FragmentOp):  # its own attributes stay, as in the reference
                op.body = _without_sets(op.body)
                continue
            for nested in op.regions:
                _check(nested, diagnostics)
            if not region.frozen:
                clear_sets(op)
            if op.name in ("mpmd.assign", "mpmd.unassign", "mpmd.broadcast"):
                diagnostics.error(op, _left_over(op))
            elif is_meshless(op):
                diagnostics.error(op, f"{op_line(op)} is in no fragment and so on no mesh after mesh inference")


def _left_over(op: Op) -> str:
    """Why an assign, unassign or broadcast is left, and what to do about it."""
    if op.name == "mpmd.broadcast":
        return f"{op_line(op)} could not be resolved: nothing says on which mesh its operand is"
    if isinstance(op, UnassignOp):
        users = [user for user in op.users if not isinstance(user, AssignOp)]
        text = f'a value on mesh "{op.mesh_type.mesh}" is used on another mesh, or where no mesh is known'
    elif isinstance(op, AssignOp):
        users = op.users
        text = f'a value is needed on mesh "{op.mesh_type.mesh}", but it is not there'
    else:
        users, text = [], f"{op_line(op)} is left"
    ways = ways_out("name the value (named tensor) and assign the name to the mesh where it is needed", LET_MOVE)
    return "\n".join([text, *(f"  used by {_user(user)}" for user in dict.fromkeys(users)), *ways])


def _user(op: Op) -> str:
    if isinstance(op, FragmentOp) and op.origin:
        return f"named computation {op.origin[0].short}{place(op.loc)}"
    return op_line(op)


def _without_sets(body: Region) -> Region:
    """Return the body without mesh sets; the same object when there are none."""

    def strip(copy: Region) -> bool:
        for op in copy.walk():
            clear_sets(op)
        return True

    return map_ops(body, "without mesh sets", strip, only=lambda op: USE_SET in op.attrs or SRC_SET in op.attrs)


def _clear_boundary(function: FuncOp) -> None:
    function.set_all_arg_attrs([without_sets(d) for d in function.arg_attrs])
    function.set_all_res_attrs([without_sets(d) for d in function.res_attrs])
