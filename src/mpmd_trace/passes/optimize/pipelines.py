"""The optimize pipeline."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.common.merge_backward_with_forward import MergeBackwardWithForward
from mpmd_trace.passes.common.merge_followers import MergeFollowers
from mpmd_trace.passes.common.merge_forward_with_backward import MergeForwardWithBackward
from mpmd_trace.passes.common.pipelines import merge_inferred
from mpmd_trace.passes.common.rule_based_merge import RuleBasedMerge
from mpmd_trace.passes.common.verify_stage_merging import VerifyStageMerging
from mpmd_trace.passes.fragment_rules import MergeRule, ScheduleRule
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler
from mpmd_trace.passes.optimize.remat_fragment import RematFragment
from mpmd_trace.passes.optimize.rule_based_schedule import RuleBasedSchedule
from mpmd_trace.passes.optimize.rule_orders import UserRules
from mpmd_trace.passes.optimize.schedules import SCHEDULES, Order

__all__ = ["OptimizePipeline"]

_TEXT_SCHEDULES = ("none", "1F1B", "Circular")


@dataclasses.dataclass(frozen=True)
class OptimizePipeline(Pipeline):
    """Scheduling with rule-based merging, rematerialisation, stage checks, late merging of inferred fragments.

    The textual pipeline has two options; the driver sets the other fields.
    """

    name: ClassVar[str] = "mpmd-optimize-pipeline"
    summary: ClassVar[str] = "schedule fragments, recompute activations, merge the remaining fragments"
    merge_after_scheduling: bool = option(False, "merge inferred fragments after scheduling instead of during import")
    pipeline_schedule: Order = option(SCHEDULES["1F1B"], f"The schedule: {', '.join(_TEXT_SCHEDULES)}.")
    fragment_merge_rules: tuple[MergeRule, ...] = ()
    fragment_schedule_rules: tuple[ScheduleRule, ...] = ()
    #: Rules on top of the schedule, instead of the two above.
    user_rules: UserRules | None = None
    apply_fragment_remat: bool = False
    merge_remat_fragments: bool = False
    merge_forward_with_backward: bool = False
    merge_backward_with_forward: bool = False
    absorb_on_entry_point: bool = False
    #: Any schedule is allowed when the driver builds the pipeline; the text form knows three.
    any_schedule: bool = False
    #: Whether to warn of schedules that the data flow does not allow.
    warns_of_schedules: bool = False
    #: Whether what belongs to no microbatch stays apart from those that do.
    uniform_microbatch_programs: bool = False

    def passes(self) -> list[Pass]:
        """Return the passes, in order.  Raises `MpmdError` for a schedule that the textual form does not have."""
        if not self.any_schedule and self.pipeline_schedule.name not in _TEXT_SCHEDULES:
            raise MpmdError(
                f"option mpmd-optimize-pipeline pipeline-schedule is one of {', '.join(_TEXT_SCHEDULES)}, "
                f"not '{self.pipeline_schedule}'; run mpmd-pipeline-scheduler for the others"
            )
        result = self._scheduling() if self.user_rules is None else self._with_rules(self.user_rules)
        if self.apply_fragment_remat:
            result.append(RematFragment(merge_remat_fragments=self.merge_remat_fragments))
        result.append(VerifyStageMerging(in_each_loop=self.warns_of_schedules))
        if self.merge_after_scheduling:
            result += merge_inferred(
                self.absorb_on_entry_point, uniform_microbatch_programs=self.uniform_microbatch_programs
            )
        if self.merge_forward_with_backward:
            result.append(MergeForwardWithBackward())
        if self.merge_backward_with_forward:
            result.append(MergeBackwardWithForward())
        return result

    def _scheduling(self) -> list[Pass]:
        """Scheduling and rule-based merging as the reference does them: rules instead of a schedule."""
        result: list[Pass] = []
        keep_control = bool(self.fragment_merge_rules)
        if self.fragment_schedule_rules:
            result.append(
                RuleBasedSchedule(rules=self.fragment_schedule_rules, remove_control_dependencies=not keep_control)
            )
        else:
            result.append(
                PipelineScheduler(
                    schedule=self.pipeline_schedule,
                    remove_control_dependencies=not keep_control,
                    warns=self.warns_of_schedules,
                )
            )
        if self.fragment_merge_rules:
            result.append(RuleBasedMerge(rules=self.fragment_merge_rules))
        return result

    def _with_rules(self, rules: UserRules) -> list[Pass]:
        """Return a schedule, the user's orders on top of it, and the user's merges."""
        result: list[Pass] = [
            PipelineScheduler(
                schedule=rules.comparator or self.pipeline_schedule,
                remove_control_dependencies=not rules.merge,
                rules=rules.order,
            )
        ]
        if rules.merge:
            result.append(RuleBasedMerge(rules=rules.merge, strict=True))
        if rules.may_merge is not None:
            result.append(MergeFollowers(rules.may_merge))
        return result
