"""Plans that several threads issue: the order on each device, numbers, errors, and when threads are used."""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpmd_trace as mt
from mpmd_trace.backend.issue_threads import lanes_of
from mpmd_trace.backend.plan import Free, Plan, Run, Transfer
from mpmd_trace.backend.runtime import SLOW
from pipelines import assert_same, config, layer, loss_of, summed_values, topology
from util import max_examples

STAGES = 4


def step(ws: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    value, grads = summed_values(loss_of(layer), ws, batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value


ARGS = (
    [np.random.default_rng(i).normal(size=(8, 8)).astype(np.float32) for i in range(STAGES)],
    np.random.default_rng(9).normal(size=(6, 4, 8)).astype(np.float32),
)


def compiled(schedule: str = "1F1B", meshes: int = STAGES, devices: int = STAGES) -> mt.stages.Compiled:
    found = list(topology(devices, 1).values())
    where = {f"f{i}": f"m{i * meshes // STAGES}" for i in range(STAGES)}
    shared = {f"m{i}": found[i % devices] for i in range(meshes)}
    made = config(where, topology=shared, pipeline_schedule=schedule)
    return mt.jit(step, made, donate_argnums=0).lower(*ARGS).compile()


def played(plan: Plan, choose: Any) -> dict[str, list[int]]:
    """Issue the lanes in some order that they allow; return the numbers of what each device gets.  Checks every use."""
    lanes = lanes_of(plan, lambda transfer: True)
    instructions = [i for i in plan.instructions if not isinstance(i, Free)]
    values = set(plan.arguments).difference(s for lane in lanes for s in lane.leading)
    at, order = [0] * len(lanes), {mesh: [] for mesh in plan.meshes}
    while any(at[i] < len(lane.steps) for i, lane in enumerate(lanes)):
        ready = [
            i
            for i, lane in enumerate(lanes)
            if at[i] < len(lane.steps) and all(at[other] > k for other, k in lane.awaited[at[i]])
        ]
        assert ready, "the threads wait for each other"
        lane = ready[choose(len(ready))]
        one = lanes[lane].steps[at[lane]]
        at[lane] += 1
        assert values.issuperset(one.inputs), "a value is used before it is there, or after it is dropped"
        values.update(one.outputs)
        values.difference_update(one.frees)
        for number in one.numbers:
            instruction = instructions[number]
            order[instruction.mesh if isinstance(instruction, Run) else instruction.source].append(number)
    assert values.issuperset(plan.results)
    return order


@functools.cache
def plan_of(schedule: str) -> Plan:
    return compiled(schedule).program.plan


@max_examples(60)
@given(schedule=st.sampled_from(["1F1B", "GPipe", "zb-h1"]), picks=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_in_any_order_of_threads_each_device_gets_its_programs_in_the_order_of_the_plan(
    schedule: str, picks: list[int]
) -> None:
    plan, turn = plan_of(schedule), iter(range(10**6))
    order = played(plan, lambda count: picks[next(turn) % len(picks)] % count)
    numbered = [i for i in plan.instructions if not isinstance(i, Free)]
    for mesh, numbers in order.items():
        own = [n for n, i in enumerate(numbered) if mesh == (i.mesh if isinstance(i, Run) else i.source)]
        assert numbers == own


def test_a_transfer_that_waits_shares_no_call_with_one_that_is_waited_for() -> None:
    """m0 sends a value, m1 answers with another one that m0 sends on."""
    plan = plan_of("1F1B")
    slot = plan.slots[0]
    type0, type1 = (next(s.type for s in plan.slots if s.mesh == mesh) for mesh in ("m0", "m1"))
    slots = tuple(slot._replace(number=n, type=t) for n, t in enumerate((type0, type1, type0, type1)))
    there = [Transfer("m0", "m1", (0,), (1,)), Transfer("m1", "m0", (1,), (2,)), Transfer("m0", "m1", (2,), (3,))]
    small = Plan("f", plan.meshes, slots, (), tuple(there), (0,), (3,), frozenset(), ("",))
    assert [n for n in played(small, lambda count: 0).values() if n] == [[0, 2], [1]]


def test_several_threads_launch_at_once_and_numbers_are_those_of_jit() -> None:
    """The last programs of two devices wait in their launches until both are there: one thread would not end."""
    c = compiled("GPipe")
    runtime = c.program.runtime
    runtime._launches_slowly = True
    together = threading.Barrier(2, timeout=60)
    for mesh in ("m0", "m1"):  # their weights are updated
        number = max(n for n, i in enumerate(runtime.instructions) if isinstance(i, Run) and i.mesh == mesh)

        def waiting(args: Any, call: Any = runtime.calls[number]) -> Any:
            together.wait()
            return call(args)

        runtime.calls[number] = waiting
    expected = jax.jit(step)(*ARGS)
    for _ in range(2):
        assert_same(c(*ARGS), expected)


def test_threads_issue_where_launches_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = (c := compiled(meshes=2, devices=2)).program.runtime
    runtime.may_use_threads = True  # as if not on CPUs
    clock = iter(np.arange(1000) * 1.1 * SLOW * len(runtime.steps))  # looked at before and after each call
    monkeypatch.setattr("mpmd_trace.backend.runtime.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    states = []
    for _ in range(5):
        c(*ARGS)
        states.append((runtime._launches_slowly, "_threaded" in runtime.__dict__))
    assert states == [(False, False)] * 3 + [(True, False), (True, True)]


def test_meshes_that_share_all_devices_have_one_thread() -> None:
    c = compiled(meshes=2, devices=1)
    assert len(lanes_of(c.program.plan, lambda t: True)) == 1
    two = compiled(meshes=4, devices=2)
    assert len(lanes_of(two.program.plan, lambda t: True)) == 2
    two.program.runtime._launches_slowly = True
    assert_same(two(*ARGS), jax.jit(step)(*ARGS))


def test_what_a_thread_raises_names_its_instruction_and_stops_all() -> None:
    c = compiled()
    runtime = c.program.runtime
    runtime._launches_slowly = True
    number = next(n for n, i in enumerate(runtime.instructions) if isinstance(i, Run) and i.mesh == "m2")

    def failing(_: Any) -> Any:
        raise RuntimeError("the launch failed")

    kept, runtime.calls[number] = runtime.calls[number], failing
    with pytest.raises(RuntimeError, match="the launch failed") as caught:
        c(*ARGS)
    assert any(f"while issuing instruction {number} of the plan: run of" in note for note in caught.value.__notes__)
    runtime.calls[number] = kept
    del runtime.__dict__["_threaded"]
    assert np.isfinite(float(c(*ARGS)[1]))


def test_with_checks_of_numbers_one_thread_issues(monkeypatch: pytest.MonkeyPatch) -> None:
    c = compiled()
    c.program.runtime._launches_slowly = True
    bad = [np.full_like(w, np.nan) for w in ARGS[0]]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        c(bad, ARGS[1])


@pytest.mark.parametrize("watch", ["device_to_device", "device_to_host", "host_to_device"])
def test_with_a_guard_of_transfers_one_thread_issues(watch: str) -> None:
    c = compiled()
    c.program.runtime._launches_slowly = True
    args = c.place(*ARGS)[0]
    with getattr(jax, f"transfer_guard_{watch}")("log"):
        c(*args)
    assert "_threaded" not in c.program.runtime.__dict__


def test_steps_that_call_back_python_are_issued_by_one_thread() -> None:
    seen: list[float] = []

    def told(ws: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        ws, value = step(ws, batch)
        jax.debug.callback(lambda v: seen.append(float(v)), value)
        return ws, value

    where = config({f"f{i}": f"m{i}" for i in range(STAGES)}, topology=topology(STAGES, 1), pipeline_schedule="1F1B")
    c = mt.jit(told, where).lower(*ARGS).compile()
    c.program.runtime._launches_slowly = True
    value = c(*ARGS)[1]
    jax.effects_barrier()
    assert seen == [float(value)] and "_threaded" not in c.program.runtime.__dict__
