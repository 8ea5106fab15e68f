"""`mpmd-merge-user-fragments-into-scheduling-units`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

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
        return merge_neighbours(function, _allowed, prospects=_alike)


def _alike(fragments: Sequence[FragmentOp]) -> Callable[[FragmentOp], bool]:
    """Return what tells user fragments with others of their mesh, phase and microbatch.

    Those that are not clear about these may go with any.
    """
    counts = Counter(_kind(fragment) for fragment in fragments if fragment.is_user)
    return lambda producer: producer.is_user and (counts[None] > 0 or counts[_kind(producer)] > 1)


def _kind(fragment: FragmentOp) -> Hashable | None:
    """Return mesh, phase and microbatch; None if one of these is unclear."""
    phase, counter = single_transpose_count(fragment), fragment.attrs.get("call_counter")
    return None if phase is None or counter is None else (fragment.mesh, phase, counter)


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
