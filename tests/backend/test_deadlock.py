"""Processes that wait for each other: found where they do, nowhere else, and told in terms of the plan."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator, Sequence

import pytest
from exported import PIPELINE

from fuzz.deadlocks import check, check_swapped
from fuzz.plans import random_example, swapped
from fuzz.threads import play
from mpmd_trace.backend.distribution.deadlock import (
    Parts,
    check_order,
    find_deadlock,
    find_faults,
    find_faults_of_runtime,
    least_buffers,
)
from mpmd_trace.backend.distribution.order import (
    Action,
    LocalCopy,
    Message,
    Order,
    Receive,
    RunProgram,
    Send,
    distribute,
)
from mpmd_trace.backend.distribution.parts import issued
from mpmd_trace.backend.plan import Plan, ProgramSpec, Run, Slot, Transfer
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.sharding_attributes import parse_sharding_body
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import TensorType, mesh_tensor, parse_type
from util import nightly

PARTS = 8
#: The first one every time, the others in `make nightly`; `make deadlocks` checks any number of plans.
PART = [0, *map(nightly, range(1, PARTS))]


@pytest.mark.parametrize("part", PART)
def test_generated_plans_end(part: int) -> None:
    """The same 400 plans each time."""
    for seed in range(part, 400, PARTS):
        check(seed, execute=seed % 5 == 0)


@pytest.mark.parametrize("part", PART)
def test_swapped_actions_hang_where_the_checker_says_so(part: int) -> None:
    became: collections.Counter[str] = collections.Counter()
    for seed in range(10_000 + part, 10_400, PARTS):
        became[check_swapped(seed, *check(seed))] += 1
    assert became["hangs"] > 2 and became["ends"] > 2


def test_how_it_ends_does_not_depend_on_who_comes_first() -> None:
    for seed in range(20_000, 20_020):
        example, order, parts = check(seed)
        changed = swapped(random.Random(seed), parts) or parts
        if not find_faults(example.plan, order, changed):
            assert len({play(example.plan, order, changed, 1, seed=turn) for turn in range(5)}) == 1


def test_more_buffers_never_hurt() -> None:
    seen = set()
    for seed in range(30_000, 30_100):
        rng = random.Random(seed)
        example = random_example(rng)
        order = distribute(example.plan, example.owners)
        changed = swapped(rng, order.parts())
        if changed is None or find_faults(example.plan, order, changed):
            continue
        least = least_buffers(changed)
        seen.add(least)
        if least is None:
            assert play(example.plan, order, changed, None) == "hangs"
        else:
            assert all(find_deadlock(changed, buffers) is None for buffers in (least, least + 1, None))
            assert all(find_deadlock(changed, buffers) is not None for buffers in range(least))
    assert {None, 0, 1} <= seen


@pytest.mark.parametrize("seed", range(60))
def test_every_interleaving_ends_where_one_does(seed: int) -> None:
    """All ways to play a few messages and collectives, one after the other, against the checker's one."""
    rng = random.Random(seed)
    parts = _few_actions(rng)
    buffers = rng.choice((0, 0, 1, 2, None))
    start = dict.fromkeys(parts, 0)
    seen, ends = {tuple(start.values())}, set()
    waiting = [start]
    while waiting:
        state = waiting.pop()
        after = list(_next_states(parts, state, buffers))
        if not after:
            ends.add(tuple(state.values()))
        for one in after:
            if tuple(one.values()) not in seen:
                seen.add(tuple(one.values()))
                waiting.append(one)
    assert len(ends) == 1
    found = find_deadlock(parts, buffers)
    (end,) = ends
    stuck = {p: at for p, at in zip(parts, end, strict=True) if at < len(parts[p])}
    assert stuck == ({} if found is None else found.stuck)
    if found is not None:
        assert found.is_cycle, "nobody leaves anything out"


def _few_actions(rng: random.Random) -> dict[int, tuple[Action, ...]]:
    """Messages and collectives of three processes in one order, in which some of each process are swapped."""
    parts: dict[int, list[Action]] = {0: [], 1: [], 2: []}
    run = Run(0, "a", (), (), (), "f")
    for at in range(rng.randint(2, 8)):
        if rng.random() < 0.3:
            members = tuple(sorted(rng.sample(range(3), rng.randint(1, 3))))
            for member in members:
                parts[member].append(RunProgram(at, run, members))
        else:
            source, target = rng.sample(range(3), 2)
            message = Message(at, at, 0, 0, source, target, ())
            parts[source].append(Send(message))
            parts[target].append(Receive(message))
    for actions in parts.values():
        for _ in range(rng.randint(0, 2)):
            if len(actions) > 1:
                a, b = rng.sample(range(len(actions)), 2)
                actions[a], actions[b] = actions[b], actions[a]
    return {process: tuple(actions) for process, actions in parts.items()}


