"""What it costs to keep gathered and cast weights for a step, for a phase of a stage, or for a microbatch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mpmd_trace.backend.plan import Plan
from mpmd_trace.backend.residence import is_hoisted
from mpmd_trace.passes.hoisting.choice import Gather
from mpmd_trace.schedules import Action, Schedule
from mpmd_trace.scheduling.transfers import Value

__all__ = ["WORDS", "Copies", "Cost", "copies_of_stages", "cost_of"]

#: From the most memory to the most gathers.
WORDS: tuple[Gather, ...] = ("step", "phase", "microbatch")


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies that a stage reads: their bytes on a device, those of the largest, and the time to make them all.

    `kinds`: of the actions that read them.
    """

    bytes: float = 0.0
    largest: float = 0.0
    time: float = 0.0
    kinds: frozenset[str] = frozenset()

    def __add__(self, other: Copies) -> Copies:
        largest = max(self.largest, other.largest)
        return Copies(self.bytes + other.bytes, largest, self.time + other.time, self.kinds | other.kinds)

    def part(self, share: float) -> Copies:
        """Those of some layers of the stage."""
        return Copies(self.bytes * share, self.largest, self.time * share, self.kinds)

    def are_read_by(self, action: Action) -> bool:
        """Whether the action reads them; of a backward in halves the one of the input does."""
        return ("B" if action.kind == "I" else action.kind) in self.kinds

    def held(self, gather: Gather, is_active: bool) -> float:
        """The bytes that are there while the stage, or another one of its mesh, runs.

        A fragment that gathers by itself has the copy that it uses, and the one that comes next.
        """
        if gather == "step":
            return self.bytes
        two = min(2 * self.largest, self.bytes)
        return (self.bytes if gather == "phase" else two) if is_active else 0.0


def copies_of_stages(
    plan: Plan, values: Sequence[Value], rank: Mapping[int, int], stages: int, cost: Sequence[float]
) -> tuple[Copies, ...]:
    """What each stage reads of what programs make once per step; `cost` is that of each program.

    A copy that several stages read belongs to all of them in equal parts.
    """
    of_slot = {slot: value for value in values for _, slot in value.slots}
    found = [Copies()] * stages
    for run in plan.runs:
        if not is_hoisted(run):
            continue
        sizes = {slot: plan.slots[slot].bytes for slot in run.outputs}
        for slot, size in sizes.items():
            uses = of_slot[slot].uses if slot in of_slot else ()
            readers: dict[int, set[str]] = {}
            for _, a in uses:
                if a.kind != "O" and a.stage in rank:
                    readers.setdefault(rank[a.stage], set()).add("B" if a.kind == "I" else a.kind)
            for stage, kinds in readers.items():
                part = 1 / len(readers)
                time = cost[run.program] * size / max(sum(sizes.values()), 1)
                found[stage] += Copies(size * part, size * part, time * part, frozenset(kinds))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a word costs on the mesh that needs most: bytes at once, and what is made in a step."""

    gather: Gather
    bytes: float
    made_bytes: float
    time: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)


def cost_of(gather: Gather, schedule: Schedule, copies: Sequence[Copies]) -> Cost:
    """Both costs with the orders of a schedule: a phase is a stage's turn on its mesh."""
    most = made = time = 0.0
    for order, stages in zip(schedule.orders, schedule.placement.stages_on, strict=True):
        actions = [part for step in order for part in step.parts]
        groups = [list(group) for _, group in itertools.groupby(actions, lambda a: a.stage)]
        if gather == "microbatch":
            groups = [[action] for action in actions]
        turns = [group[0].stage for group in groups if any(map(copies[group[0].stage].are_read_by, group))]
        if gather == "step":
            turns = list(dict.fromkeys(turns))
        made = max(made, sum(copies[s].bytes for s in turns))
        time = max(time, sum(copies[s].time for s in turns))
        held = (sum(copies[s].held(gather, s == active) for s in stages) for active in stages)
        most = max(most, max(held, default=0.0))
    return Cost(gather, most, made, time)
