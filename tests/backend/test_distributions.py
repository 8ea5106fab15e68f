"""Meshes on processes in every way: their parts, steps and places, and the values that come of them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import in_threads
import mpmd_trace as mt
from in_threads import InOrder, distributions, run_in_threads
from mpmd_trace.backend.distribution.deadlock import check_order
from mpmd_trace.backend.distribution.order import distribute
from mpmd_trace.backend.distribution.parts import part_of
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.plan import Plan
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.steps import Places, make_steps

WIDTH = 8

pytestmark = pytest.mark.filterwarnings("ignore:the schedule '.*' has one microbatch:mpmd_trace.MpmdWarning")


def jitted(meshes: int, schedule: str, microbatches: int, topology: dict[str, Any]) -> mt.stages.Jitted:
    """A training step of a layer on each mesh, with tied weights so that values go between all of them."""

    def loss(weights: list[Any], x: Any) -> Any:
        first = x
        for i, w in enumerate(weights):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"f{i}")(w, x)
            if i == meshes // 2:
                x = mt.named_computation(lambda x, y: x + y, name=f"f{i}")(x, first)  # a skip over meshes
        return jnp.mean(x**2)

    def step(weights: list[Any], batch: Any) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=microbatches)(weights, batch)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))  # of all meshes, for all meshes
        return [w - 0.1 * g / (1 + norm) for w, g in zip(weights, grads, strict=True)], value

    names = {f"f{i}": f"m{i}" for i in range(meshes)}
    return mt.jit(step, mt.make_config(topology, names, pipeline_schedule=schedule), donate_argnums=0)


def arguments(meshes: int, microbatches: int) -> tuple[list[Any], Any]:
    generator = np.random.default_rng(0)
    weights = [generator.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(meshes)]
    return weights, generator.normal(size=(2 * microbatches, WIDTH)).astype(np.float32)


@functools.cache
def planned(meshes: int, schedule: str, microbatches: int) -> Plan:
    topology = {f"m{i}": AbstractMesh((1,), ("x",)) for i in range(meshes)}
    lowered = jitted(meshes, schedule, microbatches, topology).lower(*arguments(meshes, microbatches))
    return make_plan(lowered.partitioned.module)


def one_device_each(meshes: int) -> dict[str, Mesh]:
    return {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(meshes)}


def placed_program(topology: dict[str, Mesh], schedule: str, microbatches: int) -> tuple[LoadedProgram, Any, Any]:
    """The program, the arrays for it, and what it makes of them in one process."""
    args = arguments(len(topology), microbatches)
    compiled = jitted(len(topology), schedule, microbatches, topology).lower(*args).compile()
    placed = jax.tree.leaves(compiled.place(*args))
    given = [jax.device_put(x, x.sharding, may_alias=False) for x in placed]
    return compiled.program, placed, compiled.program.runtime.run(given)


def assert_equal(found: Any, expected: Any, process_of: dict[str, int]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), str(process_of))


CASES = [
    (2, "1F1B", 1),
    (2, "GPipe", 4),
    (3, "1F1B", 4),
    (4, "GPipe", 2),
    (4, "1F1B", 8),
    (5, "zb-h1", 6),
    (6, "1F1B", 4),
]


@pytest.mark.parametrize(("meshes", "schedule", "microbatches"), CASES)
def test_every_distribution_has_steps(meshes: int, schedule: str, microbatches: int) -> None:
    """What each process issues ends, and its values are where its steps look for them."""
    plan = planned(meshes, schedule, microbatches)
    for process_of in distributions(list(plan.meshes), 4):
        order = distribute(plan, {name: (process,) for name, process in process_of.items()})
        check_order(plan, order)
        for process in set(process_of.values()):
            part = part_of(plan, order, process)
            _, steps = make_steps(part.instructions, part.copies.__contains__)
            places = Places(plan, steps)
            for step in steps:
                at = places.of(step.outputs)
                assert at == tuple(range(at[0], at[0] + len(at))) if at else True
            made = [slot for step in steps for slot in (*step.inputs, *step.outputs) if process in order.held[slot]]
            assert len({places.of([slot]) for slot in made}) == len(set(made)), "each value has a place of its own"
            read = {s for step in steps for i in step.instructions if len(step.instructions) > 1 for s in i.inputs}
            assert part.arriving.isdisjoint(read), "what may be pending is not copied with others"


def test_own_copies_between_the_copies_of_others_share_a_call() -> None:
    """Without the instructions of the other processes they are neighbors, and their slots have gaps."""
    plan = planned(5, "1F1B", 5)
    gaps = 0
    for process_of in distributions(list(plan.meshes), 2):
        order = distribute(plan, {name: (process,) for name, process in process_of.items()})
        for process in set(process_of.values()):
            part = part_of(plan, order, process)
            _, steps = make_steps(part.instructions, part.copies.__contains__)
            joined = [step.outputs for step in steps if len(step.instructions) > 1]
            gaps += sum(out != tuple(range(out[0], out[0] + len(out))) for out in joined)
    assert gaps


@pytest.mark.parametrize(("meshes", "schedule", "microbatches", "processes"), [(4, "1F1B", 8, 4), (5, "GPipe", 3, 3)])
def test_every_distribution_computes_what_one_process_does(
    meshes: int, schedule: str, microbatches: int, processes: int
) -> None:
    program, placed, expected = placed_program(one_device_each(meshes), schedule, microbatches)
    for process_of in distributions(list(program.topology), processes):
        for found in run_in_threads(program, process_of, placed, steps=2):
            assert_equal(found, expected, process_of)


@pytest.mark.parametrize(("meshes", "schedule"), [(3, "1F1B"), (4, "zb-h1")])
def test_from_device_to_device_values_arrive_in_the_order_in_which_they_are_sent(meshes: int, schedule: str) -> None:
    """With ends that wait for each other and know what arrives by its order alone, as JAX's own transfers do."""
    program, placed, expected = placed_program(one_device_each(meshes), schedule, 4)
    for process_of in distributions(list(program.topology), meshes):
        ends: dict[Any, Any] = {}
        sent: list[tuple[int, ...]] = []
        ways = functools.partial(InOrder, ends=ends, sent=sent)
        for found in run_in_threads(program, process_of, placed, steps=2, by_devices=ways):
            assert_equal(found, expected, process_of)
        assert len(sent) > 0 or len(set(process_of.values())) == 1
        assert all(end.empty() for end in ends.values())


