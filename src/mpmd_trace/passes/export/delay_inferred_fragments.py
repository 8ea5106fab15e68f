"""`mpmd-delay-inferred-fragments`: inferred work is done when it is needed."""

from __future__ import annotations

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass

#: The place of an op: a path of numbers, because ops that moved are placed relative to the op they precede.
_Place = tuple[float, ...]
_AT_ANCHOR = float("inf")


class DelayInferredFragments(FunctionPass):
    """Move inferred fragments directly in front of their first user.

    Ops are visited from the last to the first, so among those with the same first user, the one that came later in the
    program comes first.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %2 = mpmd.fragment<mesh="a", origin=["g"]> (%0) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1, %2 : !a, !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %3 = stablehlo.sine %u : !t
          mpmd.return %3 : !t
        } : (!a) -> !a
        %2 = mpmd.fragment<mesh="a", origin=["g"]> (%1) (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!a) -> !a
        return %0, %2 : !a, !a
    """

    name = "mpmd-delay-inferred-fragments"
    summary = "move inferred fragments to their first users"
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        block = function.body
        place: dict[Op, _Place] = {op: (i, _AT_ANCHOR) for i, op in enumerate(block)}
        waiting: dict[Op, int] = {}
        changed = False
        for op in reversed(block):
            if not isinstance(op, FragmentOp) or op.is_user or not op.has_uses:
                continue
            users = [u for user in op.users if (u := user.ancestor_in(block)) is not None]
            first = min(users, key=place.__getitem__)
            # Everything placed before `first` so far is farther from it than this op will be.
            number = waiting.get(first, 0)
            waiting[first] = number + 1
            place[op] = (*place[first][:-1], number, _AT_ANCHOR)
            if op.next_op is not first:
                op.move_before(first)
                changed = True
        return changed
