"""A step that other processes load, without what its tests need."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import mpmd_trace as mt

TABLE = np.arange(8 * 1024, dtype=np.float32).reshape(1024, 8) / 1e4


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def step(weights: dict[str, jax.Array], batch: jax.Array, key: jax.Array) -> Any:
    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name, w in weights.items():
            x = mt.named_computation(layer, name=name)(w, x)
        return jnp.mean((x - jnp.asarray(TABLE)[: x.shape[0]]) ** 2)

    def microbatch(_: Any, grads: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, grads, jax.grad(loss)(weights, x))

    grads = mt.enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, weights), batch)
    noise = jax.random.normal(key)
    return {n: w - 0.1 * grads[n] for n, w in weights.items()}, noise


def arguments() -> tuple[Any, ...]:
    weights = {name: jnp.eye(8) * (i + 1) / 4 for i, name in enumerate(("a", "b"))}
    return weights, jnp.linspace(-1, 1, 96).reshape(3, 4, 8), jax.random.key(3)


def topology(first: int = 0) -> dict[str, Mesh]:
    devices = jax.devices()[first:]
    return {"one": Mesh(np.array(devices[:1]), ("x",)), "two": Mesh(np.array(devices[1:2]), ("x",))}


def config(first: int = 0, **more: Any) -> mt.config.Config:
    options = {"partitioning_options": {"mpmd_infer_transfers": True}, **more}
    return mt.make_config(topology(first), {"a": "one", "b": "two"}, **options)


def check(program: Any) -> None:
    wanted, got = jax.jit(step)(*arguments()), program(*arguments())
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(wanted) == jax.tree.structure(got)
