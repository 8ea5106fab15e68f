"""The passes of the compiler in the order in which they run: `reference_pipeline` and `pipeline`.

Each gives its passes phase by phase: import, optimize, sharding propagation, export.  The pipelines that have a name in
text (`mpmd-import-pipeline` ...) are phases of the reference's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.canonicalize_mpmd import CanonicalizeMpmd
from mpmd_trace.passes.common.absorb_inferred_fragments import AbsorbInferredFragments
from mpmd_trace.passes.common.call_inline import CallInline
from mpmd_trace.passes.common.copy_constants import CopyConstants
from mpmd_trace.passes.common.erase_unused_callee_block_arguments import EraseUnusedCalleeBlockArguments
from mpmd_trace.passes.common.fragment_dce import FragmentDce
from mpmd_trace.passes.common.fragment_dedup import FragmentDedup
from mpmd_trace.passes.common.from_unroll_to_call_counter import FromUnrollToCallCounter
from mpmd_trace.passes.common.merge_backward_with_forward import MergeBackwardWithForward
from mpmd_trace.passes.common.merge_followers import MergeFollowers
from mpmd_trace.passes.common.merge_forward_with_backward import MergeForwardWithBackward
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
from mpmd_trace.passes.common.merge_parts_of_stages import MergePartsOfStages
from mpmd_trace.passes.common.merge_transfers import MergeTransfers
from mpmd_trace.passes.common.merge_user_fragments_into_scheduling_units import MergeUserFragmentsIntoSchedulingUnits
from mpmd_trace.passes.common.move_transfers_to_producer import MoveTransfersToProducer
from mpmd_trace.passes.common.remove_transfer_cycles import RemoveTransferCycles
from mpmd_trace.passes.common.rule_based_merge import RuleBasedMerge
from mpmd_trace.passes.common.sink_negligible_ops_into_call_op import SinkNegligibleOpsIntoCallOp
from mpmd_trace.passes.common.split_bwd_fragments import SplitBwdFragments
from mpmd_trace.passes.common.uniquify_function_inputs_outputs import UniquifyFunctionInputsOutputs
from mpmd_trace.passes.common.unroll_for_loops import UnrollForLoops
from mpmd_trace.passes.common.verify_stage_merging import VerifyStageMerging
from mpmd_trace.passes.compile_options import CompileOptions
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
from mpmd_trace.passes.hoisting.hoist_invariants import HoistInvariants
from mpmd_trace.passes.hoisting.reduce_once import ReduceOnce
from mpmd_trace.passes.import_.accumulate_in_calls import AccumulateInCalls
from mpmd_trace.passes.import_.assignments import NameAssignment, SameMesh
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
from mpmd_trace.passes.memory.fit_memory import FitMemory
from mpmd_trace.passes.memory.shard_optimizer_state import ShardOptimizerState
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.remat_fragment import RematFragment
from mpmd_trace.passes.optimize.rule_based_schedule import RuleBasedSchedule
from mpmd_trace.passes.optimize.rule_orders import UserRules
from mpmd_trace.passes.optimize.schedules import SCHEDULES, Order
from mpmd_trace.passes.outlining import CallOutlinedFunctions
from mpmd_trace.passes.placement.open_conditionals import OpenConditionals
from mpmd_trace.passes.placement.place import Place
from mpmd_trace.passes.placement.regroup_sums import RegroupSums
from mpmd_trace.passes.placement.split_concatenations import SplitConcatenations
from mpmd_trace.passes.placement.split_loops import SplitLoops
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.sharding.convert_sdy_constants import ConvertSdyConstants
from mpmd_trace.passes.sharding.convert_sdy_shardings_to_mpmd_types import ConvertSdyShardingsToMpmdTypes
from mpmd_trace.passes.sharding.enforce_user_shardings import EnforceUserShardings
from mpmd_trace.passes.sharding.extract_reshards_from_inter_mesh_transfers import ExtractReshardsFromInterMeshTransfers
from mpmd_trace.passes.sharding.populate_unreduced_out_sharding import PopulateUnreducedOutSharding
from mpmd_trace.passes.sharding.prefer_rows import PreferRows
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation
from mpmd_trace.passes.sharding.simplify_program import SimplifyProgram
from mpmd_trace.passes.sharding.use_own_meshes import UseOwnMeshes
from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize
from mpmd_trace.passes.symbol_dce import SymbolDce

__all__ = ["PLACEMENTS", "passes_of", "pipeline", "reference_pipeline"]

#: How unnamed code gets its meshes: as the reference does it, or by a minimum cut (`docs/placement_algorithm.md`).
PLACEMENTS = ("reference", "cut")


def passes_of(
    request: PartitionRequest, user_rules: Callable[[], UserRules] | None = None, *, alias_bodies: bool = False
) -> Iterator[list[Pass]]:
    """Yield the passes of each phase: the reference's, unless the request asks for more than it has."""
    options = request.options
    ours = options.mpmd_merge_backward_with_forward or options.mpmd_merge_forward_with_backward
    if request.step is None and options.placement == "reference" and not options.mpmd_equal_microbatches and not ours:
        yield from reference_pipeline(request, alias_bodies=alias_bodies)
    else:
        yield from pipeline(request, user_rules, alias_bodies=alias_bodies)


