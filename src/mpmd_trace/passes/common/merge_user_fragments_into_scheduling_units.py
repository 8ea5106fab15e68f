"""`mpmd-merge-user-fragments-into-scheduling-units`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ...ir.diagnostics import Diagnostic, Diagnostics, MpmdError, describe
from ...ir.ops import FragmentOp, FuncOp, Module
from ..base import FunctionPass
from ..fragment_info import (
    call_counter,
    describe_fragment,
    single_transpose_count,
    stages_consistent,
)
from .merge_neighbours import merge_neighbours

__all__ = ["MergeUserFragmentsIntoSchedulingUnits"]


@dataclasses.dataclass(frozen=True)
class MergeUserFragmentsIntoSchedulingUnits(FunctionPass):
    """Consecutive user fragments of one phase, microbatch and stage are one fragment.

        %0 = mpmd.fragment<mesh="m", origin=["f"(1)]> (%a) (%x) { y = f(x); return y }
        %1 = mpmd.fragment<mesh="m", origin=["g"(1)], stage=0> (%0) {call_counter = 4 : ui32} (%x) { g(x) }
    becomes
        %1 = mpmd.fragment<mesh="m", origin=["f"(1), "g"(1)], stage=0> (%a) {call_counter = 4 : ui32} ...
    """

    name: ClassVar[str] = "mpmd-merge-user-fragments-into-scheduling-units"
    summary: ClassVar[str] = "merge user fragments of one phase and microbatch"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return merge_neighbours(function, _allowed)


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
        message = (
            f"{describe_fragment(fragment)} mixes phases: its origins have different transpose counts, so it "
            f"belongs to no scheduling unit; merge forward and backward fragments after this pass only"
        )
        raise MpmdError([Diagnostic("error", message, fragment.loc, (), describe(fragment))])
    return count
