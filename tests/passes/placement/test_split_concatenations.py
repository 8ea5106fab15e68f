"""`mpmd-split-concatenations`: what is made of one array of values of several meshes is made of each of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh

import mpmd_trace as mt
from pipelines import layer, loss_of, summed_gradients


def test_gradients_that_are_clipped_as_one_vector_stay_on_their_meshes() -> None:
    microbatches, rows, width = 8, 32, 256

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        vector, unravel = ravel_pytree(summed_gradients(loss_of(layer, "layer"), weights, batch))
        clipped = unravel(vector * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(vector)))
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, clipped)

    meshes = {name: AbstractMesh((2,), ("data",)) for name in ("a", "b")}
    config = mt.make_config(meshes, {f"layer{i}": "aabb"[i] for i in range(4)}, pipeline_schedule="1F1B")
    weights, batch = [jax.ShapeDtypeStruct((width, width), "float32")] * 4, (microbatches, rows, width)
    lowered = mt.jit(step, config, donate_argnums=0).lower(weights, jax.ShapeDtypeStruct(batch, "float32"))
    activations = 2 * 2 * 4 * microbatches * rows * width  # forward and backward, whole on each of two devices
    own = 2 * 4 * width**2
    assert lowered.cost_analysis()["bytes transferred"] == pytest.approx(activations, abs=64)
    assert lowered.memory_analysis()["a"].peak < 4 * own