def test_what_does_not_fit_goes_through_host_memory_with_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = np.array(jax.devices())
    topology = {name: Mesh(devices[i:j], ("x",)) for name, i, j in (("m0", 0, 2), ("m1", 2, 4), ("m2", 4, 5))}
    program, placed, expected = placed_program(topology, "1F1B", 4)
    sent: list[tuple[int, ...]] = []
    ways = functools.partial(InOrder, ends={}, sent=sent)
    with caplog.at_level("INFO", "mpmd_trace"):
        [found] = run_in_threads(program, {"m0": 0, "m1": 1, "m2": 2}, placed, by_devices=ways)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    assert {(source, target) for source, target, *_ in sent} == {(0, 1), (1, 0)}
    said = set(caplog.messages)
    assert "values go from mesh 'm0' to 'm1' from device to device" in said
    slower = "values go from mesh 'm1' to 'm2' through host memory, which is slower: it goes from 2 to 1 devices"
    assert slower in {r.getMessage() for r in caplog.records if r.levelname == "WARNING"}
    monkeypatch.setattr(in_threads._Job, "must_go_by_devices", True)
    text = r"it goes from \d to \d devices. Leave initialize\(transfers='device_put'\) out"
    with pytest.raises(mt.MpmdError, match=text):
        run_in_threads(program, {"m0": 0, "m1": 0, "m2": 1}, placed, by_devices=ways)


def test_other_tiles_are_made_on_the_source_first() -> None:
    """Rows over the devices of m0, columns over those of m1."""
    devices = np.array(jax.devices())
    topology = {f"m{i}": Mesh(devices[2 * i : 2 * i + 2], ("x",)) for i in range(2)}
    rows, columns = (NamedSharding(topology[m], P(*axes)) for m, axes in (("m0", ("x",)), ("m1", (None, "x"))))

    def forward(x: Any) -> Any:
        x = mt.named_computation(lambda x: jax.lax.with_sharding_constraint(x + 1, rows), name="f0")(x)
        return mt.named_computation(lambda x: x * 2, name="f1")(jax.lax.with_sharding_constraint(x, columns))

    config = mt.make_config(topology, {"f0": "m0", "f1": "m1"})
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    compiled = mt.jit(forward, config, in_shardings=rows, out_shardings=columns).lower(x).compile()
    placed = jax.tree.leaves(compiled.place(x))
    sent: list[tuple[int, ...]] = []
    ways = functools.partial(InOrder, ends={}, sent=sent)
    [[found]] = run_in_threads(compiled.program, {"m0": 0, "m1": 1}, placed, by_devices=ways)
    np.testing.assert_array_equal(np.asarray(found), (x + 1) * 2)
    assert len(sent) == 1 and found.sharding.is_equivalent_to(columns, 2)
