"""Where the passes of this family are: name -> `module:Class` below `mpmd_trace.passes`."""

from __future__ import annotations

PASSES: dict[str, str] = {
    "mpmd-call-inline": "common.call_inline:CallInline",
    "mpmd-copy-constants": "common.copy_constants:CopyConstants",
    "mpmd-erase-unused-callee-block-arguments": (
        "common.erase_unused_callee_block_arguments:EraseUnusedCalleeBlockArguments"
    ),
    "mpmd-fragment-dce": "common.fragment_dce:FragmentDce",
    "mpmd-fragment-dedup": "common.fragment_dedup:FragmentDedup",
    "mpmd-from-unroll-to-call-counter": (
        "common.from_unroll_to_call_counter:FromUnrollToCallCounter"
    ),
    "mpmd-merge-transfers": "common.merge_transfers:MergeTransfers",
    "mpmd-move-transfers-to-producer": "common.move_transfers_to_producer:MoveTransfersToProducer",
    "mpmd-remove-transfer-cycles": "common.remove_transfer_cycles:RemoveTransferCycles",
    "mpmd-sink-negligible-ops-into-call-op": (
        "common.sink_negligible_ops_into_call_op:SinkNegligibleOpsIntoCallOp"
    ),
    "mpmd-split-and-prioritize-transfer-independent-computations": (
        "common.split_and_prioritize_transfer_independent_computations:"
        "SplitAndPrioritizeTransferIndependentComputations"
    ),
    "mpmd-split-bwd-fragments": "common.split_bwd_fragments:SplitBwdFragments",
    "mpmd-uniquify-function-inputs-outputs": (
        "common.uniquify_function_inputs_outputs:UniquifyFunctionInputsOutputs"
    ),
    "mpmd-unroll-for-loops": "common.unroll_for_loops:UnrollForLoops",
    "mpmd-absorb-inferred-fragments": "common.absorb_inferred_fragments:AbsorbInferredFragments",
    "mpmd-merge-inferred-fragments": "common.merge_inferred_fragments:MergeInferredFragments",
    "mpmd-merge-forward-with-backward": (
        "common.merge_forward_with_backward:MergeForwardWithBackward"
    ),
    "mpmd-merge-backward-with-forward": (
        "common.merge_backward_with_forward:MergeBackwardWithForward"
    ),
    "mpmd-merge-parts-of-stages": "common.merge_parts_of_stages:MergePartsOfStages",
    "mpmd-merge-user-fragments-into-scheduling-units": (
        "common.merge_user_fragments_into_scheduling_units:MergeUserFragmentsIntoSchedulingUnits"
    ),
    "mpmd-verify-stage-merging": "common.verify_stage_merging:VerifyStageMerging",
    "mpmd-rule-based-merge": "common.rule_based_merge:RuleBasedMerge",
    "mpmd-scheduling-units-verifier": "common.scheduling_units_verifier:SchedulingUnitsVerifier",
    "mpmd-canonicalize": "canonicalize_mpmd:CanonicalizeMpmd",
    "mpmd-cse": "cse_native:CseNative",
    "mpmd-symbol-dce": "symbol_dce:SymbolDce",
}
