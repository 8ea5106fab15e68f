"""`mpmd-merge-user-fragments-into-scheduling-units`."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from mpmd_trace.ir.diagnostics import Diagnostics, error_at
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.merge_neighbours import merge_neighbours
from mpmd_trace.passes.fragment_info import call_counter, describe_fragment, single_transpose_count, stages_consistent


@dataclasses.dataclass(frozen=True)
class MergeUserFragmentsIntoSchedulingUnits(FunctionPass):
    """Merge consecutive user fragments of one phase, microbatch and stage.

    Neighbors P and C (docs/rewriting.md) are merged if both are user fragments, both forward or both backward, with the
    same stage and without different call counters; only the first user of P is considered. A fragment with origins of
    several phases is an error.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"(1)], stage=0> (%0) {call_counter = 4 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"(1), "g"(1)], stage=0> (%p) {call_counter = 4 : ui32} (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-merge-user-fragments-into-scheduling-units"
    summary = "merge user fragments of one phase and microbatch"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return merge_neighbours(function, _allowed, prospects=_Alike())


class _Alike:
    """User fragments of one mesh, phase and microbatch; fragments that are not clear about these may go with any."""

    def __init__(self) -> None:
        self.counts: dict[Hashable, int] = {}
        self.unclear = 0
        #: How many fragments there are beyond the first one of each kind.
        self.more = 0

    def note(self, fragment: FragmentOp, change: int) -> None:
        kind = self.kind(fragment)
        if kind is None:
            self.unclear += change
        else:
            count = self.counts[kind] = self.counts.get(kind, 0) + change
            if max(count, count - change) > 1:
                self.more += change

    def possible(self, producer: FragmentOp) -> bool:
        if not self.more and not self.unclear:
            return False
        return self.unclear > 0 or self.counts.get(self.kind(producer), 0) > 1

    def kind(self, fragment: FragmentOp) -> Hashable | None:
        """Mesh, phase and microbatch; the fragment itself when it is inferred."""
        phase, counter = single_transpose_count(fragment), fragment.attrs.get("call_counter")
        if phase is not None and counter is not None:
            return fragment.mesh, phase, counter
        return None if fragment.is_user else fragment


def _allowed(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    if not (producer.is_user and consumer.is_user):
        return False
    first, second = _transpose_count(producer), _transpose_count(consumer)
    if first != second or not stages_consistent(producer, consumer):
        return False
    counters = call_counter(producer), call_counter(consumer)
    return None in counters or counters[0] == counters[1]


def _transpose_count(fragment: FragmentOp) -> int:
    count = single_transpose_count(fragment)
    if count is None:
        raise error_at(
            fragment,
            f"{describe_fragment(fragment)} mixes phases: its origins have different transpose counts, so it "
            "belongs to no scheduling unit; merge forward and backward fragments after this pass only",
        )
    return count