def _next_states(parts: Parts, state: dict[int, int], buffers: int | None) -> Iterator[dict[int, int]]:
    """The states after each action that can happen; a rendezvous and a collective are one for all their processes."""
    heads = {p: parts[p][at] for p, at in state.items() if at < len(parts[p])}
    done = [a for p, at in state.items() for a in parts[p][:at]]
    sent = [a.message for a in done if isinstance(a, Send)]
    received = [a.message for a in done if isinstance(a, Receive)]
    for process, action in heads.items():
        if isinstance(action, RunProgram):
            together = all(isinstance(h := heads.get(m), RunProgram) and h.at == action.at for m in action.members)
            movers = action.members if together else ()
        elif isinstance(action, Send):
            message = action.message
            other = heads.get(message.destination)
            link = process, message.destination
            lying = [m for m in sent if m not in received and (m.source, m.destination) == link]
            if buffers == 0:
                meets = isinstance(other, Receive) and other.message == message
                movers = (process, message.destination) if meets else ()
            else:
                movers = (process,) if buffers is None or len(lying) < buffers else ()
        else:
            assert isinstance(action, Receive)
            movers = (process,) if buffers != 0 and action.message in sent else ()
        if movers:
            yield {p: at + (p in movers) for p, at in state.items()}


# By hand.


def _plan(*links: str) -> Plan:
    """A run on each mesh, and then transfers such as "ab" of what it made."""
    meshes = sorted({mesh for link in links for mesh in link})
    tensor = parse_type("tensor<4xf32>")
    assert isinstance(tensor, TensorType)
    slots = [Slot(i, mesh_tensor(mesh, tensor), None, 16) for i, mesh in enumerate(meshes)]
    instructions: list[Run | Transfer] = [Run(i, m, (), (i,), (), f"f{m}") for i, m in enumerate(meshes)]
    for source, target in links:
        slots.append(Slot(len(slots), mesh_tensor(target, tensor), None, 16))
        instructions.append(Transfer(source, target, (meshes.index(source),), (len(slots) - 1,)))
    programs = tuple(ProgramSpec(i, f"p{i}_f{m}_call0", m, (), (), ()) for i, m in enumerate(meshes))
    bodies = dict.fromkeys(meshes, '<["x"=1]>')
    results = tuple(range(len(meshes), len(slots)))
    names = ("",) * len(results)
    return Plan("step", bodies, tuple(slots), programs, tuple(instructions), (), results, frozenset(), names)


def _in_order(parts: Parts, process: int, *kinds: type) -> dict[int, tuple[Action, ...]]:
    """The parts, where the messages of a process are in the order of these kinds."""
    found = dict(parts)
    own: Sequence[Action] = parts[process]
    head = [a for a in own if isinstance(a, RunProgram)]
    tail = [a for a in own if isinstance(a, LocalCopy)]
    found[process] = (*head, *(a for kind in kinds for a in own if isinstance(a, kind)), *tail)
    return found


TWO = {"a": (0,), "b": (1,)}
THREE = {**TWO, "c": (2,)}


def test_both_send_first() -> None:
    plan = _plan("ab", "ba", "ab", "ba")
    order = distribute(plan, TWO)
    parts = order.parts()
    assert find_deadlock(parts) is None
    for process in parts:
        parts = _in_order(parts, process, Send, Receive)
    found = find_deadlock(parts)
    assert found is not None and found.is_cycle
    assert found.text(plan, parts, {0: "forward of stage 0, microbatch 3"}) == (
        "2 processes wait for each other in a cycle (without buffers):\n"
        "  process 0 waits (at its action 1) to send %2 f32[4] from mesh 'a' to 'b', to process 1, tag 0, "
        "made by @p0_fa_call0 (forward of stage 0, microbatch 3)\n"
        "    for process 1 to receive it (its action 3)\n"
        "  process 1 waits (at its action 1) to send %3 f32[4] from mesh 'b' to 'a', to process 0, tag 1, "
        "made by @p1_fb_call0\n"
        "    for process 0 to receive it (its action 3)"
    )
    assert least_buffers(parts) == 2
    with_one = find_deadlock(parts, 1)
    assert with_one is not None
    assert "(with 1 buffer from each process to each other):" in with_one.text(plan, parts)
    assert "for process 1 to make room, and receive %2" in with_one.text(plan, parts)
    assert play(plan, order, parts, 1) == "hangs" and play(plan, order, parts, 2) == "ends"


