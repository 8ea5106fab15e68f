"""Collectives are counted as often as they run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace.backend.collectives import Collective, collectives_of

MESH = Mesh(np.array(jax.devices()[:2]), ("data",))


def compiled(function: Any, rows: int = 8) -> Any:
    """`function` of a part of (rows, 4) floats on each of two devices."""
    mapped = jax.shard_map(function, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    return jax.jit(mapped).lower(jax.ShapeDtypeStruct((rows, 4), jnp.float32)).compile()


def summed(x: jax.Array) -> jax.Array:
    return x + jax.lax.psum(jnp.sin(x), "data")


def test_a_collective_counts_with_its_arrays_and_bytes() -> None:
    found = collectives_of(compiled(summed))
    assert found["all-reduce"] == Collective(runs=1, arrays=1, bytes=4 * 4 * 4)
    assert found.total == found["all-reduce"]
    assert str(found) == "1 all-reduce"


def test_gathers_count_what_arrives() -> None:
    found = collectives_of(compiled(lambda x: x * jax.lax.all_gather(jnp.sin(x), "data").sum()))
    assert found["all-gather"] == Collective(1, 1, 8 * 4 * 4)


def test_collectives_in_loops_count_as_often_as_the_loop_runs() -> None:
    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.cos(summed(c)), None), x, None, 5)[0]

    assert collectives_of(compiled(looped))["all-reduce"].runs == 5


def test_of_branches_the_one_with_most_counts() -> None:
    def either(x: jax.Array) -> jax.Array:
        first = jax.lax.psum(x[0, 0], "data") > 0
        return jax.lax.cond(first, lambda x: summed(jnp.cos(summed(x))), lambda x: x, x)

    assert collectives_of(compiled(either))["all-reduce"].runs == 3


def test_programs_without_collectives_have_none() -> None:
    found = collectives_of(compiled(jnp.sin))
    assert (found.total, str(found)) == (Collective(), "none")


@pytest.mark.parametrize("microbatches", [2, 3])
def test_a_pipeline_counts_the_runs_of_its_programs(microbatches: int) -> None:
    """Rows are sharded, and each microbatch needs their sum."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    topology = {"m0": Mesh(devices[0], ("data",)), "m1": Mesh(devices[1], ("data",))}
    config = mpmd_trace.make_config(
        topology, {"f": "m0", "g": "m1"}, partitioning_options={"mpmd_infer_transfers": True}
    )

    def step(batch: jax.Array) -> jax.Array:
        def body(i: Any, total: jax.Array, x: jax.Array) -> jax.Array:
            x = mpmd_trace.named_computation(jnp.sin, name="f")(x)
            return total + mpmd_trace.named_computation(lambda x: jnp.cos(jnp.sum(x)), name="g")(x)

        return mpmd_trace.enumerated_for(body, jnp.zeros(()), batch)

    batch = jax.ShapeDtypeStruct((microbatches, 4, 4), jnp.float32)
    place = jax.sharding.NamedSharding(topology["m0"], P(None, "data"))
    found = mpmd_trace.jit(step, config, in_shardings=place).lower(batch).compile().collectives()
    assert {mesh: str(one) for mesh, one in found.items()} == {"m0": "none", "m1": f"{microbatches} all-reduce"}
