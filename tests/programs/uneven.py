"""Six layers of two sizes on two meshes, badly divided: what `mpmd-trace plan` is tested with."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace import call, named_computation

MICROBATCHES, WIDTH = 4, 16
#: The hidden widths of the layers; the last two are as much work as the first four.
HIDDEN = (32, 32, 32, 32, 64, 64)
Weights = list[tuple[jax.Array, jax.Array]]


def layer(w: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w[0]) @ w[1]


def loss(ws: Weights, x: jax.Array) -> jax.Array:
    for i, w in enumerate(ws[:-1]):
        x = named_computation(layer, name=f"layer_{i}")(w, x)
    last = f"layer_{len(ws) - 1}"
    return named_computation(lambda w, x: jnp.mean(layer(w, x) ** 2), name=last)(ws[-1], x)


def whole(ws: Weights, x: jax.Array) -> jax.Array:
    for w in ws:
        x = layer(w, x)
    return jnp.mean(x**2)


def step(ws: Weights, xs: jax.Array, loss: Any = loss) -> Any:
    total: Any = None
    for i in range(MICROBATCHES):
        found = call(jax.value_and_grad(loss), i)(ws, xs[i])
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, total[1]), total[0]


def program(first: int = 2, schedule: Any = "1F1B", fn: Any = step) -> mpmd_trace.Program:
    """`first` layers are on the first mesh."""
    devices = np.array(jax.devices()[:2]).reshape(2, 1)
    config = mpmd_trace.make_config(
        {"m0": Mesh(devices[0], ("x",)), "m1": Mesh(devices[1], ("x",))},
        {f"layer_{i}": "m0" if i < first else "m1" for i in range(len(HIDDEN))},
        pipeline_schedule=schedule,
        partitioning_options={"mpmd_infer_transfers": True},
    )
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    ws = [(0.1 * normal(WIDTH, h), 0.1 * normal(h, WIDTH)) for h in HIDDEN]
    xs = normal(MICROBATCHES, 8, WIDTH)
    return mpmd_trace.Program(fn, (ws, xs), config, donate_argnums=(0,), name="uneven")


def balanced() -> mpmd_trace.Program:
    return program(first=4)


def unnamed() -> mpmd_trace.Program:
    return _changed(whole, name_to_mesh_assignment={})


def one_name() -> mpmd_trace.Program:
    return _changed(named_computation(whole, name="all"), name_to_mesh_assignment={"all": "m0"})


def one_mesh() -> mpmd_trace.Program:
    mesh = {"m0": Mesh(np.array(jax.devices()[:1]), ("x",))}
    return _changed(topology=mesh, name_to_mesh_assignment={f"layer_{i}": "m0" for i in range(len(HIDDEN))})


def _changed(loss: Any = loss, **changes: Any) -> mpmd_trace.Program:
    usual = program()
    settings: dict[str, Any] = {"topology": dict(usual.config.topology), **changes}
    config = mpmd_trace.make_config(**settings, partitioning_options={"mpmd_infer_transfers": True})
    return mpmd_trace.Program(functools.partial(step, loss=loss), usual.args, config, name="uneven")


def evaluation() -> mpmd_trace.Program:
    return program(fn=lambda ws, xs: loss(ws, xs[0]))
