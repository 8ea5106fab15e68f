"""`mpmd-introduce-transfers`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, FuncOp, Module, TransferOp, UnassignOp, make_assign, make_unassign
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.greedy import Pattern, Rewriter, apply_greedily, rewrites
from mpmd_trace.passes.import_.building_blocks import (
    calls_of,
    chain_of_transfers,
    cross_mesh_assigns,
    redirect_other_uses,
    wrap_in_fragment,
)
from mpmd_trace.passes.stablehlo.rules import New, Rule, made_by


@dataclasses.dataclass(frozen=True)
class IntroduceTransfers(Pass):
    """Add transfers where a value of one mesh is assigned to another.

    First, in each callee, an argument that all calls unassign from one mesh, and that the callee assigns, is assigned
    to that mesh at the start of the callee. Then assigns of unassigned values are rewritten greedily:

    - if the type does not change, the assign is replaced by the value; if a transfer of the value to that type exists,
      it is used;
    - a value that several meshes need is sent from one to the next in the order of meshes, with all transfers at the
      place of the first;
    - a sum (or sum of sums, used once) of unassigned values becomes a fragment where it is needed, inferred by
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
        return apply_greedily(module, [*DIRECT_RULES, _sum_in_fragment(diagnostics)]).changed or changed


# Step 1: callees learn the meshes that all callers agree on.


def _push_unassigns(callee: FuncOp, module: Module, functions: Mapping[str, FuncOp]) -> bool:
    """Assign arguments that all calls unassign from one mesh to it, for the assigns in the callee to see."""
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


def _source(value: Value) -> Value:
    """Return the mesh tensor that an unassigned value is."""
    return cast(UnassignOp, value.defining_op).operand(0)


def _own_value(op: Op, value: Value) -> Value | None:
    """Return the mesh tensor itself if it has the type that is assigned."""
    return source if (source := _source(value)).type is op.result.type else None


def _existing_transfer(op: Op, value: Value) -> Value | None:
    """Return the newest transfer of the value to exactly this type, if it leaves the mesh or the memory."""
    for user in _source(value).users:
        if isinstance(user, TransferOp) and user.target_type is op.result.type and not user.is_intra_mesh:
            if user.block is not op.block:
                return None
            if op.is_before(user):
                user.move_before(op)
            return user.result
    return None


@rewrites("mpmd.assign")
def _chain_of_transfers(op: Op, rewriter: Rewriter) -> bool:
    """Send a value that several meshes want from one to the next."""
    unassign = op.operand(0).defining_op
    if not isinstance(unassign, UnassignOp) or len(crossing := cross_mesh_assigns(unassign)) < 2:
        return False
    chain_of_transfers(crossing, unassign.operand(0), rewriter)
    return True


_UNASSIGNED = (made_by("mpmd.unassign"),)

#: An assign of a value that another mesh unassigns is the value, or a transfer of it.
DIRECT_RULES: list[Pattern] = [
    Rule("mpmd.assign", _UNASSIGNED, _own_value),
    Rule("mpmd.assign", _UNASSIGNED, _existing_transfer),
    _chain_of_transfers,
    Rule("mpmd.assign", _UNASSIGNED, lambda op, value: New("mpmd.transfer", [_source(value)], keep_attrs=False)),
]


def _sum_in_fragment(diagnostics: Diagnostics) -> Pattern:
    """Return a rewrite that puts an assigned sum of unassigned values into a fragment."""

    @rewrites("mpmd.assign")
    def rewrite(op: Op, rewriter: Rewriter) -> bool:
        total = op.operand(0).defining_op
        if total is None or not _is_sum_of_unassigns(total):
            return False
        mesh = cast(AssignOp, op).mesh_type.mesh
        wrap_in_fragment(total, mesh, "introduce_transfers", diagnostics, rewriter=rewriter)
        return True

    return rewrite


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
