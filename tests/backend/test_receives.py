"""Nothing waits at the head of a line: transfers leave when their values are there, and receives are posted by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.backend.distribution.order import LocalCopy, Receive, RunProgram, Send, distribute
from mpmd_trace.backend.distribution.parts import part_of
from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.ir.text import parse
from mpmd_trace.schedules import Action, Schedule, get_schedule
from util import max_examples

#: What each process issues, in its order.
Parts = Mapping[int, Sequence[object]]
NAMES = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v")


def module_of(schedule: Schedule) -> str:
    """An exported module of a chain of stages, whose transfers are behind what makes their values."""
    meshes = range(schedule.meshes)
    lines: list[str] = []
    made: dict[Action, str] = {}
    mesh_of = schedule.placement.mesh_of
    sent: dict[tuple[str, int], str] = {}
    left = [[part for step in row for part in step.parts] for row in schedule.orders]

    def needed(action: Action) -> list[Action] | None:
        stage, kind, microbatch = action.stage, action.kind, action.microbatch
        wanted = [Action(stage - 1, "F", microbatch)] if kind == "F" and stage else []
        if kind != "F":
            wanted = [Action(stage, "I" if kind == "W" else "F", microbatch)]
            if kind != "W" and stage + 1 < schedule.stages:
                later = next((a for k in "IB" if (a := Action(stage + 1, k, microbatch)) in made), None)
                if later is None:
                    return None
                wanted.append(later)
        return wanted if all(one in made for one in wanted) else None

    while any(left):
        before = len(made)
        for mesh in meshes:
            while left[mesh] and (wanted := needed(left[mesh][0])) is not None:
                action = left[mesh].pop(0)
                operands = [made[one] if mesh_of[one.stage] == mesh else sent[made[one], mesh] for one in wanted]
                name = made[action] = f"%v{len(made)}"
                given, types = ", ".join([*operands, f"%p{mesh}"]), ", ".join([f"!m{mesh}"] * (len(operands) + 1))
                callee = f"@{'b' if action.kind == 'B' else 'f'}{len(operands)}"
                lines.append(
                    f'{name} = mpmd.fragment_call<mesh="m{mesh}", origin=["{action}"]> {callee}({given}) : '
                    f"({types}) -> !m{mesh}"
                )
                to = {"F": action.stage + 1, "I": action.stage - 1, "B": action.stage - 1}.get(action.kind, -1)
                if 0 <= to < schedule.stages and (target := mesh_of[to]) != mesh:
                    value = sent[name, target] = f"{name}t"
                    lines.append(f"{value} = mpmd.transfer {name} : (!m{mesh}) -> !m{target}")
        assert len(made) > before
    types = "\n".join(f'!m{m} = !mpmd.mesh_tensor<"m{m}", tensor<4xf32>>' for m in meshes)
    topology = ", ".join(f'<"m{m}" : <["x"=1]>>' for m in meshes)
    arguments = ", ".join(f"%p{m}: !m{m}" for m in meshes)
    functions = "".join(
        f"""
  func.func @{name}{count}({", ".join(f"%x{i}: tensor<4xf32>" for i in range(count + 1))}) -> tensor<4xf32>
      attributes {{mesh_shape = #sdy.mesh<["x"=1]>}} {{
    %0 = stablehlo.sine %x0 : tensor<4xf32>
    {"" if name == "f" else "%1 = stablehlo.sine %0 : tensor<4xf32>"}
    return %{int(name == "b")} : tensor<4xf32>
  }}"""
        for count in range(3)
        for name in "fb"
    )
    results = ", ".join(f"%p{m}" for m in meshes)
    kinds = ", ".join(f"!m{m}" for m in meshes)
    body = "\n    ".join(lines)
    return f"""{types}
