"""Steps that compute graphs of shared values give the numbers of `jax.jit`, however deep the graphs are.

Written as a tree, each of them has more than 3^14 values.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from pipelines import assert_same, config, summed_gradients, topology
from util import nightly, normal

DEPTH, WIDTH = 14, 4


def deep(x: Any) -> Any:
    for _ in range(DEPTH):
        x = jnp.sin(x) * x + x * 0.5
    return x


def all_of_deep(x: Any) -> list[Any]:
    values = []
    for _ in range(DEPTH):
        x = jnp.sin(x) * x + x * 0.5
        values.append(x)
    return values


def with_constants(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x + deep(jnp.arange(4.0)), y * deep(jnp.arange(4.0))


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for i, w in enumerate(weights):
        x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ deep(w) + deep(jnp.arange(4.0))), name=f"f{i}")(w, x)
    return deep(jnp.mean(x**2))


def step(weights: list[jax.Array], batch: jax.Array, rate: jax.Array) -> Any:
    gradients = summed_gradients(loss, weights, batch)
    rate = deep(rate)
    new = jax.tree.map(lambda w, g: w - rate * deep(g), weights, gradients)
    mixed = functools.reduce(lambda s, i: 0.5 * s + jnp.sin(new[i % 2]), range(DEPTH), 0.5 * new[0])
    pair = jax.lax.cond(rate > 0, with_constants, lambda x, y: (x, y), *new)
    return new, rate, mixed, pair, deep(jnp.arange(4.0)), all_of_deep(jnp.arange(3.0)), all_of_deep(new[1])


@pytest.mark.parametrize("memory", [nightly(None), 300])
def test_graphs_of_shared_values(memory: int | None) -> None:
    where = config(topology=topology(size=1), pipeline_schedule="1F1B", device_memory=memory)
    arguments = [0.3 * normal(i, WIDTH, WIDTH) for i in range(2)], normal(2, 3, 2, WIDTH), jnp.asarray(0.1)
    assert_same(mpmd_trace.jit(step, where)(*arguments), jax.jit(step)(*arguments), rtol=1e-4)
