"""What to write where a program does not allow the schedule that was asked for: only what has been tried."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator

from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.schedules import ScheduleWarning
from mpmd_trace.scheduling.auto import AutoSchedule, program_costs, rank_schedules
from mpmd_trace.scheduling.choose_schedule import ScheduleChoice, choose_schedule, settle

#: So many schedules of the library are tried besides "auto", each of which takes as long as compiling the program.
_TRIED = 3
#: Those that are tried where none can be ranked, as of programs in which not every microbatch runs through all stages.
_UNRANKED = ("1F1B", "zb-h1", "GPipe")


def way_out(
    config: Config,
    importing: Callable[[str], Module],
    is_followed: Callable[[Config, ScheduleChoice], bool],
    *,
    overlaps: bool,
) -> str:
    """Return a sentence with the schedule that the program follows.

    `importing` gives the program after the import phase, its stages numbered as said; `is_followed` says whether it
    allows a schedule, `overlaps` whether it makes one program of a forward and a backward of two microbatches.
    """
    tried: list[str] = []
    for name in _candidates(config, importing):
        tried.append(repr(name))
        other = dataclasses.replace(config, pipeline_schedule=name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScheduleWarning)
                choice = choose_schedule(other)
                if choice.auto is not None:
                    choice = settle(choice, importing, other.options, overlaps=overlaps)
                followed = is_followed(other, choice)
            if followed:
                chosen = f" (it chooses '{choice.name}')" if name == "auto" else ""
                return f'pipeline_schedule="{name}" is followed exactly here{chosen}'
        except MpmdError:
            continue
    return f"None of the schedules tried ({', '.join(tried)}) is followed exactly here: leave pipeline_schedule out"


def _candidates(config: Config, importing: Callable[[str], Module]) -> Iterator[str]:
    """Yield "auto", and the schedules that have the stages of the program, those of the other order first."""
    asked = config.pipeline_schedule
    if not isinstance(asked, AutoSchedule) and asked != "auto":
        yield "auto"
    try:
        costs = program_costs(importing("loop"), AutoSchedule())
        ranked = [] if costs is None or costs.forward_only else rank_schedules(costs)
    except MpmdError:  # the program may be followed all the same
        ranked = []
    names = dict.fromkeys(c.schedule.name for c in sorted(ranked, key=lambda c: c.in_order))
    same = asked.lower() if isinstance(asked, str) else getattr(asked, "name", None)
    yield from [name for name in names or _UNRANKED if name.lower() != same][:_TRIED]
