"""The passes of the compiler in the order in which they run: `reference_pipeline` and `pipeline`.

Each gives its passes phase by phase: import, optimize, sharding propagation, export.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.canonicalize import Canonicalize
from mpmd_trace.passes.common.absorb_inferred_fragments import AbsorbInferredFragments
from mpmd_trace.passes.common.call_inline import CallInline
from mpmd_trace.passes.common.copy_constants import CopyConstants
from mpmd_trace.passes.common.erase_unused_callee_block_arguments import EraseUnusedCalleeBlockArguments
from mpmd_trace.passes.common.fragment_dce import FragmentDce
from mpmd_trace.passes.common.fragment_dedup import FragmentDedup
from mpmd_trace.passes.common.from_unroll_to_call_counter import FromUnrollToCallCounter
from mpmd_trace.passes.common.merge_forward_with_backward import MergeForwardWithBackward
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments
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
from mpmd_trace.passes.cse import Cse
from mpmd_trace.passes.export.delay_inferred_fragments import DelayInferredFragments
from mpmd_trace.passes.export.delay_transfers_from_cpu import DelayTransfersFromCpu
from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
from mpmd_trace.passes.export.mark_aliasing_and_donation import MarkAliasingAndDonation
from mpmd_trace.passes.export.mark_fragment_reserved_memory import MarkFragmentReservedMemory
from mpmd_trace.passes.export.mark_input_output_with_layouts import MarkInputOutputWithLayouts
from mpmd_trace.passes.export.mark_offloaded_input_output import MarkOffloadedInputOutput
from mpmd_trace.passes.export.sink_create_token_into_fragments import SinkCreateTokenIntoFragments
from mpmd_trace.passes.export.validate_no_backward_deps import ValidateNoBackwardDeps
from mpmd_trace.passes.export.validate_no_inferred_fragments import ValidateNoInferredFragments
from mpmd_trace.passes.export.validate_no_param_transfers import ValidateNoParamTransfers
from mpmd_trace.passes.export.validate_no_reshards import ValidateNoReshards
from mpmd_trace.passes.fission.split_divided import SplitDividedBwdFragments
from mpmd_trace.passes.hoisting.hoist_invariants import HoistInvariants
from mpmd_trace.passes.hoisting.reduce_once import ReduceOnce
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.clean_up import CanonicalizeUnrolled, CleanUp
from mpmd_trace.passes.import_.copy_topology_from_main import CopyTopologyFromMain
from mpmd_trace.passes.import_.enforce_input_output_equisharding import EnforceInputOutputEquisharding
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
from mpmd_trace.passes.mesh_order import is_cpu_mesh
from mpmd_trace.passes.microbatches.accumulate_in_calls import AccumulateInCalls
from mpmd_trace.passes.microbatches.action_order import as_listed
from mpmd_trace.passes.microbatches.cut_in_calls import CutInCalls
from mpmd_trace.passes.microbatches.follow_schedule import FollowSchedule
from mpmd_trace.passes.microbatches.merge_inferred_apart import MergeInferredApart
from mpmd_trace.passes.microbatches.repeat_calls import RepeatCalls
from mpmd_trace.passes.microbatches.repeat_steady_state import RepeatSteadyState
from mpmd_trace.passes.microbatches.rule_orders import UserRules
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.remat_fragment import RematFragment
from mpmd_trace.passes.optimize.rule_based_schedule import RuleBasedSchedule
from mpmd_trace.passes.outlining import CallOutlinedFunctions
from mpmd_trace.passes.placement.find_stages import FindStages
from mpmd_trace.passes.placement.open_conditionals import OpenConditionals
from mpmd_trace.passes.placement.place import Place
from mpmd_trace.passes.placement.regroup_sums import RegroupSums
from mpmd_trace.passes.placement.split_concatenations import SplitConcatenations
from mpmd_trace.passes.placement.split_loops import SplitLoops
from mpmd_trace.passes.programs.mark_equal_donation import MarkEqualDonation
from mpmd_trace.passes.programs.merge_backward_with_forward import MergeBackwardWithForward
from mpmd_trace.passes.programs.merge_blocks import MergeBlocks
from mpmd_trace.passes.programs.merge_followers import MergeFollowers
from mpmd_trace.passes.programs.merge_paired_programs import MergePairedPrograms
from mpmd_trace.passes.programs.merge_parts_of_stages import MergePartsOfStages
from mpmd_trace.passes.programs.overlap_microbatches import OverlapMicrobatches
from mpmd_trace.passes.programs.reuse_programs import ReusePrograms
from mpmd_trace.passes.programs.share_programs import SharePrograms
from mpmd_trace.passes.propagation.prefer_rows import PreferRows
from mpmd_trace.passes.propagation.use_own_meshes import UseOwnMeshes
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.sharding.convert_sdy_constants import ConvertSdyConstants
from mpmd_trace.passes.sharding.convert_sdy_shardings_to_mpmd_types import ConvertSdyShardingsToMpmdTypes
from mpmd_trace.passes.sharding.enforce_user_shardings import EnforceUserShardings
from mpmd_trace.passes.sharding.extract_reshards_from_inter_mesh_transfers import ExtractReshardsFromInterMeshTransfers
from mpmd_trace.passes.sharding.populate_unreduced_out_sharding import PopulateUnreducedOutSharding
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation
from mpmd_trace.passes.sharding.simplify_program import SimplifyProgram
from mpmd_trace.passes.stablehlo_optimize import StablehloOptimize
from mpmd_trace.passes.symbol_dce import SymbolDce
from mpmd_trace.passes.variants import (
    WHOLE_UP_TO,
    CleanUpForXla,
    ConvertShardingsUnsettingWhole,
    EraseUnusedArgumentsOfAllCalls,
    ExtractReshardsKeepingHostCopies,
    FinalizeKeepingMemories,
    IntroduceDirectTransfers,
    MergeByRulesStrictly,
    MergeUnitsInCallees,
    PropagateWithChlo,
    VerifyStagesOfLoops,
)


def passes_of(
    request: PartitionRequest,
    user_rules: Callable[[], UserRules] | None = None,
    *,
    alias_bodies: bool = False,
    module: Module | None = None,
    may_omit: bool = False,
) -> Iterator[list[Pass]]:
    """Yield the passes of each phase: the reference's, unless the request asks for more than it has.

    `may_omit`: whether some of many microbatches may be missing until the last phase.  Passes of `mpmd_trace.jit` that
    have nothing to do in the `module`, as it is when a phase begins, are left out.
    """
    options = request.options
    ours = options.mpmd_merge_backward_with_forward or options.mpmd_merge_forward_with_backward
    exact = options.placement == "reference" and not options.mpmd_equal_microbatches and not ours
    if request.step is None and exact:
        yield from reference_pipeline(request, alias_bodies=alias_bodies)
    else:
        for passes in pipeline(request, user_rules, alias_bodies=alias_bodies, may_omit=may_omit):
            asked = frozenset().union(*(one.only_with for one in passes))
            known = asked if not asked or module is None or request.step is None else contents(module, asked)
            yield [one for one in passes if not one.only_with or not known.isdisjoint(one.only_with)]


def contents(module: Module, asked: Collection[str]) -> frozenset[str]:
    """Return what a program has of what passes may ask for: ops, by name, and some other things.

    - "nested names": named ops that are nested, or in functions without a mesh; callees of `mpmd.call` get meshes.
    - "several devices": a mesh has more than one.
    - "shardings": something says how a value is sharded.  Propagation and what follows it make none of nothing.
    - "host memory": a value is in the memory of a host, or on a mesh of CPUs.
    """
    names: set[str] = {"outlined functions"} if module.outlined else set()
    called: set[str] = set()
    for function in module.functions:
        topology = function.topology
        if topology is not None and any(mesh.size > 1 for mesh in topology.meshes.values()):
            names.add("several devices")
        has_meshes = topology is not None or function.sym_name in called
        ops = [op for block in function.regions[0].blocks for op in block]
        regions = set(itertools.chain.from_iterable([op.regions for op in ops]))  # many fragments have the same body
        own = {op.name for op in ops}
        if topology is not None and CallOp.op_name in own:
            called.update(op.callee for op in ops if isinstance(op, CallOp))
        inside = frozenset().union(*map(_names_in, regions))
        names |= own | inside
        if not inside.isdisjoint(_NAMED) or not (has_meshes or own.isdisjoint(_NAMED)):
            names.add("nested names")
        if "shardings" in asked and "shardings" not in names:
            said = {name for attrs in (*function.arg_attrs, *function.res_attrs) for name in attrs.entries}
            for op in ops:
                said.update(op.props, op.attrs)
            if _mention_shardings(own, said) or any(map(_shardings_in, regions)):
                names.add("shardings")
    if "host memory" in asked and any(map(_uses_host_memory, module.functions)):
        names.add("host memory")
    return frozenset(names)


_NAMED = frozenset({"mpmd.named_computation", "mpmd.named_tensor", "mpmd.broadcast", "mpmd.reduce"})


def _names_in(region: Region) -> frozenset[str]:
    def find() -> frozenset[str]:
        return frozenset(op.name for op in region.walk())

    return remembered(region, "names of ops", find) if region.frozen else find()


def _mention_shardings(ops: Iterable[str], attributes: Iterable[str]) -> bool:
    """Return whether ops do, of which these are the names and those of their attributes."""
    return any(name.startswith("sdy.") for name in ops) or any("sharding" in name for name in attributes)


def _shardings_in(region: Region) -> bool:
    def find() -> bool:
        return any(_mention_shardings([op.name], [*op.props, *op.attrs]) for op in region.walk())

    return remembered(region, "mentions shardings", find) if region.frozen else find()


def _uses_host_memory(function: FuncOp) -> bool:
    ops = [op for block in function.regions[0].blocks for op in block]
    types = {value.type for op in ops for value in op.results} | set(function.type.inputs)
    return any(isinstance(type, MeshTensorType) and (type.on_host or is_cpu_mesh(type.mesh)) for type in types)


def _when(condition: object, *passes: Pass) -> Sequence[Pass]:
    return passes if condition else ()


def infer_mesh(
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
        FinalizeKeepingMemories(infers) if keep_memories else InferMeshFinalize(infers),
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
        *infer_mesh(options, request.same_mesh),
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
        *_when(options.mpmd_split_bwd_fragments, SplitBwdFragments(), Canonicalize(), FragmentDce()),
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
        Cse(),
        *_when(options.mpmd_copy_constant_creation_from_producer_to_consumer, CopyConstants()),
        Canonicalize(),
        FragmentDedup(),
        *_when(options.mpmd_apply_merge_transfers_pass, MergeTransfers(), FragmentDedup(), Cse()),
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
    request: PartitionRequest,
    user_rules: Callable[[], UserRules] | None = None,
    *,
    alias_bodies: bool = False,
    may_omit: bool = False,
) -> Iterator[list[Pass]]:
    """Yield the passes of `mpmd_trace.jit`, phase by phase: the reference's, and what it does not have.

    `user_rules` are asked for after the first phase; they are followed on top of the schedule.  `alias_bodies`: see
    `reference_pipeline`.  `may_omit`: see `passes_of`.
    """
    options, step = request.options, request.step
    jit = step is not None
    cut = options.placement == "cut"
    uniform = bool(options.mpmd_equal_microbatches)
    late = options.mpmd_merge_inferred_after_scheduling
    split = bool(options.mpmd_split_bwd_fragments)
    assigns = request.input_assignments or request.output_assignments
    has_stages = step is not None and (
        step.stages != "no" or any(a.assignment.stage is not None for a in request.name_assignments)
    )
    splits = (
        SplitDividedBwdFragments(meshes=() if step is None else step.split_meshes) if uniform else SplitBwdFragments()
    )

    def merge_inferred(uniform: bool) -> list[Pass]:
        return [
            *_when(options.mpmd_absorb_inferred_fragments_on_entry_point_function, AbsorbInferredFragments(True)),
            MergeInferredApart(merge_any_consumer=True, merge_sideways=True, uniform=uniform),
        ]

    yield [
        # What is named is a named computation or tensor; nothing has a mesh.
        CleanUpForXla() if request.keeps_chlo else CleanUp(),
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
        *_when(assigns or not jit, MapInputOutputToMesh(request.input_assignments, request.output_assignments)),
        InlineNestedUserExposedOps(request.name_assignments, inherit=jit),
        ValidateNamedOpsInMpmdFunc(),
        MapNamedOpsToMpmdOps(request.name_assignments),
        *([FindStages(number=step.stages)] if step is not None else []),
        *_when(uniform and not (step is not None and step.reverse_backward), AccumulateInCalls()),
        *_when(jit and cut, CutInCalls()),
        IntroduceDirectTransfers() if cut else IntroduceTransfers(),
        EraseUnusedArgumentsOfAllCalls() if jit else EraseUnusedCalleeBlockArguments(),
        *(_placed(request) if cut else infer_mesh(options, request.same_mesh, jit)),
        *_when(not late, *merge_inferred(False)),
        *_when(request.same_mesh, EnforceInputOutputEquisharding(request.same_mesh)),
        # User fragments become what a schedule orders.
        SimplifyProgram(),
        RemoveTransferCycles(),
        *_when(uniform, MergeUnitsInCallees()),
        *_when(jit and cut, _repeat_calls(request, may_omit)),
        CallInline(),
        SymbolDce(),
        *_when(not late, MergeInferredApart(keep_sends_separate=jit and cut and split, uniform=uniform)),
        MoveTransfersToProducer(),
        MergeUserFragmentsIntoSchedulingUnits(),
        *_when(jit and has_stages, MergePartsOfStages()),
        *_when(split, splits, Canonicalize(), FragmentDce()),
    ]
    rules = None if user_rules is None else user_rules()
    yield [
        *(_scheduled(request) if rules is None else _with_rules(request, rules)),
        *_when(options.mpmd_fragment_remat, RematFragment(options.mpmd_merge_remat_fragments)),
        VerifyStageMerging() if step is None else VerifyStagesOfLoops(),
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
        PropagateWithChlo() if request.keeps_chlo else ShardyPropagation(whole_up_to=WHOLE_UP_TO),
        PopulateUnreducedOutSharding(),
        EnforceUserShardings(),
        *_when(own_meshes, UseOwnMeshes()),
        *_when(not own_meshes, ExtractReshardsKeepingHostCopies() if jit else ExtractReshardsFromInterMeshTransfers()),
        *hoists,
        ConvertShardingsUnsettingWhole() if hoists else ConvertSdyShardingsToMpmdTypes(),
        ConvertSdyConstants(),
        StablehloOptimize(),
        SimplifyProgram(),
    ]
    no_backward_deps = options.mpmd_fail_on_backward_deps
    yield [
        Cse(),
        *_when(options.mpmd_copy_constant_creation_from_producer_to_consumer, CopyConstants()),
        Canonicalize(),
        *_when(options.mpmd_apply_merge_transfers_pass, SimplifyProgram(), MergeTransfers(), Cse()),
        SimplifyProgram(),
        UniquifyFunctionInputsOutputs(),
        MergeInferredApart(uniform=uniform),
        *_when(uniform, SharePrograms(), ReusePrograms()),
        *_overlaps(request, MergeBlocks),
        *_when(uniform and jit and options.mpmd_merge_forward_with_backward is None, MergePairedPrograms()),
        *_overlaps(request, OverlapMicrobatches),
        *_when(jit and cut, RepeatSteadyState()),
        MarkOffloadedInputOutput(),
        MarkInputOutputWithLayouts(),
        DelayInferredFragments(),
        DelayTransfersFromCpu(),
        SinkCreateTokenIntoFragments(),
        MarkEqualDonation() if uniform else MarkAliasingAndDonation(),
        MarkFragmentReservedMemory(),
        # Warnings of these checks speak of ops, which users of `mpmd_trace.jit` do not know.
        *_when(not jit, ValidateNoParamTransfers(), ValidateNoInferredFragments()),
        LowerToFragmentCalls(alias_bodies=alias_bodies),
        *_when(not jit, ValidateNoReshards()),
        *_when(no_backward_deps or not jit, ValidateNoBackwardDeps(no_backward_deps)),
        *_when(request.keeps_chlo, CallOutlinedFunctions()),
    ]


def _repeat_calls(request: PartitionRequest, may_omit: bool) -> RepeatCalls:
    """Make all iterations of a loop, or only as many as show what the schedule repeats, where it may repeat something.

    It is repeated after one, two, or as many microbatches as there are meshes.  What keeps activations on the host
    and what merges fragments of several microbatches have to see all of a step.
    """
    options, meshes = request.options, len(request.topology.meshes)
    offloads = options.offload and request.step is not None and request.step.device_memory
    needs_all = request.merge_rules or request.schedule_rules or request.overlap or offloads
    if not may_omit or needs_all or not as_listed(request.schedule).is_steady:
        return RepeatCalls()
    return RepeatCalls(keep=6 * meshes, omit=2 * meshes)


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
        InferMeshRewriteUsingAnalysis(),
        InferMeshFinalize(True) if request.step is None else FinalizeKeepingMemories(True),
    ]


def _scheduled(request: PartitionRequest) -> list[Pass]:
    """Schedule and merge as the reference does: rules take the place of a schedule."""
    merges = request.merge_rules
    return [
        RuleBasedSchedule(rules=request.schedule_rules, remove_control_dependencies=not merges)
        if request.schedule_rules
        else FollowSchedule(
            schedule=request.schedule, remove_control_dependencies=not merges, mark_blocks=request.overlap is not None
        ),
        *_when(merges, RuleBasedMerge(rules=merges)),
    ]


def _with_rules(request: PartitionRequest, rules: UserRules) -> list[Pass]:
    """Follow a schedule, the user's orders on top of it, and the user's merges."""
    return [
        FollowSchedule(
            schedule=rules.comparator or request.schedule,
            remove_control_dependencies=not rules.merge,
            rules=rules.order,
            mark_blocks=request.overlap is not None,
        ),
        *_when(rules.merge, MergeByRulesStrictly(rules=rules.merge)),
        *([MergeFollowers(rules.may_merge)] if rules.may_merge is not None else []),
    ]


def _overlaps(request: PartitionRequest, kind: type[MergeBlocks | OverlapMicrobatches]) -> list[Pass]:
    """Merge fragments of several microbatches, those of blocks of the schedule or others, if that is wanted."""
    if request.overlap is None or request.step is None:
        return []
    return [kind(always=request.overlap == "pairs", work=request.step.work)]


def _hoists(request: PartitionRequest) -> list[Pass]:
    """Return the passes that do things once per step, or elsewhere than the program says, or save memory."""
    options, step = request.options, request.step
    if step is None:
        return []
    limit, reserved = step.device_memory, step.reserved
    remat, offload = options.remat is not None, options.offload is not None
    return [
        *_when(options.optimizer_sharding, ShardOptimizerState(options.optimizer_sharding, step.replaced)),
        *_when(remat or offload, FitMemory(limit, remat, offload, reserved, step.offload_up_to)),
        *_when(options.hoist_invariants, HoistInvariants(limit=limit, reserved=reserved, gather=options.gather)),
        *_when(options.gradient_reduction == "step", ReduceOnce(limit, reserved)),
    ]
