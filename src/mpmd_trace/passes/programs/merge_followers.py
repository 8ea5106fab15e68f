"""`mpmd-merge-followers` (ours), and how two fragments that follow each other become one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.fragment_groups import merge_fragments
from mpmd_trace.passes.fragment_info import call_counter, fragment_transpose_count, set_call_counter, stages_consistent

#: Of the first fragment, and of the second.
Pair = tuple[int | None, int | None]


@dataclasses.dataclass(frozen=True)
class MergeFollowers(FunctionPass):
    """A named fragment and the next one on its mesh are one where `may_merge` says so and nothing has to run between.

        %1 = mpmd.fragment<mesh="m", origin=["f"]> (%a) {call_counter = 0 : ui32} (%x) { ... }
        %2 = mpmd.fragment<mesh="m", origin=["g"]> (%b) {call_counter = 0 : ui32} (%x) { ... }
    becomes
        %1:2 = mpmd.fragment<mesh="m", origin=["f", "g"]> (%a, %b) {call_counter = 0 : ui32} (%x, %y) { ... }

    What was merged may be merged again with what follows it.  The stage and the number of the microbatch stay where
    both have the same, and the stage only where both are of one phase.
    """

    name = "mpmd-merge-followers"
    summary = "merge fragments that follow each other, where a function says so"
    mpmd_only = True
    #: Whether a fragment and the next one on its mesh may become one.
    may_merge: Callable[[FragmentOp, FragmentOp], bool] | None = None

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        order: dict[Op, int] = {op: i for i, op in enumerate(function.body)}
        changed = False
        last: dict[str, FragmentOp] = {}
        for op in list(order):
            if not isinstance(op, FragmentOp):
                continue
            before, current = last.get(op.mesh), op
            if before is not None and self.merges(before, op):
                counters = call_counter(before), call_counter(op)
                phases = fragment_transpose_count(before), fragment_transpose_count(op)
                merged = merge_in_place(before, op, order)
                if merged is not None:
                    current, changed = merged, True
                    self.label(merged, counters, phases)
            last[op.mesh] = current
        return changed

    def label(self, merged: FragmentOp, counters: Pair, phases: Pair) -> None:
        """Say which microbatch and stage the fragment is of that was made of two with these microbatches and phases."""
        if counters[0] == counters[1]:
            set_call_counter(merged, counters[0])
        if counters[0] != counters[1] or phases[0] is None or phases[0] != phases[1]:
            merged.stage = None

    def merges(self, first: FragmentOp, second: FragmentOp) -> bool:
        """Return whether a fragment and the next one on its mesh become one, where nothing has to run between."""
        if self.may_merge is None or not (first.is_user and second.is_user):
            return False
        return stages_consistent(first, second) and self.may_merge(first, second)


def merge_in_place(first: FragmentOp, second: FragmentOp, order: dict[Op, int]) -> FragmentOp | None:
    """Merge the two where the second is, or else where the first is; None where neither is possible.

    `order` are the places of the ops of the block; that of the result is added.
    """
    start, end = order[first], order[second]
    if all(order.get(user, -1) >= end for user in first.users):
        merged = merge_fragments(first, second)
        order[merged] = end
    elif all(
        definer is None or definer is first or order[definer] < start
        for definer in [value.defining_op for value in second.operands]
    ):
        place = first.next_op
        merged = merge_fragments(first, second)
        assert place is not None
        if place is not second:
            merged.move_before(place)
        order[merged] = start
    else:
        return None
    return merged
