"""How many rows a traced program cuts into microbatches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.frontend.batch_rows import batch_rows

W, X = jnp.ones((4, 4)), jnp.ones((16, 4))


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((x @ w) ** 2)


def by_hand(w: jax.Array, x: jax.Array) -> Any:
    total = jnp.zeros_like(w)
    for i, rows in enumerate(jnp.split(x, 4)):
        total += mt.call(jax.grad(loss), i)(w, rows)
    return total


def carried(w: jax.Array, x: jax.Array) -> Any:
    for i, rows in enumerate(jnp.split(x, 4)):
        w = mt.call(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), i)(w, rows)
    return w


@pytest.mark.parametrize(
    "step",
    [
        mt.value_and_grad(loss, microbatches=2),
        lambda w, x: jax.jit(mt.value_and_grad(loss, microbatches=4))(w, x),
        lambda w, x: mt.enumerated_for(lambda i, c, x: c + jax.grad(loss)(w, x), W, x.reshape(8, 2, 4)),
        jax.grad(lambda w, x: mt.enumerated_for(lambda i, c, x: c + loss(w, x), jnp.zeros(()), x.reshape(8, 2, 4))),
        by_hand,
        carried,
    ],
)
def test_rows_of_the_batch(step: Any) -> None:
    assert batch_rows(jax.make_jaxpr(step)(W, X)) == [16]


def test_without_microbatches_there_are_none() -> None:
    assert batch_rows(jax.make_jaxpr(jax.grad(loss))(W, X)) == []
