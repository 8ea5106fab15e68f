"""Costs of keeping gathered and cast weights for a step, for a phase of a stage, or for a microbatch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from mpmd_trace.backend.placement_report import is_hoisted
from mpmd_trace.backend.plan import Plan, Run
from mpmd_trace.ir.core import Value as IrValue
from mpmd_trace.ir.functions import FuncOp
from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.hoisting.select_hoists import Gather
from mpmd_trace.schedules import Action, Schedule
from mpmd_trace.scheduling.transfers import Value

#: From the most memory to the most gathers.
WORDS: tuple[Gather, ...] = ("step", "phase", "microbatch")


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies that a stage reads: their bytes on a device, and the time to make them all.

    `at_once`: the most bytes that are there in a fragment that gathers by itself, if it reads as many.  `kinds`: of the
    actions that read them.
    """

    bytes: float = 0.0
    at_once: float = 0.0
    time: float = 0.0
    kinds: frozenset[str] = frozenset()

    def __add__(self, other: Copies) -> Copies:
        at_once = max(self.at_once, other.at_once)
        return Copies(self.bytes + other.bytes, at_once, self.time + other.time, self.kinds | other.kinds)

    def part(self, share: float) -> Copies:
        """Return those of some layers of the stage."""
        return Copies(self.bytes * share, self.at_once, self.time * share, self.kinds)

    def are_read_by(self, action: Action) -> bool:
        """Return whether the action reads them; of a backward in halves the one of the input does."""
        return ("B" if action.kind == "I" else action.kind) in self.kinds

    def held(self, gather: Gather, is_active: bool) -> float:
        """Return the bytes that are there while the stage, or another one of its mesh, runs."""
        if gather == "step":
            return self.bytes
        own = self.bytes if gather == "phase" else min(self.at_once, self.bytes)
        return own if is_active else 0.0


def copies_of_stages(
    plan: Plan,
    module: Module,
    runs: Sequence[tuple[Run, Action]],
    values: Sequence[Value],
    rank: Mapping[int, int],
    stages: int,
    cost: Sequence[float],
    *,
    ahead: bool,
) -> tuple[Copies, ...]:
    """Return what each stage reads of what programs make once per step; `cost` is that of each program.

    A copy that several stages read belongs to all of them in equal parts.  `ahead`: whether XLA gathers one product
    ahead where barriers say so, and not all at first.
    """
    of_slot = {slot: value for value in values for _, slot in value.slots}
    result = [Copies()] * stages
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
                result[stage] += Copies(size * part, 0.0 if ahead else math.inf, time * part, frozenset(kinds))
    if ahead:
        hoisted = {slot for run in plan.runs if is_hoisted(run) for slot in run.outputs}
        functions = {function.sym_name: function for function in module.functions}
        for run, action in runs:
            if action.kind != "O" and action.stage in rank:
                copies = {i: float(plan.slots[slot].bytes) for i, slot in enumerate(run.inputs) if slot in hoisted}
                most = 2 * _met_at_once(functions[plan.programs[run.program].callee], copies)
                stage = rank[action.stage]
                result[stage] += Copies(at_once=most)
    return tuple(result)


def _met_at_once(function: FuncOp, copies: Mapping[int, float]) -> float:
    """Return the most bytes of copies that meet one value: a fragment gathers these together, and the next ones.

    `copies`: the bytes by the numbers of the arguments.
    """
    met: dict[IrValue, set[int]] = {}
    for number in copies:
        pending: list[IrValue] = [function.body.args[number]]
        while pending:
            value = pending.pop()
            for use in value.uses:
                others = [o for o in use.owner.operands if o is not value]
                for other in others:
                    met.setdefault(other, set()).add(number)
                if not others:  # a cast, a transpose
                    pending += use.owner.results
    return max((sum(copies[i] for i in numbers) for numbers in met.values()), default=0.0)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a word on the mesh that needs most: bytes at once, and what is made in a step."""

    gather: Gather
    bytes: float
    made_bytes: float
    time: float


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
