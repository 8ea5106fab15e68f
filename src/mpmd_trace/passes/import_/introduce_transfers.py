"""`mpmd-introduce-transfers`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import (
    AssignOp,
    CallOp,
    FuncOp,
    Module,
    TransferOp,
    UnassignOp,
    make_assign,
    make_transfer,
    make_unassign,
)
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.greedy import Pattern, Rewriter, apply_greedily
from mpmd_trace.passes.import_.building_blocks import (
    calls_of,
    chain_of_transfers,
    cross_mesh_assigns,
    redirect_other_uses,
    wrap_in_fragment,
)


@dataclasses.dataclass(frozen=True)
class IntroduceTransfers(Pass):
    """Where the user moves a value from mesh to mesh, there is a transfer.

    First, callee by callee: an argument that all calls unassign from one mesh, and that the callee assigns, is
    assigned to that mesh at the start of the callee.  Then greedy rewriting of assigns of unassigned values:

    - on the type it comes from, the assign is that value; where a transfer of the value to the wanted type exists, it
      is used;
    - a value that several meshes want goes from one to the next in the order of meshes, with all transfers where the
      first is needed;
    - a sum (or sum of sums, used once) of unassigned values is a fragment where it is wanted, inferred by
      `introduce_transfers`.

    Before:

        %0 = mpmd.unassign %p : (!a) -> !t
        %1 = mpmd.assign %0 : (!t) -> !b
        %2 = mpmd.unassign %q : (!b) -> !t
        %3 = stablehlo.add %0, %2 : !t
        %4 = mpmd.assign %3 : (!t) -> !a
        return %1, %4 : !b, !a

    After:

        %0 = mpmd.transfer %p : (!a) -> !b
        %1 = mpmd.transfer %q : (!b) -> !a
        %2 = mpmd.fragment<mesh="a", origin=[]> (%p, %1) {mpmd.inferred_by = ["introduce_transfers"]}
            (%u: !t, %v: !t) {
          %3 = stablehlo.add %u, %v : !t
          mpmd.return %3 : !t
        } : (!a, !a) -> !a
        return %0, %2 : !b, !a
    """

    name = "mpmd-introduce-transfers"
    summary = "turn assignments of a value to another mesh into transfers"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        functions = {f.sym_name: f for f in module.functions}
        changed = False
        for callee in module.mpmd_functions:
            if not callee.is_entry_point and not callee.is_declaration:
                changed = _push_unassigns(callee, module, functions) or changed
        patterns: list[Pattern] = [AssignOfUnassign(), _AssignOfSum(diagnostics)]
        return apply_greedily(module, patterns).changed or changed


# Step 1: callees learn the meshes that all callers agree on.


def _push_unassigns(callee: FuncOp, module: Module, functions: Mapping[str, FuncOp]) -> bool:
    changed = False
    calls = calls_of(module, callee.sym_name)
    for arg in callee.body.args if calls else ():
        unassigns = [_unassign_behind(call.operand(arg.index), functions) for call in calls]
        first = unassigns[0]
        if (
            first is None
            or any(u is None or u.mesh_type.mesh != first.mesh_type.mesh for u in unassigns)
            or not any(isinstance(user, AssignOp) for user in arg.users)
        ):
            continue
        assign = make_assign(arg, first.mesh_type)
        unassign = make_unassign(assign.result, loc=arg.location)
        callee.body.insert_front(unassign)
        callee.body.insert_before(unassign, assign)
        redirect_other_uses(arg, unassign, keep=assign)
        changed = True
    return changed


def _unassign_behind(value: Value, functions: Mapping[str, FuncOp]) -> UnassignOp | None:
    """Return the unassign that gives the value, perhaps as the result of a call."""
    producer = value.defining_op
    if isinstance(producer, CallOp):
        callee = functions.get(producer.callee)
        if callee is None or callee.is_declaration:
            return None
        producer = callee.body.terminator.operand(value.index).defining_op
    return producer if isinstance(producer, UnassignOp) else None


# Step 2: assigns of unassigns become transfers.


def existing_transfer(value: Value, assign: AssignOp) -> TransferOp | None:
    """Return the newest transfer of `value` to exactly the type of `assign`, if it leaves the mesh or the memory."""
    for user in value.users:
        if isinstance(user, TransferOp) and user.target_type is assign.mesh_type and not user.is_intra_mesh:
            return user
    return None


class AssignOfUnassign:
    """An assign of a value that another mesh unassigns is the value, or a transfer of it."""

    op_name: str | None = "mpmd.assign"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, AssignOp)
        unassign = op.operand(0).defining_op
        if not isinstance(unassign, UnassignOp):
            return False
        value = unassign.operand(0)
        if value.type is op.mesh_type:
            rewriter.replace_op(op, [value])
            return True
        transfer = existing_transfer(value, op)
        if transfer is not None and transfer.block is op.block:
            if op.is_before(transfer):
                transfer.move_before(op)
            rewriter.replace_op(op, transfer.results)
            return True
        crossing = cross_mesh_assigns(unassign)
        if len(crossing) > 1:
            chain_of_transfers(crossing, value, rewriter)
            return True
        transfer = make_transfer(value, op.mesh_type, loc=op.loc)
        rewriter.insert_before(op, transfer)
        rewriter.replace_op(op, transfer.results)
        return True


class _AssignOfSum:
    op_name: str | None = "mpmd.assign"

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, AssignOp)
        total = op.operand(0).defining_op
        if total is None or not _is_sum_of_unassigns(total):
            return False
        mesh = op.mesh_type.mesh
        wrap_in_fragment(total, mesh, "introduce_transfers", self.diagnostics, rewriter=rewriter)
        return True


def _is_sum_of_unassigns(op: Op) -> bool:
    """Return whether the op is an add, used once, of unassigns and of such adds."""
    pending = [op]
    while pending:
        add = pending.pop()
        if add.name != "stablehlo.add" or not add.result.has_one_use:
            return False
        for value in add.operands:
            producer = value.defining_op
            if producer is None:
                return False
            if not isinstance(producer, UnassignOp):
                pending.append(producer)
    return True