def test_both_receive_first() -> None:
    plan = _plan("ab", "ba")
    parts = distribute(plan, TWO).parts()
    for process in parts:
        parts = _in_order(parts, process, Receive, Send)
    found = find_deadlock(parts, None)
    assert found is not None and least_buffers(parts) is None
    assert found.text(plan, parts).splitlines()[0] == (
        "2 processes wait for each other in a cycle (with any number of buffers):"
    )
    assert "for process 1 to send it (its action 2)" in found.text(plan, parts)


def test_the_shortest_cycle_is_reported() -> None:
    plan = _plan("ab", "bc", "ca", "cb")
    parts = distribute(plan, THREE).parts()
    for process in parts:
        parts = _in_order(parts, process, Receive, Send)
    found = find_deadlock(parts)
    assert found is not None
    assert sorted(found.stuck) == [0, 1, 2]
    assert [(w.process, w.peer) for w in found.waits] == [(0, 2), (2, 1), (1, 0)]
    # When process 1 first wants what process 2 sends, these two are a cycle, and process 0 waits for it.
    behind = dict(parts)
    receives = [a for a in parts[1] if isinstance(a, Receive)]
    rest = [a for a in parts[1] if not isinstance(a, Receive)]
    behind[1] = (rest[0], *reversed(receives), *rest[1:])
    found = find_deadlock(behind)
    assert found is not None
    assert {(w.process, w.peer) for w in found.waits} == {(1, 2), (2, 1)}


def test_collectives_in_another_order() -> None:
    plan = _plan("ab")
    plan = dataclasses.replace(plan, meshes=dict.fromkeys(plan.meshes, '<["x"=2]>'))
    order = distribute(plan, {"a": (0, 1), "b": (1, 0)})
    parts = order.parts()
    assert find_deadlock(parts) is None
    first, second, *rest = parts[1]
    parts[1] = (second, first, *rest)
    found = find_deadlock(parts, None)
    assert found is not None
    assert found.text(plan, parts).splitlines()[1:] == [
        "  process 0 waits (at its action 0) to run @p0_fa_call0 (fa) on mesh 'a', with processes 0, 1",
        "    for process 1 to come to it (its action 1)",
        "  process 1 waits (at its action 0) to run @p1_fb_call0 (fb) on mesh 'b', with processes 0, 1",
        "    for process 0 to come to it (its action 1)",
    ]
    assert play(plan, order, parts, None) == "hangs"


def test_a_process_that_leaves_something_out() -> None:
    plan = _plan("ab", "bc")
    order = distribute(plan, THREE)
    parts = order.parts()
    parts[0] = tuple(a for a in parts[0] if not isinstance(a, Send))
    found = find_deadlock(parts)
    assert found is not None and not found.is_cycle and len(found.waits) == 1
    assert found.text(plan, parts) == (
        "process 1 waits for what never happens (without buffers):\n"
        "  process 1 waits (at its action 1) to receive %3 f32[4] from mesh 'a' to 'b', from process 0, tag 0, "
        "made by @p0_fa_call0\n"
        "    for process 0 to send it, which it never does"
    )
    assert sorted(found.stuck) == [1, 2]
    assert find_faults(plan, order, parts) == [
        "process 0 leaves out its part (to send): receive %3 f32[4] from mesh 'a' to 'b', from process 0, tag 0"
    ]


def test_values_that_are_not_there() -> None:
    plan = _plan("ab")
    order = distribute(plan, TWO)
    parts = order.parts()
    early = {**parts, 0: parts[0][::-1], 1: (parts[1][0], parts[1][2], parts[1][1])}
    assert find_faults(plan, order, early) == [
        "process 0 has no %0 f32[4] when it comes to: send %2 f32[4] from mesh 'a' to 'b', to process 1, tag 0",
        "process 1 uses a message before it comes: have %2 f32[4] on mesh 'b'",
    ]
    twice = {**parts, 0: (*parts[0], parts[0][-1]), 1: (*parts[1], parts[0][-1])}
    assert find_faults(plan, order, twice) == [
        "process 0 does twice: send %2 f32[4] from mesh 'a' to 'b', to process 1, tag 0",
        "process 1 has no part in what it does: send %2 f32[4] from mesh 'a' to 'b', to process 1, tag 0",
        "process 1 has no %0 f32[4] when it comes to: send %2 f32[4] from mesh 'a' to 'b', to process 1, tag 0",
    ]
    cut = {**parts, 1: parts[1][:1]}
    assert "process 1 has no %2 f32[4] to return" in find_faults(plan, order, cut)


