"""The pipelines that put a traced program on meshes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.common.call_inline import CallInline
from mpmd_trace.passes.common.erase_unused_callee_block_arguments import EraseUnusedCalleeBlockArguments
from mpmd_trace.passes.common.fragment_dce import FragmentDce
from mpmd_trace.passes.common.fragment_dedup import FragmentDedup
from mpmd_trace.passes.common.from_unroll_to_call_counter import FromUnrollToCallCounter
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
from mpmd_trace.passes.common.merge_user_fragments_into_scheduling_units import MergeUserFragmentsIntoSchedulingUnits
from mpmd_trace.passes.common.pipelines import merge_inferred, scheduling_preprocessing
from mpmd_trace.passes.common.remove_transfer_cycles import RemoveTransferCycles
from mpmd_trace.passes.common.sink_negligible_ops_into_call_op import SinkNegligibleOpsIntoCallOp
from mpmd_trace.passes.common.unroll_for_loops import UnrollForLoops
from mpmd_trace.passes.import_.accumulate_in_calls import AccumulateInCalls
from mpmd_trace.passes.import_.assignments import IndexAssignment, NameAssignment, SameMesh
from mpmd_trace.passes.import_.clean_up import CanonicalizeUnrolled, CleanUp
from mpmd_trace.passes.import_.copy_topology_from_main import CopyTopologyFromMain
from mpmd_trace.passes.import_.cut_in_calls import CutInCalls
from mpmd_trace.passes.import_.enforce_input_output_equisharding import EnforceInputOutputEquisharding
from mpmd_trace.passes.import_.find_stages import FindStages
from mpmd_trace.passes.import_.gather_indices import GatherIndices
from mpmd_trace.passes.import_.generate_sdy_meshes_from_topology import GenerateSdyMeshesFromTopology
from mpmd_trace.passes.import_.infer_mesh_assign_mesh_func_leaves import InferMeshAssignMeshFuncLeaves
from mpmd_trace.passes.import_.infer_mesh_assign_using_input_output_constraints import (
    InferMeshAssignUsingInputOutputConstraints,
)
from mpmd_trace.passes.import_.infer_mesh_convert_reduce_ops import InferMeshConvertReduceOps
from mpmd_trace.passes.import_.infer_mesh_finalize import InferMeshFinalize
from mpmd_trace.passes.import_.infer_mesh_populate_src_set import InferMeshPopulateSrcSet
from mpmd_trace.passes.import_.infer_mesh_populate_use_set import InferMeshPopulateUseSet
from mpmd_trace.passes.import_.infer_mesh_rewrite_using_analysis import InferMeshRewriteUsingAnalysis
from mpmd_trace.passes.import_.infer_mesh_validate_no_additional_transfers_needed import (
    InferMeshValidateNoAdditionalTransfersNeeded,
)
from mpmd_trace.passes.import_.infer_mesh_validate_src_set_not_empty import InferMeshValidateSrcSetNotEmpty
from mpmd_trace.passes.import_.inline_nested_user_exposed_ops import InlineNestedUserExposedOps
from mpmd_trace.passes.import_.insert_nameless_clone_of_negligible_ops import InsertNamelessCloneOfNegligibleOps
from mpmd_trace.passes.import_.introduce_transfers import IntroduceTransfers
from mpmd_trace.passes.import_.map_input_output_to_mesh import MapInputOutputToMesh
from mpmd_trace.passes.import_.map_named_ops_to_mpmd_ops import MapNamedOpsToMpmdOps
from mpmd_trace.passes.import_.simplify_named_computations import SimplifyNamedComputations
from mpmd_trace.passes.import_.validate_named_ops_in_mpmd_func import ValidateNamedOpsInMpmdFunc
from mpmd_trace.passes.placement.open_conditionals import OpenConditionals
from mpmd_trace.passes.placement.place import Place
from mpmd_trace.passes.placement.regroup_sums import RegroupSums
from mpmd_trace.passes.placement.split_concatenations import SplitConcatenations
from mpmd_trace.passes.placement.split_loops import SplitLoops
from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize
from mpmd_trace.passes.symbol_dce import SymbolDce

__all__ = ["PLACEMENTS", "ImportPipeline", "InferMeshPipeline"]

#: How unnamed code gets its meshes: as the reference does it, or by a minimum cut (`docs/placement_algorithm.md`).
PLACEMENTS = ("reference", "cut")


@dataclasses.dataclass(frozen=True)
class InferMeshPipeline(Pipeline):
    """Every value lives on a mesh and every computation is in a fragment.

    func.func @main(%a: T) -> T {                       func.func @main(%a: T on m1) -> T on m1 {
      %0 = add %a, %a                                     %0 = mpmd.fragment<mesh="m1", ..> (%a) {
      %1 = mpmd.assign %0 : m1                     =>       add, then the body of s }
      %2 = mpmd.fragment<mesh="m1", origin=["s"]> ..      return %0
      %3 = mpmd.unassign %2 ; return %3                 }
    }
    """

    name: ClassVar[str] = "mpmd-infer-mesh-pipeline"
    summary: ClassVar[str] = "find a mesh for everything that the user did not assign"

    infer_transfers: bool = option(False, "add transfers wherever a value is needed on another mesh")
    infer_cross_mesh_reductions: bool = option(
        False, "turn reductions of values on several meshes into reductions per mesh and transfers"
    )
    #: The driver sets these; the text form does not have them.
    max_clones: int = 1
    error_limit: int = 5
    constraints: tuple[SameMesh, ...] = ()
    #: Whether `mpmd-place` has decided everything but where unused values are.
    placed: bool = False
    #: See `InferMeshFinalize`.
    keep_memories: bool = False

    def passes(self) -> list[Pass]:
        """Return the steps, in order."""
        if self.placed:
            leaves = InferMeshAssignMeshFuncLeaves(True, self.error_limit)
            rewrite = InferMeshRewriteUsingAnalysis(self.max_clones, direct=True)
            return [leaves, InferMeshPopulateUseSet(), rewrite, InferMeshFinalize(True, self.keep_memories)]
        steps: list[Pass] = [InferMeshPopulateUseSet(), InferMeshPopulateSrcSet()]
        if self.constraints:
            steps.append(InferMeshAssignUsingInputOutputConstraints(self.constraints, self.error_limit == -1))
        reductions = self.infer_transfers or self.infer_cross_mesh_reductions
        steps.append(InferMeshConvertReduceOps(infer_cross_mesh_reductions=reductions, keep_initial_value=True))
        if not self.infer_transfers:
            steps.append(InferMeshValidateSrcSetNotEmpty(self.error_limit))
        steps += [InferMeshAssignMeshFuncLeaves(self.infer_transfers, self.error_limit), InferMeshPopulateUseSet()]
        if not self.infer_transfers:
            steps.append(InferMeshValidateNoAdditionalTransfersNeeded(self.error_limit))
        finalize = InferMeshFinalize(self.infer_transfers, self.keep_memories)
        return [*steps, InferMeshRewriteUsingAnalysis(self.max_clones), finalize]


@dataclasses.dataclass(frozen=True)
class ImportPipeline(Pipeline):
    """A traced program is fragments and transfers; calls are inlined; user fragments are scheduling units.

    %1 = mpmd.named_computation<"f"> (%w, %x) ..    =>   %1 = mpmd.fragment<mesh="m1", origin=["f"]> ..
    %2 = mpmd.named_computation<"g"> (%v, %1) ..         %2 = mpmd.transfer %1 : m1 -> m2
                                                         %3 = mpmd.fragment<mesh="m2", origin=["g"]> ..
    """

    name: ClassVar[str] = "mpmd-import-pipeline"
    summary: ClassVar[str] = "put a traced program on meshes"

    name_to_mesh_assignment: tuple[NameAssignment, ...] = option((), "meshes of names, as NAME@MESH[/STAGE],...")
    merge_after_scheduling: bool = option(False, "merge inferred fragments after scheduling, not here")
    enable_heterogeneous_meshes: bool = option(False, "the meshes differ: take sdy meshes from the topology")
    placement: str = option(
        "reference", "where unnamed code goes: as the reference says, or where the fewest bytes move (cut)"
    )
    #: The driver sets these; the text form does not have them.
    input_assignment: tuple[IndexAssignment, ...] = ()
    output_assignment: tuple[IndexAssignment, ...] = ()
    constraints: tuple[SameMesh, ...] = ()
    absorb_on_entry_point: bool = False
    infer_transfers: bool = False
    infer_cross_mesh_reductions: bool = False
    max_clones: int = 1
    error_limit: int = 5
    merge_parts: bool = False
    split_bwd_fragments: bool = False
    verify_schedule_units: bool = False
    #: What the reference does not do: find the order of meshes and the stages on them, None to leave them as they are.
    stages: FindStages | None = None
    #: Likewise: called functions cut their microbatches out of the batch themselves.
    cut_in_calls: bool = False
    #: Likewise: backward fragments that are split do not take in what is made of gradients for another mesh.
    keep_sends_separate: bool = False
    #: Likewise: what belongs to no microbatch stays apart from those that do.
    uniform_microbatch_programs: bool = False
    #: Whether backward passes run from the last microbatch to the first, so that calls cannot hand on sums.
    reverse_backward: bool = False
    #: Likewise: CHLO's ops stay what they are, since XLA knows them.
    keeps_chlo: bool = False
    #: Likewise: large functions of keys that are called often stay out of line.
    outlines: bool = False

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise MpmdError(f"placement is {' or '.join(map(repr, PLACEMENTS))}, not {self.placement!r}")

    def passes(self) -> list[Pass]:
        """Return the steps, in order."""
        return [*self._named_program(), *self._on_meshes(), *self._units()]

    def _named_program(self) -> list[Pass]:
        """Return the steps before anything has a mesh."""
        steps: list[Pass] = [CleanUp(self.keeps_chlo, self.outlines), CopyTopologyFromMain()]
        if self.enable_heterogeneous_meshes:
            steps.append(GenerateSdyMeshesFromTopology())
        return [
            *steps,
            UnrollForLoops(),
            CanonicalizeUnrolled(),
            StablehloOptimize(fold_op_element_limit=0, optimize_float=True),
            FromUnrollToCallCounter(),
            SinkNegligibleOpsIntoCallOp(),
            InsertNamelessCloneOfNegligibleOps(),
            SimplifyNamedComputations(),
        ]

    def _on_meshes(self) -> list[Pass]:
        """Return the steps that give everything a mesh."""
        cut = self.placement == "cut"
        infer = InferMeshPipeline(
            self.infer_transfers,
            self.infer_cross_mesh_reductions,
            self.max_clones,
            self.error_limit,
            self.constraints,
            placed=cut,
            keep_memories=self.stages is not None,
        )
        merge = [] if self.merge_after_scheduling else merge_inferred(self.absorb_on_entry_point)
        return [
            MapInputOutputToMesh(self.input_assignment, self.output_assignment),
            InlineNestedUserExposedOps(self.name_to_mesh_assignment),
            ValidateNamedOpsInMpmdFunc(),
            MapNamedOpsToMpmdOps(self.name_to_mesh_assignment),
            *([self.stages] if self.stages is not None else []),
            *([AccumulateInCalls()] if self.uniform_microbatch_programs and not self.reverse_backward else []),
            *([CutInCalls()] if self.cut_in_calls else []),
            IntroduceTransfers(direct_only=cut),
            EraseUnusedCalleeBlockArguments(unused_calls=self.stages is not None),
            *([OpenConditionals(), SplitLoops(), SplitConcatenations(), RegroupSums()] if cut else []),
            *([Place(self.constraints)] if cut else []),
            *infer.passes(),
            *([GatherIndices(stay=not self.uniform_microbatch_programs)] if self.cut_in_calls else []),
            *merge,
            EnforceInputOutputEquisharding(self.constraints),
        ]

    def _units(self) -> list[Pass]:
        """Return the steps after which the user fragments are what a schedule orders."""
        apart = self.keep_sends_separate and self.split_bwd_fragments
        merge = MergeInferredFragments(
            keep_sends_separate=apart, uniform_microbatch_programs=self.uniform_microbatch_programs
        )
        return [
            FragmentDedup(),
            FragmentDce(),
            RemoveTransferCycles(),
            *([MergeUserFragmentsIntoSchedulingUnits(in_callees=True)] if self.uniform_microbatch_programs else []),
            CallInline(),
            SymbolDce(),
            *([] if self.merge_after_scheduling else [merge]),
            *scheduling_preprocessing(
                merge_parts=self.merge_parts,
                split_bwd=self.split_bwd_fragments,
                verify=self.verify_schedule_units,
                exact=not self.uniform_microbatch_programs,
            ),
        ]
