"""Times that no schedule beats: from the work of each mesh, from its first backward, and from its memory."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.schedules._chain import Chain, is_chain
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._order_problem import Flow
from mpmd_trace.schedules._result import Measure
from mpmd_trace.schedules._schedule import Schedule

_TINY = 1e-9


def memory_floor(
    schedule: Schedule, costs: Costs, limits: Sequence[float], weight_fraction: float, measure: Measure
) -> float:
    """Return a bound for schedules of these stages whose whole backwards take no less than their parts.

    Until its first backward a mesh has nothing but forwards, as many as fit into its memory; the first backward cannot
    start before a microbatch has been to the end and back. And a microbatch holds its memory on a mesh from its forward
    to the end of its backward, so only so many per unit of time go through. More is known with one stage per mesh.
    """
    if is_chain(schedule):
        return Chain(schedule, costs, limits, weight_fraction, measure).floor()
    flow = Flow(schedule, costs, split=True)
    number = {(lane.stage, lane.kind): n for n, lane in enumerate(flow.lanes)}
    starts = flow.heads(1)
    count, best = schedule.microbatches, 0.0
    limits = [min(float(limit), float(count)) for limit in limits]
    for mesh, mates in enumerate(flow.mates):
        stages = sorted({flow.lanes[n].stage for n in mates})
        if not stages:
            continue
        share = 1.0 / len(stages)
        # From the forward of each stage here to the input gradients of each.
        paths = {(a, b): _longest(flow, number[a, "F"], number[b, "I"]) for a in stages for b in stages}
        work = count * sum(flow.lanes[n].time for n in mates)
        forwards = _forwards([flow.lanes[number[s, "F"]].time for s in stages], count, share, limits[mesh])
        reached = [max(paths[a, b] for a in stages) for b in stages]
        span = work + max(0.0, min(reached) - forwards)
        held = 0.0
        for stage in stages:
            path = paths[stage, stage]
            times = {kind: flow.lanes[number[stage, kind]].time for kind in ("I", "W")}
            held += share * (max(path, 0.0) + times["I"] + weight_fraction * times["W"])
        span = max(span, count * held / limits[mesh])
        first = 0.0 if measure == "span" else min(starts[n][0] for n in mates)
        best = max(best, first + span)
    return best


def _longest(flow: Flow, source: int, target: int) -> float:
    """Return the least time between the starts of two lanes' actions for one microbatch; minus infinity for none."""
    after: dict[int, float] = {source: 0.0}
    for n in flow.order:
        for need, wire in flow.needs[n]:
            if need in after:
                after[n] = max(after.get(n, 0.0), after[need] + flow.lanes[need].time + wire)
    return after.get(target, float("-inf"))


def _forwards(times: Sequence[float], count: int, share: float, limit: float) -> float:
    """Return the longest time that forwards take which fit into memory together."""
    room = int(limit / share + _TINY)
    total = 0.0
    for time in sorted(times, reverse=True):
        taken = min(room, count)
        total += taken * time
        room -= taken
    return total
