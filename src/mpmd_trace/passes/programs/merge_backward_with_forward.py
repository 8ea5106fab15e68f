"""`mpmd-merge-backward-with-forward` (ours)."""

from __future__ import annotations

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.fragment_info import (
    call_counter,
    has_remat,
    is_backward,
    is_forward,
    set_merged_call_counters,
    split_type,
    stages_consistent,
)
from mpmd_trace.passes.programs.merge_followers import merge_in_place


class MergeBackwardWithForward(FunctionPass):
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

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        order: dict[Op, int] = {op: i for i, op in enumerate(function.body)}
        changed = False
        last: dict[str, FragmentOp] = {}
        for op in list(order):
            if isinstance(op, FragmentOp):
                before = last.get(op.mesh)
                counters = None if before is None else _counters(before, op)
                if before is not None and counters is not None:
                    merged = merge_in_place(before, op, order)
                    if merged is not None:
                        set_merged_call_counters(merged, counters)
                        changed = True
                last[op.mesh] = op  # a forward, once merged, begins no other pair
        return changed


def _counters(first: FragmentOp, second: FragmentOp) -> tuple[int, int] | None:
    """Return the microbatches, when they are a backward and a forward of different ones, both whole."""
    if not (is_backward(first) and is_forward(second) and stages_consistent(first, second)):
        return None
    if any(split_type(op) or has_remat(op) for op in (first, second)):
        return None
    backward, forward = call_counter(first), call_counter(second)
    return None if backward is None or forward is None or backward == forward else (backward, forward)
