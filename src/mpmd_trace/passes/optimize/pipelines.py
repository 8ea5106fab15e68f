"""The optimise pipeline.  Source: section 2 of the optimise specification."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.predicates import Predicate, Sparse
from mpmd_trace.passes.optimize.remat_fragment import RematFragment
from mpmd_trace.passes.optimize.rule_based_schedule import RuleBasedSchedule
from mpmd_trace.passes.registry import build

__all__ = ["OptimizePipeline"]

_TEXT_SCHEDULES = ("none", "1F1B", "Circular")


@dataclasses.dataclass(frozen=True)
class OptimizePipeline(Pipeline):
    """Scheduling with rule-based merging, rematerialisation, stage checks, late merging of inferred fragments.

    The textual pipeline has two options; the driver sets the other fields.
    """

    name: ClassVar[str] = "mpmd-optimize-pipeline"
    summary: ClassVar[str] = "Schedules fragments, recomputes activations, merges what is left."
    merge_after_scheduling: bool = option(
        False, "Whether inferred fragments are merged after scheduling instead of at import."
    )
    pipeline_schedule: str = option("1F1B", f"The schedule: {', '.join(_TEXT_SCHEDULES)}.")
    #: A predicate, or explicit constraints, instead of a schedule's name.
    predicate: Predicate | None = None
    constraints: Sparse | None = None
    fragment_merge_rules: tuple[str, ...] = ()
    fragment_schedule_rules: tuple[str, ...] = ()
    apply_fragment_remat: bool = False
    merge_remat_fragments: bool = False
    merge_forward_with_backward: bool = False
    merge_backward_with_forward: bool = False
    absorb_on_entry_point: bool = False
    #: Any schedule is allowed when the driver builds the pipeline; the text form knows three.
    any_schedule: bool = False

    def passes(self) -> list[Pass]:
        """The passes, in order.  Raises `MpmdError` for a schedule that the textual form does not have."""
        if not self.any_schedule and self.pipeline_schedule not in _TEXT_SCHEDULES:
            raise MpmdError(
                f"option mpmd-optimize-pipeline pipeline-schedule is one of {', '.join(_TEXT_SCHEDULES)}, "
                f"not '{self.pipeline_schedule}'; run mpmd-pipeline-scheduler for the others"
            )
        found: list[Pass] = []
        keep_control = bool(self.fragment_merge_rules)
        if self.fragment_schedule_rules:
            found.append(
                RuleBasedSchedule(
                    rules=self.fragment_schedule_rules, remove_control_dependencies=not keep_control
                )
            )
        else:
            found.append(
                PipelineScheduler(
                    must_happen_before=self.pipeline_schedule,
                    remove_control_dependencies=not keep_control,
                    predicate=self.predicate,
                    constraints=self.constraints,
                )
            )
        if self.fragment_merge_rules:
            from mpmd_trace.passes.common.rule_based_merge import RuleBasedMerge

            found.append(RuleBasedMerge(rules=self.fragment_merge_rules))
        if self.apply_fragment_remat:
            found.append(RematFragment(merge_remat_fragments=self.merge_remat_fragments))
        found += build("mpmd-verify-stage-merging")
        if self.merge_after_scheduling:
            absorb = "true" if self.absorb_on_entry_point else "false"
            found += build(
                f"mpmd-absorb-inferred-fragments{{absorb-on-entry-point-function={absorb}}},"
                "mpmd-merge-inferred-fragments{merge-any-consumer=true},"
                "mpmd-merge-inferred-fragments{merge-sideways=true}"
            )
        if self.merge_forward_with_backward:
            found += build("mpmd-merge-forward-with-backward")
        if self.merge_backward_with_forward:
            found += build("mpmd-merge-backward-with-forward")
        return found