#topology = #mpmd.topology<{topology}>
module @jit_step {{
  func.func public @main({arguments}) -> ({kinds}) attributes {{topology = #topology}} {{
    {body}
    return {results} : {kinds}
  }}{functions}
}}"""


def played(plan: Plan, parts: Parts, duration: Callable[[Run], float], latency: float, ahead: bool) -> list[float]:
    """When each program starts, where one thread of each process issues its part in order.

    The thread waits for what a program needs from others, and for nothing else; a device runs one program after the
    other.  A message leaves when its value is there, and both sides have come to it.  With `ahead` they come to it at
    once: this is as early as anything can be.
    """
    thread, device = dict.fromkeys(parts, 0.0), dict.fromkeys(parts, 0.0)
    ready: dict[int, float] = dict.fromkeys(plan.arguments, 0.0)
    offered: dict[int, float] = {}
    asked: dict[int, float] = {}
    place = dict.fromkeys(parts, 0)
    posted: dict[int, Receive] = {}
    moved = True
    by_at: dict[int, float] = {}
    while moved:
        moved = False
        for process, actions in parts.items():
            while place[process] < len(actions):
                action = actions[place[process]]
                if isinstance(action, RunProgram):
                    assert isinstance(action.instruction, Run)
                    inputs = action.instruction.inputs
                    if any(slot not in ready for slot in inputs):
                        break
                    there = max(ready[slot] for slot in inputs)
                    arrived = [ready[slot] for slot in inputs if slot in posted]
                    thread[process] = max([thread[process], *arrived])
                    start = max(there, device[process])
                    by_at[action.at] = start
                    device[process] = start + duration(action.instruction)
                    ready.update(dict.fromkeys(action.instruction.outputs, device[process]))
                elif isinstance(action, Send):
                    offered[action.message.tag] = max(0.0 if ahead else thread[process], ready[action.message.slot])
                elif isinstance(action, Receive):
                    asked[action.message.tag] = 0.0 if ahead else thread[process]
                    posted[action.message.value] = action
                place[process] += 1
                moved = True
            for value, receive in posted.items():
                tag = receive.message.tag
                if value not in ready and tag in offered:
                    ready[value] = max(offered[tag], asked[tag]) + latency
                    moved = True
    assert all(place[process] == len(actions) for process, actions in parts.items())
    return [by_at[at] for at in sorted(by_at)]


def plan_of(schedule: Schedule) -> tuple[Plan, Parts, Parts]:
    """The plan, and what the process of each mesh issues: in its order, and with receives posted ahead."""
    plan = make_plan(parse(module_of(schedule)))
    order = distribute(plan, {f"m{m}": (m,) for m in range(schedule.meshes)})
    parts = [{m: part_of(plan, order, m, ahead=ahead) for m in range(schedule.meshes)} for ahead in (False, True)]
    usual, ahead = ({m: list(chain.from_iterable(p.actions.values())) for m, p in each.items()} for each in parts)
    for m in range(schedule.meshes):
        assert sorted(map(str, usual[m])) == sorted(map(str, ahead[m]))
        sent = [[a for a in each[m] if not isinstance(a, Receive | LocalCopy)] for each in (usual, ahead)]
        assert sent[0] == sent[1]
    return plan, usual, ahead


def duration_of(times: Sequence[float]) -> Callable[[Run], float]:
    return lambda run: times[sum(map(ord, run.label)) % len(times)]


@max_examples(15)
@given(st.data())
def test_no_receive_waits_at_the_head_of_a_line(data: st.DataObject) -> None:
    """Whatever programs take, as long as a message takes no longer than the shortest of them."""
    name = data.draw(st.sampled_from(NAMES))
    meshes = data.draw(st.integers(2, 4))
    schedule = get_schedule(name, meshes, meshes * data.draw(st.integers(2, 3)), guard=False)
    plan, usual, ahead = plan_of(schedule)
    duration = duration_of(data.draw(st.lists(st.floats(1.0, 4.0), min_size=5, max_size=5)))
    latency = data.draw(st.floats(0.0, 1.0))
    ideal = played(plan, usual, duration, latency, ahead=True)
    for parts in (usual, ahead):
        for now, best in zip(played(plan, parts, duration, latency, ahead=False), ideal, strict=True):
            assert now <= best + 1e-9


@pytest.mark.parametrize("name", ["gpipe", "interleaved-1f1b"])
def test_long_messages_are_on_their_way_while_a_process_waits(name: str) -> None:
    """As long as four short programs: in the order of the plan, each receive would wait for the one before it."""
    plan, usual, ahead = plan_of(get_schedule(name, 4, 12))
    duration = duration_of([1.0, 2.5, 1.5, 3.0, 2.0])
    ideal = max(played(plan, usual, duration, 4.0, ahead=True))
    late, early = (max(played(plan, parts, duration, 4.0, ahead=False)) - ideal for parts in (usual, ahead))
    assert late > 0.04 * ideal
    assert early < late / 4


def in_line(plan: Plan, latency: float, free: bool = False) -> float:
    """When the last program ends, where each mesh sends or receives one value at a time, in the order of the plan.

    Backwards take 9/5 as long as the rest, which is what the planner makes of what they compute.
    With `free`, a mesh may send and receive any number at a time.
    """
    ready: dict[int, float] = dict.fromkeys(plan.arguments, 0.0)
    device, line = dict.fromkeys(plan.meshes, 0.0), dict.fromkeys(plan.meshes, 0.0)
    for one in plan.instructions:
        if isinstance(one, Run):
            begin = max([device[one.mesh], *(ready[s] for s in one.inputs)])
            device[one.mesh] = begin + (1.8 if "B" in one.label else 1.0)
            ready.update(dict.fromkeys(one.outputs, device[one.mesh]))
        elif isinstance(one, Transfer):
            there = max(ready[s] for s in one.inputs)
            begin = there if free else max(there, line[one.source], line[one.target])
            line[one.source] = line[one.target] = begin + latency
            ready.update(dict.fromkeys(one.outputs, begin + latency))
    return max(device.values())


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-h1", "dualpipe-v"])
def test_where_both_ends_match_by_order_nothing_waits_for_what_comes_later(name: str) -> None:
    """In the order of a plan whose transfers take no time, ZB-H1 would take a twentieth longer."""
    plan = make_plan(parse(module_of(get_schedule(name, 8, 16, guard=False))))
    for latency in (0.02, 0.1):
        assert in_line(plan, latency) == pytest.approx(in_line(plan, latency, free=True), rel=5e-3)
