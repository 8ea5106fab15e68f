"""Two layers on two meshes, two microbatches: what the tests of the command line run."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

import mpmd_trace
from mpmd_trace import call, named_computation

MICROBATCHES = 2


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
    h = named_computation(layer, name="first")(ws[0], x)
    return named_computation(lambda w, h: jnp.mean(layer(w, h) ** 2), name="second")(ws[1], h)


def step(ws: list[jax.Array], x: jax.Array) -> Any:
    x = x.reshape(MICROBATCHES, -1, 4)
    value, grads = jnp.zeros(()), [jnp.zeros_like(w) for w in ws]
    for i in range(MICROBATCHES):
        v, g = call(jax.value_and_grad(loss), i)(ws, x[i])
        value, grads = value + v, jax.tree.map(jnp.add, grads, g)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value, grads


def program(names: Any = None, placement: str = "cut", **options: Any) -> mpmd_trace.Program:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    config = mpmd_trace.make_config(
        {"m0": Mesh(devices[0], ("x",)), "m1": Mesh(devices[1], ("x",))},
        names or {"first": "m0", "second": "m1"},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True, **options},
        placement=placement,
    )
    random = np.random.default_rng(0)
    ws = list(random.normal(scale=0.5, size=(2, 4, 4)).astype(np.float32))
    return mpmd_trace.Program(
        step,
        (ws, random.normal(size=(8, 4)).astype(np.float32)),
        config,
        steps=3,
        advance=lambda i, args, result: (result[0], args[1]),
        loss=lambda result: result[1],
        gradients=lambda result: result[2],
        name="tiny",
    )


def sharing() -> mpmd_trace.Program:
    """Both meshes on the same devices."""
    given = program()
    meshes = dict.fromkeys(given.config.topology, given.config.topology["m0"])
    config = mpmd_trace.make_config(meshes, {"first": "m0", "second": "m1"}, pipeline_schedule="1F1B")
    return dataclasses.replace(given, config=config)


def abstract() -> mpmd_trace.Program:
    """On machines that are not there."""
    mesh = AbstractMesh((2,), ("x",))
    given = program()
    config = mpmd_trace.make_config(
        {"m0": mesh, "m1": mesh},
        {"first": "m0", "second": "m1"},
        pipeline_schedule="1F1B",
        partitioning_options={"mpmd_infer_transfers": True},
    )
    return dataclasses.replace(given, config=config)


def unknown_name() -> mpmd_trace.Program:
    return program(names={"first": "m0", "secnd": "m1"})


def spare_name() -> mpmd_trace.Program:
    return program(names={"first": "m0", "second": "m1", "thrd": "m1"})


def merged() -> mpmd_trace.Program:
    return program(mpmd_merge_forward_with_backward=True, mpmd_merge_backward_with_forward=True)


def as_in_the_reference() -> mpmd_trace.Program:
    """Placed as the reference does, and without programs that are apart from the microbatches."""
    return program(placement="reference", mpmd_equal_microbatches=False)