def _when(condition: object, *passes: Pass) -> Sequence[Pass]:
    return passes if condition else ()


def _infer_mesh(
    options: CompileOptions, same_mesh: tuple[SameMesh, ...] = (), keep_memories: bool = False
) -> list[Pass]:
    """Find a mesh for everything that the user did not assign, as the reference does."""
    infers = bool(options.mpmd_infer_transfers)
    reductions = infers or options.mpmd_infer_cross_mesh_reductions
    return [
        InferMeshPopulateUseSet(),
        InferMeshPopulateSrcSet(),
        *_when(same_mesh, InferMeshAssignUsingInputOutputConstraints(same_mesh)),
        InferMeshConvertReduceOps(infer_cross_mesh_reductions=reductions, keep_initial_value=True),
        *_when(not infers, InferMeshValidateSrcSetNotEmpty()),
        InferMeshAssignMeshFuncLeaves(infers),
        InferMeshPopulateUseSet(),
        *_when(not infers, InferMeshValidateNoAdditionalTransfersNeeded()),
        InferMeshRewriteUsingAnalysis(),
        InferMeshFinalize(infers, keep_memories),
    ]


def reference_pipeline(request: PartitionRequest, *, alias_bodies: bool = False) -> Iterator[list[Pass]]:
    """Yield the passes of the reference, phase by phase.

    `alias_bodies`: exported functions made of one body share it, and it does not change any more.
    """
    options = request.options
    late = options.mpmd_merge_inferred_after_scheduling
    merge_inferred: list[Pass] = [
        AbsorbInferredFragments(options.mpmd_absorb_inferred_fragments_on_entry_point_function),
        MergeInferredFragments(merge_any_consumer=True),
        MergeInferredFragments(merge_sideways=True),
    ]
    yield [
        # What is named is a named computation or tensor; nothing has a mesh.
        CleanUp(),
        CopyTopologyFromMain(),
        *_when(request.heterogeneous, GenerateSdyMeshesFromTopology()),
        UnrollForLoops(),
        CanonicalizeUnrolled(),
        StablehloOptimize(fold_op_element_limit=0, optimize_float=True),
        FromUnrollToCallCounter(),
        SinkNegligibleOpsIntoCallOp(),
        InsertNamelessCloneOfNegligibleOps(),
        SimplifyNamedComputations(),
        # Everything gets a mesh.
        MapInputOutputToMesh(request.input_assignments, request.output_assignments),
        InlineNestedUserExposedOps(request.name_assignments),
        ValidateNamedOpsInMpmdFunc(),
        MapNamedOpsToMpmdOps(request.name_assignments),
        IntroduceTransfers(),
        EraseUnusedCalleeBlockArguments(),
        *_infer_mesh(options, request.same_mesh),
        *_when(not late, *merge_inferred),
        EnforceInputOutputEquisharding(request.same_mesh),
        # User fragments become what a schedule orders.
        FragmentDedup(),
        FragmentDce(),
        RemoveTransferCycles(),
        CallInline(),
        SymbolDce(),
        *_when(not late, MergeInferredFragments()),
        MoveTransfersToProducer(),
        MergeUserFragmentsIntoSchedulingUnits(),
        *_when(options.mpmd_split_bwd_fragments, SplitBwdFragments(), CanonicalizeMpmd(), FragmentDce()),
    ]
    merges = request.merge_rules
    yield [
        RuleBasedSchedule(rules=request.schedule_rules, remove_control_dependencies=not merges)
        if request.schedule_rules
        else PipelineScheduler(schedule=request.schedule, remove_control_dependencies=not merges),
        *_when(merges, RuleBasedMerge(rules=merges)),
        *_when(options.mpmd_fragment_remat, RematFragment(options.mpmd_merge_remat_fragments)),
        VerifyStageMerging(),
        *_when(late, *merge_inferred),
    ]
    yield [
        UniquifyFunctionInputsOutputs(use_transfer_instead_of_fragment=True),
        ShardyPropagation(),
        PopulateUnreducedOutSharding(),
        EnforceUserShardings(),
        ExtractReshardsFromInterMeshTransfers(),
        ConvertSdyShardingsToMpmdTypes(),
        ConvertSdyConstants(),
        StablehloOptimize(),
        SimplifyProgram(),
    ]
    yield [
        CseNative(),
        *_when(options.mpmd_copy_constant_creation_from_producer_to_consumer, CopyConstants()),
        CanonicalizeMpmd(),
        FragmentDedup(),
        *_when(options.mpmd_apply_merge_transfers_pass, MergeTransfers(), FragmentDedup(), CseNative()),
        FragmentDce(),
        UniquifyFunctionInputsOutputs(),
        MergeInferredFragments(),
        MarkOffloadedInputOutput(),
        MarkInputOutputWithLayouts(),
        DelayInferredFragments(),
        DelayTransfersFromCpu(),
        SinkCreateTokenIntoFragments(),
        MarkAliasingAndDonation(),
        MarkFragmentReservedMemory(),
        ValidateNoParamTransfers(),
        ValidateNoInferredFragments(),
        LowerToFragmentCalls(alias_bodies=alias_bodies),
        ValidateNoReshards(),
        ValidateNoBackwardDeps(options.mpmd_fail_on_backward_deps),
    ]


