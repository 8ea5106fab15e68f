"""`mpmd-merge-backward-with-forward` (ours)."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.fragment_info import (
    MergedPart,
    call_counter,
    has_remat,
    is_backward,
    is_forward,
    set_merged_parts,
    split_type,
    stages_consistent,
)
from mpmd_trace.passes.programs.merge_followers import MergeFollowers, Pair


class MergeBackwardWithForward(MergeFollowers):
    """Merge a backward fragment with the forward of another microbatch that directly follows it on its mesh.

    Under 1F1B, such pairs occur on every mesh but the last, between warm-up and drain. A step then launches fewer
    programs, and XLA may hide collectives of one half behind computations of the other (the "combined 1F1B" of
    Megatron-LM). Values that either half sends to another mesh are sent when both halves are done. Halves of a split
    backward are not merged, nor are different stages, nor pairs with ops that must run between them. The reference has
    no such pass.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 3 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"(1), "f"]> (%p)
            {mpmd.merged_call_counters = [0 : ui32, 3 : ui32]} (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %u : !t
          mpmd.return %1, %2 : !t, !t
        } : (!a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a
    """

    name = "mpmd-merge-backward-with-forward"
    summary = "merge a backward fragment with the next microbatch's forward that follows it"

    def merges(self, first: FragmentOp, second: FragmentOp) -> bool:
        if not (is_backward(first) and is_forward(second) and stages_consistent(first, second)):
            return False
        counters = call_counter(first), call_counter(second)
        if None in counters or counters[0] == counters[1]:
            return False
        return not any(split_type(op) or has_remat(op) for op in (first, second))

    def label(self, merged: FragmentOp, counters: Pair, phases: Pair) -> None:
        backward, forward = counters
        if backward is not None and forward is not None:
            set_merged_parts(merged, [MergedPart("B", backward, None), MergedPart("F", forward, None)])
