"""The rewrites of `mpmd-infer-mesh-finalize`: assigns become transfers, broadcasts and reduces are lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import BlockArg, Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import (
    AssignOp,
    CallOp,
    FragmentOp,
    FuncOp,
    ReduceOp,
    TransferOp,
    UnassignOp,
    local_type,
    make_fragment,
    make_transfer,
)
from mpmd_trace.ir.semantics import REDUCTION_OPS
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.common.walks import enclosing_function
from mpmd_trace.passes.greedy import Rewriter
from mpmd_trace.passes.import_.building_blocks import INFERRED_BY, chain_of_transfers, cross_mesh_assigns, interned_body
from mpmd_trace.passes.import_.mesh_flow import op_line
from mpmd_trace.passes.import_.mesh_sets import names, use_of_op
from mpmd_trace.passes.mesh_order import in_topology_order

#: Whether a value that is unassigned and assigned on one mesh is wanted in another memory.
ChangesMemory = Callable[[UnassignOp, AssignOp], bool]


class AssignOfUnassign:
    """The value itself on its own mesh, else a transfer that exists, else new ones where they are allowed."""

    op_name: str | None = "mpmd.assign"

    def __init__(self, infer_transfers: bool, changes_memory: ChangesMemory) -> None:
        self.infer_transfers = infer_transfers
        self.changes_memory = changes_memory

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, AssignOp)
        unassign = op.operand(0).defining_op
        if not isinstance(unassign, UnassignOp):
            return False
        value = unassign.operand(0)
        if unassign.mesh_type.mesh == op.mesh_type.mesh and not self.changes_memory(unassign, op):
            rewriter.replace_op(op, [value])
            return True
        transfer = _transfer_to(value, op)
        if transfer is not None:
            assert transfer.block is not None
            here = op.ancestor_in(transfer.block)
            assert here is not None
            if here.is_before(transfer):
                rewriter.move_before(transfer, here)
            rewriter.replace_op(op, transfer.results)
            return True
        if unassign.mesh_type.mesh == op.mesh_type.mesh:
            transfer = make_transfer(value, op.mesh_type)
            rewriter.insert_before(op, transfer)
            rewriter.replace_op(op, transfer.results)
            return True
        if self.infer_transfers or _is_input(value):
            chain_of_transfers(cross_mesh_assigns(unassign), value, rewriter)
            return True
        return False


def changes_memory(unassign: UnassignOp, assign: AssignOp) -> bool:
    """Return whether a call wants the value in another memory of its mesh, whose callee says in which one, by type."""
    if unassign.mesh_type.memory_kind == assign.mesh_type.memory_kind:
        return False
    return any(isinstance(user, CallOp) for user in assign.results[0].users)


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


class LowerBroadcast:
    """A broadcast is a chain of transfers through all meshes that ask for it."""

    op_name: str | None = "mpmd.broadcast"

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        unassign = op.operand(0).defining_op
        if not isinstance(unassign, UnassignOp):
            raise self.diagnostics.fatal(
                op,
                f"nothing says on which mesh the operand of {op_line(op)} is; run "
                "mpmd-infer-mesh-assign-mesh-func-leaves before this pass",
            )
        assigns = [user for user in op.users if isinstance(user, AssignOp)]
        if not assigns:
            return False
        chain_of_transfers(assigns, unassign.operand(0), rewriter)
        return True


class LowerReduce:
    """Values of one mesh are reduced there; the partial results are transferred and reduced where needed.

    %r = mpmd.reduce<add> %a, %b, %c     =>   %0 = mpmd.fragment<mesh="p0", ...> (%a, %b)   // add
    (a, b on p0, c on p1; needed on p1)       %1 = mpmd.transfer %0 : p0 -> p1
                                              %r = mpmd.fragment<mesh="p1", ...> (%1, %c)   // add
    """

    op_name: str | None = "mpmd.reduce"

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, ReduceOp)
        groups: dict[str, list[Value]] = {}
        for i, operand in enumerate(op.operands):
            unassign = operand.defining_op
            if not isinstance(unassign, UnassignOp):
                raise self.diagnostics.fatal(
                    op,
                    f"nothing says on which mesh operand {i} of {op_line(op)} is; run "
                    "mpmd-infer-mesh-assign-mesh-func-leaves before this pass",
                )
            groups.setdefault(unassign.mesh_type.mesh, []).append(unassign.operand(0))
        for user in op.users:
            if not isinstance(user, AssignOp):
                raise self.diagnostics.fatal(
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
