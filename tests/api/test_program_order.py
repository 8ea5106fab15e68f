"""Without a `pipeline_schedule` microbatches run one after the other, and a step takes the memory that jit takes."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.api.partitioned import tell_once
from mpmd_trace.scheduling.resolve_schedule import resolve_schedule
from pipelines import assert_same, config, loss, summed_values, topology
from util import normal

MICROBATCHES, ROWS, WIDTH, LAYERS = 8, 256, 32, 8
ARGS = [0.2 * normal(i, WIDTH, WIDTH) for i in range(LAYERS)], normal(LAYERS, MICROBATCHES, ROWS, WIDTH)


def step(ws: Any, batch: jax.Array) -> Any:
    value, grads = summed_values(loss, ws, batch)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def plain(ws: Any, batch: jax.Array) -> Any:
    def one(total: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(ws, x)), None

    (value, grads), _ = jax.lax.scan(one, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)), batch)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def lowered(meshes: int, **options: Any) -> mt.stages.Lowered:
    names = {f"f{i}": f"m{i * meshes // LAYERS}" for i in range(LAYERS)}
    found = config(names, topology=topology(meshes, size=1), **options)
    return mt.jit(step, found, donate_argnums=0).lower(*ARGS)


def donated(args: Any) -> Any:
    return jax.tree.map(jnp.copy, args[0]), args[1]


def directions(compiled: mt.stages.Compiled, mesh: str) -> str:
    """F for each forward and B for each backward of a mesh, in the order in which they are issued."""
    own = [run for run in compiled.program.plan.runs if run.mesh == mesh]
    return "".join("FB"[times] for run in own for times in dict.fromkeys(times for _, times in run.origins))


@pytest.mark.parametrize("meshes", [1, 4])
def test_every_mesh_goes_back_before_the_next_microbatch(meshes: int) -> None:
    compiled = lowered(meshes).compile()
    assert {directions(compiled, mesh) for mesh in compiled.program.plan.meshes} == {"FB" * MICROBATCHES}
    expected = jax.jit(plain)(*ARGS)
    assert_same(compiled(*donated(ARGS)), expected)


@pytest.mark.parametrize("meshes", [1, 4])
def test_no_mesh_takes_more_memory_than_jit(meshes: int) -> None:
    """By XLA's sizes of the programs, and by estimates before it has seen them."""
    theirs = jax.jit(plain, donate_argnums=0).lower(*ARGS).compile().memory_analysis()
    assert theirs is not None
    jit = theirs.argument_size_in_bytes + theirs.output_size_in_bytes + theirs.temp_size_in_bytes
    jit -= theirs.alias_size_in_bytes
    found = lowered(meshes)
    for analysis in (found.memory_analysis(), found.compile().memory_analysis()):
        assert max(one.peak for one in analysis.values()) <= 1.1 * jit
    gpipe = lowered(meshes, pipeline_schedule="GPipe").memory_analysis()
    assert sum(one.peak for one in gpipe.values()) > 2 * jit


def test_that_meshes_wait_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "mpmd_trace"):
        assert lowered(1).schedule.name == "program order"
        lowered(4, pipeline_schedule="1F1B")
        assert not caplog.records
        lowered(4)
        lowered(4)
    (record,) = caplog.records
    assert "of 4 meshes one works at a time" in record.getMessage()
    assert "pipeline_schedule='1F1B'" in record.getMessage()


def test_the_reference_keeps_its_default() -> None:
    assert resolve_schedule(config(), "cpp").name == "GPipe"
    named = config(partitioning_options={"mpmd_pipeline_schedule": "GPipe"})
    assert resolve_schedule(named).name == "GPipe"
