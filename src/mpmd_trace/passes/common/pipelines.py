"""Sequences of common passes that several pipelines contain."""

from __future__ import annotations

from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.canonicalize_mpmd import CanonicalizeMpmd
from mpmd_trace.passes.common.absorb_inferred_fragments import AbsorbInferredFragments
from mpmd_trace.passes.common.fragment_dce import FragmentDce
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
from mpmd_trace.passes.common.merge_parts_of_stages import MergePartsOfStages
from mpmd_trace.passes.common.merge_user_fragments_into_scheduling_units import MergeUserFragmentsIntoSchedulingUnits
from mpmd_trace.passes.common.move_transfers_to_producer import MoveTransfersToProducer
from mpmd_trace.passes.common.scheduling_units_verifier import SchedulingUnitsVerifier
from mpmd_trace.passes.common.split_bwd_fragments import SplitBwdFragments

__all__ = ["merge_inferred", "scheduling_preprocessing"]


def merge_inferred(
    absorb_on_entry_point_function: bool = False, *, uniform_microbatch_programs: bool = False
) -> list[Pass]:
    """Passes after which inferred fragments are part of their neighbours wherever possible."""
    return [
        AbsorbInferredFragments(absorb_on_entry_point_function=absorb_on_entry_point_function),
        MergeInferredFragments(merge_any_consumer=True, uniform_microbatch_programs=uniform_microbatch_programs),
        MergeInferredFragments(merge_sideways=True, uniform_microbatch_programs=uniform_microbatch_programs),
    ]


def scheduling_preprocessing(
    *, merge_parts: bool = False, split_bwd: bool = False, verify: bool = False, exact: bool = True
) -> list[Pass]:
    """Passes after which the user fragments are the units that a pipeline schedule orders."""
    passes: list[Pass] = [MoveTransfersToProducer(), MergeUserFragmentsIntoSchedulingUnits()]
    if merge_parts:
        passes.append(MergePartsOfStages())
    if verify:
        passes.append(SchedulingUnitsVerifier())
    if split_bwd:
        passes += [SplitBwdFragments(own_size=not exact), CanonicalizeMpmd(), FragmentDce()]
    return passes