def test_a_planned_program_ends() -> None:
    plan = make_plan(parse(PIPELINE))
    for owners in ({"a": (0, 0), "b": (1, 1)}, {"a": (0, 1), "b": (1, 2)}, {"a": (2, 0), "b": (1, 0)}):
        check_order(plan, distribute(plan, owners))


def test_an_order_that_would_not_end_is_an_error() -> None:
    plan = _plan("ab", "ba")
    order = distribute(plan, TWO)
    wrong = dataclasses.replace(order, actions=tuple(sorted(order.actions, key=_receives_before_sends)))
    with pytest.raises(MpmdError) as caught:
        check_order(plan, wrong)
    assert "the plan does not work on these processes: 2 processes wait for each other in a cycle" in str(caught.value)


def test_what_a_runtime_cannot_send_is_an_error() -> None:
    plan = _plan("ab")
    tensor = parse_type("tensor<4xf32>")
    assert isinstance(tensor, TensorType)
    partial = mesh_tensor("a", tensor, parse_sharding_body('<@mesh, [{}], unreduced={"x"}>'))
    slots = (plan.slots[0]._replace(type=partial), *plan.slots[1:])
    plan = dataclasses.replace(plan, meshes=dict.fromkeys(plan.meshes, '<["x"=2]>'), slots=slots)
    check_order(plan, distribute(plan, {"a": (0, 0), "b": (0, 0)}))
    order = distribute(plan, {"a": (0, 0), "b": (1, 1)})
    with pytest.raises(MpmdError, match=r"%0 f32\[4\] is not reduced, and cannot go to another process like that"):
        check_order(plan, order)


def test_the_checker_plays_what_runtimes_issue() -> None:
    """Values in turn: first all that is sent, then what comes, whatever the order of the processes' numbers."""
    plan = _plan("ab")
    plan = dataclasses.replace(plan, meshes=dict.fromkeys(plan.meshes, '<["x"=2]>'))
    shardings = ['[{"x"}]', "[{}]"]
    tensor = parse_type("tensor<4xf32>")
    assert isinstance(tensor, TensorType)
    types = [mesh_tensor(m, tensor, parse_sharding_body(f"<@mesh, {s}>")) for m, s in zip("ab", shardings, strict=True)]
    slots = (plan.slots[0]._replace(type=types[0]), plan.slots[1], plan.slots[2]._replace(type=types[1]))
    plan = dataclasses.replace(plan, slots=slots)
    order = distribute(plan, {"a": (0, 1), "b": (0, 1)})
    kinds = {
        p: [type(a) for a in actions if not isinstance(a, RunProgram)] for p, actions in issued(plan, order).items()
    }
    assert kinds == {0: [Send, Receive, LocalCopy], 1: [Send, Receive, LocalCopy]}
    assert [type(a) for a in order.of(1) if not isinstance(a, RunProgram)] == [Receive, Send, LocalCopy]
    assert find_faults_of_runtime(plan, order) == []
    # What a process reads before it has it is found in what is issued, too.
    late = tuple(sorted(order.actions, key=lambda a: isinstance(a, RunProgram)))
    faults = find_faults_of_runtime(plan, dataclasses.replace(order, actions=late))
    assert any("process 0 has no %0" in fault for fault in faults)


def _receives_before_sends(action: Action) -> int:
    kinds = (RunProgram, Receive, Send)
    return next((n for n, kind in enumerate(kinds) if isinstance(action, kind)), len(kinds))


def test_time_is_linear_in_the_actions() -> None:
    """A long chain of messages there and back, of which each makes the other process go on."""
    messages = [Message(tag, 0, 0, 0, tag % 2, 1 - tag % 2, ()) for tag in range(20_000)]
    parts = {p: tuple(Send(m) if m.source == p else Receive(m) for m in messages) for p in (0, 1)}
    assert find_deadlock(parts) is None
    parts[0] = parts[0][:-2]
    found = find_deadlock(parts)
    assert found is not None and found.stuck == {1: len(messages) - 2}


def test_orders_are_data() -> None:
    example = random_example(random.Random(5))
    order = distribute(example.plan, example.owners)
    assert isinstance(order, Order) and order.parts() == order.parts()
    assert all(order.of(p) == part for p, part in order.parts().items())
    assert order.of(99) == ()
