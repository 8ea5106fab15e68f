"""Where the passes of this family are: name -> `module:Class` below `mpmd_trace.passes`."""

from __future__ import annotations

PASSES: dict[str, str] = {
    "mpmd-pipeline-scheduler": "optimize.pipeline_scheduler:PipelineScheduler",
    "mpmd-rule-based-schedule": "optimize.rule_based_schedule:RuleBasedSchedule",
    "mpmd-remat-fragment": "optimize.remat_fragment:RematFragment",
}
