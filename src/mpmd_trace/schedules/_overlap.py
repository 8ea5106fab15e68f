"""Blocks of a forward and a backward in a schedule that has none, where that makes it shorter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.schedules._actions import Action, Fused, Step
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._schedule import Schedule
from mpmd_trace.schedules._simulate import Transfers, simulate

#: How much shorter a schedule with blocks that were not asked for has to be: each is one more program to compile.
GAIN = 0.01


def overlapped(schedule: Schedule, costs: Costs, *, transfers: Transfers = "async") -> Schedule:
    """Return the schedule with blocks of a forward and a gradient of two microbatches, if that makes it shorter.

    A block hides the collectives of each part behind the computation of the other part.  But it starts only when the
    inputs of both parts have arrived, and its outputs are sent only at its end.  So four kinds of blocks are tried: a
    forward with the backward after it, a backward with the forward after it, either, and a forward with a weight
    gradient before or after it, for which no other mesh waits.  Blocks that the schedule has
    are kept.  If none of these is at least 1 % shorter, the schedule itself is returned.
    """
    best, shortest = schedule, simulate(schedule, costs, transfers=transfers).makespan * (1 - GAIN)
    for first in ("F", "B", "", "W"):
        orders = tuple(tuple(_paired(order, first)) for order in schedule.orders)
        if orders == schedule.orders:
            continue
        changed = dataclasses.replace(schedule, orders=orders)
        try:
            makespan = simulate(changed, costs, transfers=transfers).makespan
        except ScheduleError:  # two meshes would wait for each other
            continue
        if makespan < shortest:
            best, shortest = changed, makespan
    return best


def _paired(order: Sequence[Step], first: str) -> list[Step]:
    """Return the order with blocks that begin with a forward, a backward, or either, or that have a weight gradient."""
    result: list[Step] = []
    open_to_pair = False
    for step in order:
        before = result[-1] if open_to_pair else None
        if isinstance(step, Action) and isinstance(before, Action) and _fit(before, step, first):
            result[-1] = Fused((before, step))
            open_to_pair = False
        else:
            result.append(step)
            open_to_pair = isinstance(step, Action)
    return result


def _fit(one: Action, two: Action, first: str) -> bool:
    """Return whether two steps are a forward and a gradient of two microbatches, of those that are asked for."""
    kinds = {one.kind, two.kind}
    if len(kinds) == 1 or "F" not in kinds or one.microbatch == two.microbatch:
        return False
    if first == "W":
        return "W" in kinds
    return kinds <= {"F", "B", "I"} and first in ("", "F" if one.kind == "F" else "B")