def pipeline(
    request: PartitionRequest, user_rules: Callable[[], UserRules] | None = None, *, alias_bodies: bool = False
) -> Iterator[list[Pass]]:
    """Yield the passes of `mpmd_trace.jit`, phase by phase: the reference's, and what it does not have.

    `user_rules` are asked for after the first phase; they are followed on top of the schedule.  `alias_bodies`: see
    `reference_pipeline`.
    """
    options, step = request.options, request.step
    jit = step is not None
    cut = options.placement == "cut"
    uniform = bool(options.mpmd_equal_microbatches)
    late = options.mpmd_merge_inferred_after_scheduling
    split = bool(options.mpmd_split_bwd_fragments)

    def merge_inferred(uniform: bool) -> list[Pass]:
        return [
            AbsorbInferredFragments(options.mpmd_absorb_inferred_fragments_on_entry_point_function),
            MergeInferredFragments(merge_any_consumer=True, uniform_microbatch_programs=uniform),
            MergeInferredFragments(merge_sideways=True, uniform_microbatch_programs=uniform),
        ]

    yield [
        # What is named is a named computation or tensor; nothing has a mesh.
        CleanUp(request.keeps_chlo, request.keeps_chlo),
        CopyTopologyFromMain(),
        *_when(request.heterogeneous, GenerateSdyMeshesFromTopology()),
        UnrollForLoops(),
        CanonicalizeUnrolled(),
        StablehloOptimize(fold_op_element_limit=0, optimize_float=True),
        FromUnrollToCallCounter(),
        SinkNegligibleOpsIntoCallOp(),
        InsertNamelessCloneOfNegligibleOps(),
        SimplifyNamedComputations(),
        # Everything gets a mesh.
        MapInputOutputToMesh(request.input_assignments, request.output_assignments),
        InlineNestedUserExposedOps(request.name_assignments),
        ValidateNamedOpsInMpmdFunc(),
        MapNamedOpsToMpmdOps(request.name_assignments),
        *([FindStages(number=step.stages)] if step is not None else []),
        *_when(uniform and not (step is not None and step.reverse_backward), AccumulateInCalls()),
        *_when(jit and cut, CutInCalls()),
        IntroduceTransfers(direct_only=cut),
        EraseUnusedCalleeBlockArguments(unused_calls=jit),
        *(_placed(request) if cut else _infer_mesh(options, request.same_mesh, jit)),
        *_when(jit and cut, GatherIndices(stay=not uniform)),
        *_when(not late, *merge_inferred(False)),
        EnforceInputOutputEquisharding(request.same_mesh),
        # User fragments become what a schedule orders.
        FragmentDedup(),
        FragmentDce(),
        RemoveTransferCycles(),
        *_when(uniform, MergeUserFragmentsIntoSchedulingUnits(in_callees=True)),
        CallInline(),
        SymbolDce(),
        *_when(
            not late,
            MergeInferredFragments(keep_sends_separate=jit and cut and split, uniform_microbatch_programs=uniform),
        ),
        MoveTransfersToProducer(),
        MergeUserFragmentsIntoSchedulingUnits(),
        *_when(jit, MergePartsOfStages()),
        *_when(split, SplitBwdFragments(own_size=uniform), CanonicalizeMpmd(), FragmentDce()),
    ]
    rules = None if user_rules is None else user_rules()
    chosen = step is not None and step.schedule_is_chosen
    yield [
        *(_scheduled(request, chosen) if rules is None else _with_rules(request, rules)),
        *_when(options.mpmd_fragment_remat, RematFragment(options.mpmd_merge_remat_fragments)),
        VerifyStageMerging(in_each_loop=chosen),
        *_when(late, *merge_inferred(uniform)),
        *_when(options.mpmd_merge_forward_with_backward, MergeForwardWithBackward()),
        *_when(options.mpmd_merge_backward_with_forward, MergeBackwardWithForward()),
    ]
    own_meshes = step is not None and step.own_meshes  # propagation takes meshes with the same axes for one
    hoists = _hoists(request)
    yield [
        *_when(own_meshes, UseOwnMeshes()),
        UniquifyFunctionInputsOutputs(use_transfer_instead_of_fragment=True),
        *_when(jit and options.hoist_invariants, PreferRows()),
        ShardyPropagation(chlo=request.keeps_chlo, split=not request.keeps_chlo),
        PopulateUnreducedOutSharding(),
        EnforceUserShardings(),
        *_when(own_meshes, UseOwnMeshes()),
        *_when(not own_meshes, ExtractReshardsFromInterMeshTransfers(jit)),
        *hoists,
        ConvertSdyShardingsToMpmdTypes(whole_is_unset=bool(hoists)),
        ConvertSdyConstants(),
        StablehloOptimize(),
        SimplifyProgram(),
    ]
    copies_constants = options.mpmd_copy_constant_creation_from_producer_to_consumer
    yield [
        CseNative(),
        *_when(copies_constants, CopyConstants()),
        CanonicalizeMpmd(),
        FragmentDedup(),
        *_when(options.mpmd_apply_merge_transfers_pass, MergeTransfers(), FragmentDedup(), CseNative()),
        *_when(uniform and not copies_constants, CopyConstants(apart=True)),
        FragmentDce(),
        UniquifyFunctionInputsOutputs(),
        MergeInferredFragments(uniform_microbatch_programs=uniform),
        *_when(uniform, SharePrograms(), ReusePrograms()),
        *_when(uniform and jit and options.mpmd_merge_forward_with_backward is None, MergePairedPrograms()),
        *_when(uniform, DelayConstants()),
        MarkOffloadedInputOutput(),
        MarkInputOutputWithLayouts(),
        DelayInferredFragments(),
        DelayTransfersFromCpu(),
        SinkCreateTokenIntoFragments(),
        MarkAliasingAndDonation(uniform),
        MarkFragmentReservedMemory(),
        ValidateNoParamTransfers(),
        ValidateNoInferredFragments(),
        LowerToFragmentCalls(alias_bodies=alias_bodies),
        ValidateNoReshards(named=jit),
        ValidateNoBackwardDeps(options.mpmd_fail_on_backward_deps),
        *_when(request.keeps_chlo, CallOutlinedFunctions()),
    ]


