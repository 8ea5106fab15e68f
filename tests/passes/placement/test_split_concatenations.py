"""`mpmd-split-concatenations`: what is made of one array of values of several meshes is made of each of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh

import mpmd_trace as mt
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from pipelines import layer, loss_of, summed_gradients

MODULE = """
!a = !mpmd.mesh_tensor<"a", tensor<2x3xf32>>
!b = !mpmd.mesh_tensor<"b", tensor<4xf32>>
func.func public @main(%p: !a, %q: !b, %s: tensor<f32>) -> (RESULTS) attributes {
    topology = #mpmd.topology<<"a": <["x"=2]>>, <"b": <["x"=2]>>>} {
  %u = mpmd.unassign %p : (!a) -> tensor<2x3xf32>
  %r = stablehlo.reshape %u : (tensor<2x3xf32>) -> tensor<6xf32>
  %v = mpmd.unassign %q : (!b) -> tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %half = stablehlo.constant dense<0.5> : tensor<10xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> : tensor<10xf32>
  %all = stablehlo.concatenate %r, %v, dim = 0 : (tensor<6xf32>, tensor<4xf32>) -> tensor<10xf32>
  %fill = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<10xf32>
  %scaled = stablehlo.multiply %all, %fill : tensor<10xf32>
  %x = stablehlo.add %scaled, %half : tensor<10xf32>
BODY
}
"""

#: What is computed of `%x`, with its type, and whether parts do.
COMPUTED = {
    "%0 = stablehlo.slice %x [0:6] : (tensor<10xf32>) -> tensor<6xf32>": ("tensor<6xf32>", True),
    "%0 = stablehlo.slice %x [7:10:2] : (tensor<10xf32>) -> tensor<2xf32>": ("tensor<2xf32>", True),
    "%0 = stablehlo.slice %x [5:7] : (tensor<10xf32>) -> tensor<2xf32>": ("tensor<2xf32>", False),
    "%0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : "
    "(tensor<10xf32>, tensor<f32>) -> tensor<f32>": ("tensor<f32>", True),
    "%0 = stablehlo.reduce(%x init: %one) applies stablehlo.add across dimensions = [0] : "
    "(tensor<10xf32>, tensor<f32>) -> tensor<f32>": ("tensor<f32>", False),
    "%0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : "
    "(tensor<10xf32>, tensor<10xf32>) -> tensor<f32>": ("tensor<f32>", True),
    "%0 = stablehlo.dot_general %x, %many, contracting_dims = [0] x [0] : "
    "(tensor<10xf32>, tensor<10xf32>) -> tensor<f32>": ("tensor<f32>", False),
    "%0 = stablehlo.add %x, %many : tensor<10xf32>": ("tensor<10xf32>", False),
    "%0 = stablehlo.reverse %x, dims = [0] : tensor<10xf32>": ("tensor<10xf32>", False),
}


def test_parts_are_computed_by_themselves() -> None:
    for computed, (type, apart) in COMPUTED.items():
        returned = f"  {computed}\n  return %0 : {type}"
        before = parse(MODULE.replace("RESULTS", type).replace("BODY", returned))
        after = before.clone()
        run_passes(after, "mpmd-split-concatenations")
        assert ("concatenate" not in str(after)) == apart, computed
        assert_same_meaning(before, after, rtol=1e-6)


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
