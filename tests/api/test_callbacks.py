"""Programs that call back into Python (`jax.pure_callback`) run; their text alone cannot."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from pipelines import Weights, batch, check, config, layer, topology, weights

import mpmd_trace
from mpmd_trace import MpmdError, named_computation


def on_host(factor: float, x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: np.asarray(factor * np.sin(x)), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_jvp
def wave(x: jax.Array) -> jax.Array:
    return on_host(2.0, x)


@wave.defjvp
def _wave_jvp(primals: Any, tangents: Any) -> Any:
    return wave(primals[0]), on_host(3.0, primals[0]) * tangents[0]


def loss(ws: Weights, x: jax.Array) -> jax.Array:
    for i, w in enumerate(ws):
        x = named_computation(lambda w, x: wave(x @ w), name=f"f{i}")(w, x)
    return jnp.mean(x**2)


def step(ws: Weights, xs: jax.Array) -> Weights:
    zeros = jax.tree.map(jnp.zeros_like, ws)

    def body(i: Any, grads: Weights, x: jax.Array) -> Weights:
        added: Weights = jax.tree.map(jnp.add, grads, jax.grad(loss)(ws, x))
        return added

    grads: Weights = mpmd_trace.enumerated_for(body, zeros, xs)
    return grads


@pytest.mark.parametrize("schedule", ["1F1B", "zb-h1"])
@pytest.mark.parametrize("sharded", [False, True])
def test_callbacks_in_a_pipeline(schedule: str, sharded: bool) -> None:
    """Several callbacks with several numbers, on both meshes, whole and sharded arguments."""
    split = NamedSharding(topology()["m0"], PartitionSpec(None, "x")) if sharded else None
    jitted = check(
        step, weights(), batch(4), config=config(pipeline_schedule=schedule), in_shardings=(None, split)
    )
    jitted(weights(), batch(4))


def test_checks_of_equinox() -> None:
    def checked(ws: Weights, x: jax.Array) -> jax.Array:
        def first(w: jax.Array, x: jax.Array) -> jax.Array:
            return eqx.error_if(layer(w, x), jnp.any(x > 50), "too large")

        x = named_computation(first, name="f0")(ws[0], x)
        return jnp.sum(named_computation(layer, name="f1")(ws[1], x))

    jitted = check(checked, weights(), batch())
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        jax.block_until_ready(jitted(weights(), 100 + batch()))


def test_the_text_does_not_have_the_functions() -> None:
    """XLA would call what is not there and crash."""
    lowered = mpmd_trace.jit(step, config()).lower(weights(), batch(2))
    with pytest.raises(MpmdError) as found:
        mpmd_trace.run_module(lowered.as_text(), topology(), [*weights(), batch(2)])
    assert "this op calls back a Python function (jax.pure_callback)" in str(found.value)
    assert "Run the program with mpmd_trace.jit" in str(found.value)