def _placed(request: PartitionRequest) -> list[Pass]:
    """Decide where everything goes, so that few bytes move; what is left to infer is where unused values are."""
    return [
        OpenConditionals(),
        SplitLoops(),
        SplitConcatenations(),
        RegroupSums(),
        Place(request.same_mesh),
        InferMeshAssignMeshFuncLeaves(True),
        InferMeshPopulateUseSet(),
        InferMeshRewriteUsingAnalysis(direct=True),
        InferMeshFinalize(True, keep_memories=request.step is not None),
    ]


def _scheduled(request: PartitionRequest, chosen: bool) -> list[Pass]:
    """Schedule and merge as the reference does: rules take the place of a schedule."""
    merges = request.merge_rules
    return [
        RuleBasedSchedule(rules=request.schedule_rules, remove_control_dependencies=not merges)
        if request.schedule_rules
        else PipelineScheduler(schedule=request.schedule, remove_control_dependencies=not merges, warns=chosen),
        *_when(merges, RuleBasedMerge(rules=merges)),
    ]


def _with_rules(request: PartitionRequest, rules: UserRules) -> list[Pass]:
    """Follow a schedule, the user's orders on top of it, and the user's merges."""
    return [
        PipelineScheduler(
            schedule=rules.comparator or request.schedule,
            remove_control_dependencies=not rules.merge,
            rules=rules.order,
        ),
        *_when(rules.merge, RuleBasedMerge(rules=rules.merge, strict=True)),
        *([MergeFollowers(rules.may_merge)] if rules.may_merge is not None else []),
    ]


