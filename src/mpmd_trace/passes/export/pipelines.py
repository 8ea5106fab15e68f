"""The export pipeline: from a scheduled program with shardings in its types to fragment calls.

Source: section 5 of the specification of the export passes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.canonicalize_mpmd import CanonicalizeMpmd
from mpmd_trace.passes.cse_native import CseNative
from mpmd_trace.passes.registry import build

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
    fail_on_backward_deps: bool = option(
        False, "fail when data of a forward program flows backward through the meshes"
    )
    fail_on_inferred_fragments: bool = option(
        True, "fail for inferred fragments that should have been merged"
    )
    fail_on_param_transfers: bool = option(False, "fail for parameters that are transferred")
    param_transfer_pattern: str = option(
        "params['transformer", "text that the names of parameters contain"
    )
    #: Options that the textual pipeline does not have.
    copy_constants_from_producer_to_consumer: bool = False
    apply_merge_transfers: bool = False
    verbose_logging: bool = False

    def passes(self) -> list[Pass]:
        """The steps, in order."""
        from mpmd_trace.passes.export.lower_to_fragment_calls import LowerToFragmentCalls
        from mpmd_trace.passes.export.validate_no_backward_deps import ValidateNoBackwardDeps
        from mpmd_trace.passes.export.validate_no_inferred_fragments import ValidateNoInferredFragments
        from mpmd_trace.passes.export.validate_no_param_transfers import ValidateNoParamTransfers
        from mpmd_trace.passes.export.validate_no_reshards import ValidateNoReshards

        steps: list[str | Pass] = [CseNative()]
        if self.copy_constants_from_producer_to_consumer:
            steps.append("mpmd-copy-constants")
        steps += [CanonicalizeMpmd(), "mpmd-fragment-dedup"]
        if self.apply_merge_transfers:
            steps += ["mpmd-merge-transfers", "mpmd-fragment-dedup", CseNative()]
        steps += [
            "mpmd-fragment-dce",
            "mpmd-uniquify-function-inputs-outputs",
            "mpmd-merge-inferred-fragments",
            "mpmd-mark-offloaded-input-output",
            "mpmd-mark-input-output-with-layouts",
            "mpmd-delay-inferred-fragments",
            "mpmd-delay-transfers-from-cpu",
            "mpmd-sink-create-token-into-fragments",
            "mpmd-mark-aliasing-and-donation",
            "mpmd-mark-fragment-reserved-memory",
            ValidateNoParamTransfers(self.fail_on_param_transfers, self.param_transfer_pattern),
            ValidateNoInferredFragments(self.fail_on_inferred_fragments),
            LowerToFragmentCalls(self.verbose_logging),
            ValidateNoReshards(self.fail_on_reshard_only_fragments),
            ValidateNoBackwardDeps(self.fail_on_backward_deps),
        ]
        return build(steps)
