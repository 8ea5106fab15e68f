"""Where the passes of this family are: name -> `module:Class` below `mpmd_trace.passes`."""

from __future__ import annotations

PASSES: dict[str, str] = {
    "mpmd-mark-offloaded-input-output": "export.mark_offloaded_input_output:MarkOffloadedInputOutput",
    "mpmd-mark-input-output-with-layouts": "export.mark_input_output_with_layouts:MarkInputOutputWithLayouts",
    "mpmd-delay-inferred-fragments": "export.delay_inferred_fragments:DelayInferredFragments",
    "mpmd-delay-transfers-from-cpu": "export.delay_transfers_from_cpu:DelayTransfersFromCpu",
    "mpmd-sink-create-token-into-fragments": (
        "export.sink_create_token_into_fragments:SinkCreateTokenIntoFragments"
    ),
    "mpmd-mark-aliasing-and-donation": "export.mark_aliasing_and_donation:MarkAliasingAndDonation",
    "mpmd-mark-fragment-reserved-memory": "export.mark_fragment_reserved_memory:MarkFragmentReservedMemory",
    "mpmd-validate-no-param-transfers": "export.validate_no_param_transfers:ValidateNoParamTransfers",
    "mpmd-validate-no-inferred-fragments": (
        "export.validate_no_inferred_fragments:ValidateNoInferredFragments"
    ),
    "mpmd-lower-to-fragment-calls": "export.lower_to_fragment_calls:LowerToFragmentCalls",
    "mpmd-validate-no-reshards": "export.validate_no_reshards:ValidateNoReshards",
    "mpmd-validate-no-backward-deps": "export.validate_no_backward_deps:ValidateNoBackwardDeps",
}
