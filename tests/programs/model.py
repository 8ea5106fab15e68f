"""A training step that takes and returns an Equinox model, whose activation function and flags are no arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace.equinox import name_layers

optimizer = optax.adam(1e-2)


def step(model: eqx.nn.MLP, state: Any, batch: jax.Array, how: str) -> Any:
    @eqx.filter_value_and_grad
    def loss(model: eqx.nn.MLP, x: jax.Array) -> jax.Array:
        out = jax.vmap(model)(x)
        return jnp.mean(out**2 if how == "square" else jnp.abs(out))

    def microbatch(i: Any, carry: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, carry, loss(model, x))

    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    value, grads = mpmd_trace.enumerated_for(microbatch, (jnp.zeros(()), zeros), batch)
    updates, state = optimizer.update(grads, state)
    return eqx.apply_updates(model, updates), state, value, grads


def program(outputs: Any = None) -> mpmd_trace.Program:
    model = name_layers(eqx.nn.MLP(4, 4, 4, 1, key=jax.random.key(0)), lambda m: m.layers)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    devices = np.array(jax.devices()[:2])
    config = mpmd_trace.make_config(
        {"m0": Mesh(devices[:1], ("x",)), "m1": Mesh(devices[1:], ("x",))},
        {"layers_0": "m0", "layers_1": "m1"},
        pipeline_schedule="1F1B",
        output_mesh_assignment=outputs,
        partitioning_options={"mpmd_infer_transfers": True},
    )
    return mpmd_trace.Program(
        step,
        (model, state, np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4), "square"),
        config,
        steps=3,
        advance=lambda i, args, result: (*result[:2], *args[2:]),
        loss=lambda result: result[2],
        gradients=lambda result: result[3],
        donate_argnums=(0, 1),
        filter_jit=True,
        name="model",
    )


def changing() -> Any:
    """Passes another static argument in the second step, for which it is not compiled."""
    return dataclasses.replace(program(), advance=lambda i, args, result: (*result[:2], args[2], "abs"))


def moved() -> Any:
    """The whole model is wanted on the second mesh, and each step takes a part of it on the first."""
    return program(("m1", None, None, None))
