"""Passes of the reference as `mpmd_trace.jit` runs them: each differs from the one that it replaces in one thing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.core import BlockArg, Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, FragmentOp, FuncOp, Module, UnassignOp, make_transfer
from mpmd_trace.ir.shardings import equivalent_shardings
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.common.erase_unused_callee_block_arguments import EraseUnusedCalleeBlockArguments
from mpmd_trace.passes.common.merge_user_fragments_into_scheduling_units import MergeUserFragmentsIntoSchedulingUnits
from mpmd_trace.passes.common.rule_based_merge import RuleBasedMerge
from mpmd_trace.passes.common.verify_stage_merging import VerifyStageMerging
from mpmd_trace.passes.fragment_rules import MergeRule
from mpmd_trace.passes.greedy import apply_greedily, walk_mutable
from mpmd_trace.passes.import_.clean_up import CleanUp, read_clean
from mpmd_trace.passes.import_.infer_mesh_finalize import InferMeshFinalize
from mpmd_trace.passes.import_.introduce_transfers import DIRECT_RULES, IntroduceTransfers
from mpmd_trace.passes.import_.mesh_flow import function_name
from mpmd_trace.passes.loop_numbers import LoopNumbers
from mpmd_trace.passes.sharding.convert_sdy_shardings_to_mpmd_types import ConvertSdyShardingsToMpmdTypes, unset_whole
from mpmd_trace.passes.sharding.extract_reshards_from_inter_mesh_transfers import ExtractReshardsFromInterMeshTransfers
from mpmd_trace.passes.sharding.shardy_propagation import ShardyPropagation

#: `whole_up_to` in pipelines of ours, where no one compares what Shardy makes of smaller programs with the reference.
WHOLE_UP_TO = 1_000


class CleanUpForXla(CleanUp):
    """Keep ops of CHLO, since XLA knows them, and do not inline large functions of keys that are called often."""

    name = "mpmd-clean-up-for-xla"
    summary = "mpmd-clean-up that leaves ops of CHLO, and large functions of keys, as they are"
    keeps_chlo = True

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        cleaned = read_clean(module.to_generic(debug_info=True), for_xla=True)
        if cleaned is None:  # it has mistakes, or calls that cannot be inlined
            return super().run(module, diagnostics)
        before = module.to_generic()
        made, reported, _ = cleaned
        diagnostics.found += reported
        module.op, module.resources, module.outlined = made.op, made.resources, made.outlined
        return module.to_generic() != before


@dataclasses.dataclass(frozen=True)
class IntroduceDirectTransfers(IntroduceTransfers):
    """Leave sums and the arguments of callees to `mpmd-place`."""

    name = "mpmd-introduce-direct-transfers"
    summary = "mpmd-introduce-transfers that leaves sums and arguments of callees to mpmd-place"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return apply_greedily(module, DIRECT_RULES).changed


@dataclasses.dataclass(frozen=True)
class EraseUnusedArgumentsOfAllCalls(EraseUnusedCalleeBlockArguments):
    """Also count calls without used results: arguments that their callees do not use have no mesh, either."""

    name = "mpmd-erase-unused-arguments-of-all-calls"
    summary = "mpmd-erase-unused-callee-block-arguments that counts calls without used results, too"

    def counts(self, call: CallOp) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class FinalizeKeepingMemories(InferMeshFinalize):
    """Keep the memory kind of names in arguments and results of calls.

    A result in host memory stays there until a user of the call needs it.
    """

    name = "mpmd-finalize-keeping-memories"
    summary = "mpmd-infer-mesh-finalize that keeps arguments and results of calls in their memory"

    def changes_memory(self, unassign: UnassignOp, assign: AssignOp) -> bool:
        if super().changes_memory(unassign, assign):
            return True
        value = unassign.operand(0)
        is_argument = isinstance(value, BlockArg) and isinstance(value.owner.parent_op, FuncOp)
        return is_argument and unassign.mesh_type.memory_kind != assign.mesh_type.memory_kind

    def finish(self, functions: Sequence[FuncOp]) -> None:
        _follow_memories(functions)


def _follow_memories(functions: Sequence[FuncOp]) -> None:
    """Type results of calls as their callees return them; what is in the memory of the host leaves it for each user.

    So it stays there from the call that makes it to the one that needs it, as from a forward to its backward.
    """
    returned = {function_name(function): function.type.results for function in functions}
    for function in functions:
        for call in [op for op in function.body if isinstance(op, CallOp)]:
            for result, type in zip(call.results, returned[call.callee], strict=True):
                wanted = result.type
                if wanted is type:
                    continue
                assert isinstance(wanted, MeshTensorType)
                result.type = type
                for user in dict.fromkeys(result.users):
                    transfer = make_transfer(result, wanted)
                    function.body.insert_before(user, transfer)
                    for use in [use for use in user.operand_uses if use.value is result]:
                        use.set(transfer.result)


@dataclasses.dataclass(frozen=True)
class MergeUnitsInCallees(MergeUserFragmentsIntoSchedulingUnits):
    """Merge the fragments of callees, once for all of their calls; other fragments are merged later."""

    name = "mpmd-merge-units-in-callees"
    summary = "mpmd-merge-user-fragments-into-scheduling-units in called functions alone"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if not function.is_mpmd or function.is_entry_point:
            return False
        return super().run_on_function(function, module, diagnostics)


@dataclasses.dataclass(frozen=True)
class MergeByRulesStrictly(RuleBasedMerge):
    """Raise an error for a group that cannot be merged."""

    name = "mpmd-merge-by-rules-strictly"
    summary = "mpmd-rule-based-merge that rejects groups that cannot be merged"

    def refuse(self, rule: MergeRule, last: Op) -> None:
        message = f"the fragments that a merge rule makes one depend on each other in a cycle: {rule}"
        raise MpmdError([Diagnostic("error", message, last.loc)])


@dataclasses.dataclass(frozen=True)
class VerifyStagesOfLoops(VerifyStageMerging):
    """Allow a stage in each loop over microbatches, and any number of times outside of these."""

    name = "mpmd-verify-stages-of-loops"
    summary = "mpmd-verify-stage-merging for each loop over microbatches by itself"

    def loop_of(self, function: FuncOp) -> Callable[[FragmentOp, int | None, int | None], int]:
        loops = LoopNumbers()
        fragments = (op for op in walk_mutable(function.regions[0]) if isinstance(op, FragmentOp))
        has_loops = any(op.call_counter is not None for op in fragments)
        outside = itertools.count(-1, -1)  # no schedule orders what is of no microbatch

        def loop_of(fragment: FragmentOp, count: int | None, counter: int | None) -> int:
            if has_loops and counter is None:
                return next(outside)
            return loops.of(fragment.mesh, None if count else fragment.stage, counter)

        return loop_of


@dataclasses.dataclass(frozen=True)
class PropagateWithChlo(ShardyPropagation):
    """Propagate shardings with Shardy, and with rules for ops of CHLO, which Shardy does not have.

    Shardings without axes are dropped first, and without any shardings, bodies only lose their dead ops.
    """

    name = "mpmd-propagate-with-chlo"
    summary = "mpmd-shardy-propagation with rules for ops of CHLO"
    keeps_chlo = True

    whole_up_to: int = WHOLE_UP_TO


@dataclasses.dataclass(frozen=True)
class ExtractReshardsKeepingHostCopies(ExtractReshardsFromInterMeshTransfers):
    """Keep transfers from host memory to host memory that only copy."""

    name = "mpmd-extract-reshards-keeping-host-copies"
    summary = "mpmd-extract-reshards-from-inter-mesh-transfers that allows copies between host memories"
    only_with = ("shardings",)

    def copies_between_hosts(self, source: TensorShardingAttr | None, target: TensorShardingAttr | None) -> bool:
        return equivalent_shardings(source, target)


@dataclasses.dataclass(frozen=True)
class ConvertShardingsUnsettingWhole(ConvertSdyShardingsToMpmdTypes):
    """Write "replicated on each device" in one way: as no sharding.

    So a value that a fragment only passes through keeps its type, and the fragment can be removed.
    """

    name = "mpmd-convert-shardings-unsetting-whole"
    summary = "mpmd-convert-sdy-shardings-to-mpmd-types with one spelling of replicated"
    only_with = ("shardings", "several devices")

    def finish(self, function: FuncOp) -> None:
        unset_whole(function)
