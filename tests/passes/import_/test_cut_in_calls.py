"""`mpmd-cut-in-calls`: microbatches are cut by the fragments that need them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from pipelines import layer, loss_of, summed_gradients

MICROBATCHES, ROWS, PIXELS, WIDTH = 8, 64, 3072, 256


def lowered_classifier(devices: int, spec: PartitionSpec, **options: Any) -> mt.stages.Lowered:
    """Two layers on each of two meshes, for 512 images; a batch with two dimensions is reshaped into microbatches."""
    numbered = np.array(jax.devices()[: 2 * devices]).reshape(2, devices)
    meshes = {name: Mesh(numbered[i], ("data",)) for i, name in enumerate("ab")}

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        grads = summed_gradients(loss_of(layer, "layer"), weights, batch.reshape(MICROBATCHES, ROWS, PIXELS))
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    config = mt.make_config(meshes, {f"layer{i}": "aabb"[i] for i in range(4)}, pipeline_schedule="1F1B", **options)
    weights = [jax.ShapeDtypeStruct(shape, "float32") for shape in [(PIXELS, WIDTH), *[(WIDTH, WIDTH)] * 3]]
    batch = (MICROBATCHES * ROWS, PIXELS) if spec == PartitionSpec("data") else (MICROBATCHES, ROWS, PIXELS)
    jitted = mt.jit(step, config, in_shardings=(None, NamedSharding(meshes["a"], spec)))
    return jitted.lower(weights, jax.ShapeDtypeStruct(batch, "float32"))


def test_devices_share_the_rows_of_each_microbatch_of_a_batch_that_is_reshaped() -> None:
    one, two = (lowered_classifier(n, PartitionSpec("data")).cost_analysis() for n in (1, 2))
    for cost in ("flops", "bytes transferred"):  # of all devices
        assert two[cost] == pytest.approx(one[cost], rel=0.1), cost


def test_no_copy_of_the_batch_is_held() -> None:
    ours, reference = (
        lowered_classifier(2, PartitionSpec(None, "data"), **options).compile().memory_analysis()["a"].peak
        for options in ({}, {"placement": "reference"})
    )
    batch = 4 * MICROBATCHES * ROWS * PIXELS // 2
    assert ours < reference - 0.7 * batch
