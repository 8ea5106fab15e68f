"""Gradients of a row of layers with names, summed over microbatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import mpmd_trace as mt


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Return the mean square of what layers `layer0`, `layer1`, ... make of the rows."""
    for i, w in enumerate(weights):
        x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
    return jnp.mean(x**2)


def summed_gradients(weights: list[jax.Array], microbatches: jax.Array) -> list[jax.Array]:
    """Return the sums of the gradients of layers `layer0`, `layer1`, ...; microbatches of rows along the first axis."""
    sums: list[jax.Array] = mt.enumerated_for(
        lambda i, sums, x: jax.tree.map(jnp.add, sums, jax.grad(loss)(weights, x)),
        jax.tree.map(jnp.zeros_like, weights),
        microbatches,
    )
    return sums