def _hoists(request: PartitionRequest) -> list[Pass]:
    """What is done once per step, or elsewhere than the program says, and what fits activations into memory."""
    options, step = request.options, request.step
    if step is None:
        return []
    limit, reserved = step.device_memory, step.reserved
    remat, offload = options.remat is not None, options.offload is not None
    return [
        *_when(options.optimizer_sharding, ShardOptimizerState(options.optimizer_sharding, step.replaced)),
        *_when(remat or offload, FitMemory(limit, remat, offload, reserved)),
        *_when(options.hoist_invariants, HoistInvariants(limit=limit, reserved=reserved, gather=options.gather)),
        *_when(options.gradient_reduction == "step", ReduceOnce(limit, reserved)),
    ]


# Phases of the reference's pipeline by name, as text has them.


def _phase(number: int, **fields: Any) -> list[Pass]:
    request = PartitionRequest("", TopologyAttr.get({}), **fields)
    return next(itertools.islice(passes_of(request), number, None))


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

    def passes(self) -> list[Pass]:
        return _infer_mesh(
            CompileOptions(
                mpmd_infer_transfers=self.infer_transfers,
                mpmd_infer_cross_mesh_reductions=self.infer_cross_mesh_reductions,
            )
        )


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
    placement: Literal["reference", "cut"] = option(
        "reference", "where unnamed code goes: as the reference says, or where the fewest bytes move (cut)"
    )

    def passes(self) -> list[Pass]:
        return _phase(
            0,
            assignment=dict(self.name_to_mesh_assignment),
            heterogeneous=self.enable_heterogeneous_meshes,
            options=CompileOptions(
                mpmd_merge_inferred_after_scheduling=self.merge_after_scheduling, placement=self.placement
            ),
        )


_TEXT_SCHEDULES = ("none", "1F1B", "Circular")


@dataclasses.dataclass(frozen=True)
class OptimizePipeline(Pipeline):
    """Scheduling, stage checks, late merging of inferred fragments."""

    name: ClassVar[str] = "mpmd-optimize-pipeline"
    summary: ClassVar[str] = "schedule fragments, recompute activations, merge the remaining fragments"
    merge_after_scheduling: bool = option(False, "merge inferred fragments after scheduling instead of during import")
    pipeline_schedule: Order = option(SCHEDULES["1F1B"], f"The schedule: {', '.join(_TEXT_SCHEDULES)}.")

    def passes(self) -> list[Pass]:
        """Return the passes, in order.  Raises `MpmdError` for a schedule that the textual form does not have."""
        if self.pipeline_schedule.name not in _TEXT_SCHEDULES:
            raise MpmdError(
                f"option mpmd-optimize-pipeline pipeline-schedule is one of {', '.join(_TEXT_SCHEDULES)}, "
                f"not '{self.pipeline_schedule}'; run mpmd-pipeline-scheduler for the others"
            )
        options = CompileOptions(
            mpmd_merge_inferred_after_scheduling=self.merge_after_scheduling, placement="reference"
        )
        return _phase(1, options=options, schedule=self.pipeline_schedule)


@dataclasses.dataclass(frozen=True)
class ShardingPropagationPipeline(Pipeline):
    """Shardings of inputs, outputs and constraints have reached all values and are in their types.

    A transfer never changes a sharding: fragments reshard.
    """

    name: ClassVar[str] = "mpmd-sharding-propagation-pipeline"
    summary: ClassVar[str] = "propagate shardings and put them into types"

    def passes(self) -> list[Pass]:
        return _phase(2, options=CompileOptions(placement="reference"))


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

    def passes(self) -> list[Pass]:
        checks: dict[type[Pass], Pass] = {
            ValidateNoParamTransfers: ValidateNoParamTransfers(
                self.fail_on_param_transfers, self.param_transfer_pattern
            ),
            ValidateNoInferredFragments: ValidateNoInferredFragments(self.fail_on_inferred_fragments),
            ValidateNoReshards: ValidateNoReshards(self.fail_on_reshard_only_fragments),
            ValidateNoBackwardDeps: ValidateNoBackwardDeps(self.fail_on_backward_deps),
        }
        steps = _phase(3, options=CompileOptions(placement="reference"))
        return [checks.get(type(step), step) for step in steps]
