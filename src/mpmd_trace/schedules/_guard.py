"""Warnings about schedules that are legal but no longer what their name promises."""

from __future__ import annotations

from mpmd_trace.schedules._classic import one_f_one_b
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._entry import Entry
from mpmd_trace.schedules._schedule import Schedule
from mpmd_trace.schedules._simulate import simulate
from mpmd_trace.schedules._zero_bubble import h2_warm_up


def degenerate(entry: Entry, schedule: Schedule, costs: Costs | None = None) -> list[str]:
    """Why the schedule degenerates, with its simulated time beside that of 1F1B; often nothing."""
    wanted = _wanted(entry, schedule.meshes)
    if schedule.microbatches >= wanted or schedule.meshes == 1:
        return []
    # Per-stage costs need not fit 1F1B on the same meshes, so unit costs stand in for them.
    costs = None if costs is not None and _per_stage(costs) else costs
    here = simulate(schedule, costs)
    plain = simulate(one_f_one_b(schedule.meshes, schedule.microbatches), costs)
    unit = "at unit costs" if costs is None else "at the given costs"
    return [
        f"{entry.name} on {schedule.meshes} meshes is made for {wanted} microbatches or more; with "
        f"{schedule.microbatches} it degenerates. Simulated {unit}: {entry.name} takes "
        f"{here.makespan:g} (span {here.span:g}, of which {here.bubble_span:g} bubble), 1f1b takes "
        f"{plain.makespan:g} (span {plain.span:g}, of which {plain.bubble_span:g} bubble)"
    ]


def _wanted(entry: Entry, meshes: int) -> int:
    ratio = dict(entry.fixed).get("transfer_ratio", 0.0)
    if entry.function == "_zero_bubble:zb_h2":
        return h2_warm_up(meshes, 0, ratio)
    if entry.name == "zb-v":
        return 2 * meshes - 1
    return 0


def _per_stage(costs: Costs) -> bool:
    values = (costs.forward, costs.input_grad, costs.weight_grad, costs.backward)
    return any(isinstance(v, tuple) for v in values) or not isinstance(costs.latency, (int, float))
