"""Meshes on processes in every way: their parts, steps and places, and the values that come of them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import mpmd_trace as mt
from in_threads import distributions, run_in_threads
from mpmd_trace.backend.distribution.deadlock import check_order
from mpmd_trace.backend.distribution.order import distribute
from mpmd_trace.backend.distribution.parts import part_of
from mpmd_trace.backend.plan import Plan
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.backend.steps import Places, make_steps

WIDTH = 8


def jitted(meshes: int, schedule: str, microbatches: int, topology: dict[str, Any]) -> mt.Jitted:
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
            _, steps = make_steps(part.instructions, functools.partial(part.is_copy, order=order))
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
    plan = planned(4, "1F1B", 8)
    gaps = 0
    for process_of in distributions(list(plan.meshes), 2):
        order = distribute(plan, {name: (process,) for name, process in process_of.items()})
        for process in set(process_of.values()):
            part = part_of(plan, order, process)
            _, steps = make_steps(part.instructions, functools.partial(part.is_copy, order=order))
            joined = [step.outputs for step in steps if len(step.instructions) > 1]
            gaps += sum(out != tuple(range(out[0], out[0] + len(out))) for out in joined)
    assert gaps


@pytest.mark.parametrize(("meshes", "schedule", "microbatches", "processes"), [(4, "1F1B", 8, 4), (5, "GPipe", 3, 3)])
def test_every_distribution_computes_what_one_process_does(
    meshes: int, schedule: str, microbatches: int, processes: int
) -> None:
    topology = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(meshes)}
    args = arguments(meshes, microbatches)
    compiled = jitted(meshes, schedule, microbatches, topology).lower(*args).compile()
    placed = jax.tree.leaves(compiled.place(*args))
    given = [jax.device_put(x, x.sharding, may_alias=False) for x in placed]
    expected = compiled.program.runtime.run(given)
    for process_of in distributions(list(topology), processes):
        for found in run_in_threads(compiled.program, process_of, placed, steps=2):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b), str(process_of))
