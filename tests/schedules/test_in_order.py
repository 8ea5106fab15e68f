"""Transfers of which a mesh has one at a time: no value waits for one that is not there yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import Costs, Schedule, get_schedule, simulate
from mpmd_trace.schedules._costs import Timer, per_stage
from mpmd_trace.schedules._engine import Background, InOrder, wire_time
from mpmd_trace.schedules._program import Program, build
from util import max_examples

NAMES = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "dualpipe")
times = st.integers(0, 8).map(lambda n: n / 4)


def played(schedule: Schedule, costs: Costs) -> InOrder:
    program, timer = build(schedule), Timer(schedule, costs)
    return InOrder(program, [timer.step(step) for step in program.steps], costs)


def in_lines(
    program: Program, durations: list[float], costs: Costs, line: list[tuple[int, int]]
) -> tuple[list[float], dict[tuple[int, int], float]]:
    """When steps end and transfers begin, where both meshes of a transfer take theirs in the order of `line`."""
    size = per_stage(costs.size, program.schedule, "size")
    free = [0.0] * program.schedule.meshes
    clock = list(free)
    place = list(program.first[:-1])
    ends: dict[int, float] = {}
    begins: dict[tuple[int, int], float] = {}
    arrives: dict[tuple[int, int], float] = {}
    for step, target in [*line, (-1, -1)]:
        for _ in place:  # whatever can run by now, along all chains of meshes
            for mesh, first in enumerate(program.first[1:]):
                while place[mesh] < first:
                    i = place[mesh]
                    needs = [(n, ends if program.mesh[n] == mesh else arrives) for n in program.needs[i]]
                    keys = [n if where is ends else (n, mesh) for n, where in needs]
                    if any(key not in where for key, (_, where) in zip(keys, needs, strict=True)):
                        break
                    there = [where[key] for key, (_, where) in zip(keys, needs, strict=True)]  # type: ignore[index]
                    clock[mesh] = ends[i] = max([clock[mesh], *there]) + durations[i]
                    place[mesh] += 1
        if step >= 0:
            source = program.mesh[step]
            begins[step, target] = max(ends[step], free[source], free[target])
            wire = costs.delay(source, target) + wire_time(program, step, target, size, costs)
            free[source] = free[target] = arrives[step, target] = begins[step, target] + wire
    return [ends[i] for i in range(len(program.steps))], begins


@max_examples(40)
@given(st.data())
def test_no_value_waits_for_one_that_is_not_there(data: st.DataObject) -> None:
    """As long as a value waits, one of its two meshes is busy with another one; and an order of all gives these times.

    So whatever is at the head of a line when a mesh waits is on its way.
    """
    meshes = 2 * data.draw(st.integers(1, 2))
    schedule = get_schedule(
        data.draw(st.sampled_from(NAMES)), meshes, meshes * data.draw(st.integers(2, 3)), guard=False
    )
    stages = schedule.stages
    each = st.tuples(*[times] * stages)
    latency = {(a, b): data.draw(times) for a in range(meshes) for b in range(meshes) if a != b}
    costs = Costs(
        forward=data.draw(each), input_grad=data.draw(each), weight_grad=data.draw(each), latency=latency,
        size=data.draw(each), bandwidth=2.0,
    )  # fmt: skip
    run = played(schedule, costs)
    assert run.finished()
    program, busy = run.program, [[] for _ in range(meshes)]  # type: ignore[var-annotated]
    for (step, target), begin in run.sent.items():
        for mesh in (program.mesh[step], target):
            busy[mesh].append((begin, run.arrival(step, target)))
    for (step, target), begin in run.sent.items():
        now = run.ends[step]
        for a, b in sorted(busy[program.mesh[step]] + busy[target]):
            if a <= now:
                now = max(now, min(b, begin))
        assert now == begin, "both meshes were free, and it was there"
    ends, begins = in_lines(program, run.durations, costs, list(run.sent))
    assert begins == run.sent and ends == run.ends


def test_interleaved_1f1b_loses_nothing_to_an_order_of_messages() -> None:
    """Links of a tenth of a stage: in the order of a schedule without transfer times, it would take 5 % longer."""
    schedule = get_schedule("interleaved-1f1b", 8, 32, chunks=2)
    costs = Costs(latency=0.05)
    assert simulate(schedule, costs, transfers="in-order").makespan == pytest.approx(108.0)
    assert simulate(schedule, costs).makespan == pytest.approx(108.0)
    run = played(schedule, costs)
    at_once = Background(run.program, run.durations, Costs(), exposed=False)
    line = sorted(run.sent, key=lambda pair: (at_once.ends[pair[0]], pair))
    ends, _ = in_lines(run.program, run.durations, costs, line)
    assert max(ends) > 1.04 * 108.0
