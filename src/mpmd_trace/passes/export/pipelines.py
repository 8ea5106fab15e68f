"""The export pipeline: from a scheduled program with shardings in its types to fragment calls."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.canonicalize_mpmd import CanonicalizeMpmd
from mpmd_trace.passes.common.copy_constants import CopyConstants
from mpmd_trace.passes.common.fragment_dce import FragmentDce
from mpmd_trace.passes.common.fragment_dedup import FragmentDedup
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
from mpmd_trace.passes.common.merge_transfers import MergeTransfers
from mpmd_trace.passes.common.uniquify_function_inputs_outputs import UniquifyFunctionInputsOutputs
from mpmd_trace.passes.cse_native import CseNative
from mpmd_trace.passes.export.delay_constants import DelayConstants
from mpmd_trace.passes.export.delay_inferred_fragments import DelayInferredFragments
from mpmd_trace.passes.export.delay_transfers_from_cpu import DelayTransfersFromCpu
from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
from mpmd_trace.passes.export.mark_aliasing_and_donation import MarkAliasingAndDonation
from mpmd_trace.passes.export.mark_fragment_reserved_memory import MarkFragmentReservedMemory
from mpmd_trace.passes.export.mark_input_output_with_layouts import MarkInputOutputWithLayouts
from mpmd_trace.passes.export.mark_offloaded_input_output import MarkOffloadedInputOutput
from mpmd_trace.passes.export.merge_paired_programs import MergePairedPrograms
from mpmd_trace.passes.export.reuse_programs import ReusePrograms
from mpmd_trace.passes.export.share_programs import SharePrograms
from mpmd_trace.passes.export.sink_create_token_into_fragments import SinkCreateTokenIntoFragments
from mpmd_trace.passes.export.validate_no_backward_deps import ValidateNoBackwardDeps
from mpmd_trace.passes.export.validate_no_inferred_fragments import ValidateNoInferredFragments
from mpmd_trace.passes.export.validate_no_param_transfers import ValidateNoParamTransfers
from mpmd_trace.passes.export.validate_no_reshards import ValidateNoReshards
from mpmd_trace.passes.outlining import CallOutlinedFunctions

__all__ = ["ExportPipeline"]


@dataclasses.dataclass(frozen=True)
class ExportPipeline(Pipeline):
    """Afterwards every function of the program is fragment calls, transfers and a return.

    Each distinct fragment is a function of the module that says on which mesh it runs, which arguments it may
    overwrite, where they are in memory, and how much memory others need.
    """

    name: ClassVar[str] = "mpmd-export-pipeline"
    summary: ClassVar[str] = "turn a partitioned program into fragment calls"

    fail_on_reshard_only_fragments: bool = option(False, "fail for fragments that only reshard")
    fail_on_backward_deps: bool = option(False, "fail when data of a forward program flows backward through the meshes")
    fail_on_inferred_fragments: bool = option(True, "fail for inferred fragments that should have been merged")
    fail_on_param_transfers: bool = option(False, "fail for parameters that are transferred")
    param_transfer_pattern: str = option("params['transformer", "text that the names of parameters contain")
    #: Options that the textual pipeline does not have.
    copy_constants_from_producer_to_consumer: bool = False
    apply_merge_transfers: bool = False
    verbose_logging: bool = False
    #: Whether what belongs to no microbatch stays apart from those that do.
    uniform_microbatch_programs: bool = False
    #: Whether a forward and a backward of which each always runs with the other are one program.
    fuse_fwd_bwd: bool = False
    #: Whether a named computation that computes nothing may change shardings.
    allow_reshard_fragments: bool = False
    #: Whether functions made of one body share it, frozen.
    alias_bodies: bool = False
    #: Whether functions may be out of line.
    outlines: bool = False

    def passes(self) -> list[Pass]:
        """Return the steps, in order."""
        steps: list[Pass] = [CseNative()]
        if self.copy_constants_from_producer_to_consumer:
            steps.append(CopyConstants())
        steps += [CanonicalizeMpmd(), FragmentDedup()]
        if self.apply_merge_transfers:
            steps += [MergeTransfers(), FragmentDedup(), CseNative()]
        if self.uniform_microbatch_programs and not self.copy_constants_from_producer_to_consumer:
            steps.append(CopyConstants(apart=True))
        steps += [
            FragmentDce(),
            UniquifyFunctionInputsOutputs(),
            MergeInferredFragments(uniform_microbatch_programs=self.uniform_microbatch_programs),
            *([SharePrograms(), ReusePrograms()] if self.uniform_microbatch_programs else []),
            *([MergePairedPrograms()] if self.fuse_fwd_bwd else []),
            *([DelayConstants()] if self.uniform_microbatch_programs else []),
            MarkOffloadedInputOutput(),
            MarkInputOutputWithLayouts(),
            DelayInferredFragments(),
            DelayTransfersFromCpu(),
            SinkCreateTokenIntoFragments(),
            MarkAliasingAndDonation(self.uniform_microbatch_programs),
            MarkFragmentReservedMemory(),
            ValidateNoParamTransfers(self.fail_on_param_transfers, self.param_transfer_pattern),
            ValidateNoInferredFragments(self.fail_on_inferred_fragments),
            LowerToFragmentCalls(self.verbose_logging, alias_bodies=self.alias_bodies),
            ValidateNoReshards(self.fail_on_reshard_only_fragments, self.allow_reshard_fragments),
            ValidateNoBackwardDeps(self.fail_on_backward_deps),
            *([CallOutlinedFunctions()] if self.outlines else []),
        ]
        return steps
