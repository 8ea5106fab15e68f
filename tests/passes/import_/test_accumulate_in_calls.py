"""`mpmd-accumulate-in-calls`: sums over microbatches become sums that calls carry."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

import mpmd_trace as mt
from pipelines import layer, loss_of


def test_gradients_of_earlier_microbatches_are_not_held() -> None:
    """Of a loop in Python: without the pass, the devices hold those of eight microbatches, 10 times their weights."""
    microbatches, rows, width = 8, 32, 256

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        each = [mt.call(jax.grad(loss_of(layer, "layer")), i)(weights, x) for i, x in enumerate(batch)]
        sums = functools.reduce(functools.partial(jax.tree.map, jnp.add), each)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, sums)

    meshes = {name: AbstractMesh((2,), ("data",)) for name in ("a", "b")}
    config = mt.make_config(meshes, {f"layer{i}": "aabb"[i] for i in range(4)}, pipeline_schedule="1F1B")
    weights, batch = [jax.ShapeDtypeStruct((width, width), "float32")] * 4, (microbatches, rows, width)
    lowered = mt.jit(step, config, donate_argnums=0).lower(weights, jax.ShapeDtypeStruct(batch, "float32"))
    assert max(memory.peak for memory in lowered.memory_analysis().values()) < 4 * (2 * 4 * width**2)
