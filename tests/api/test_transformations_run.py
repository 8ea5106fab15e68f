"""What JAX's transformations make of named programs runs over the meshes with the values of plain jax.jit."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import call, enumerated_for, fori_loop, named_computation
from pipelines import Weights, accumulate, batch, check, config, layer, loss, summed_gradients, weights


def test_grad_outside_call() -> None:
    def total(ws: Weights, x: jax.Array) -> Any:
        return sum(call(loss, i)(ws, x[i]) for i in range(x.shape[0]))

    check(jax.value_and_grad(total), weights(), batch(2))


def test_custom_vjp() -> None:
    @jax.custom_vjp
    def clipped(w: jax.Array, x: jax.Array) -> jax.Array:
        return named_computation(layer, name="f0")(w, x)

    def forward(w: jax.Array, x: jax.Array) -> Any:
        return jax.vjp(named_computation(layer, name="f0"), w, x)

    clipped.defvjp(forward, lambda pull, ct: pull(jnp.clip(ct, -0.01, 0.01)))

    @jax.custom_vjp
    def sign(h: jax.Array) -> jax.Array:
        return jnp.sign(h)

    sign.defvjp(lambda h: (jnp.sign(h), None), lambda _, ct: (ct,))

    def model(ws: Weights, x: jax.Array) -> jax.Array:
        h = clipped(ws[0], x)
        return named_computation(lambda w, h: jnp.mean((sign(h @ w) - h) ** 2), name="f1")(ws[1], h)

    check(jax.value_and_grad(model), weights(), batch())


def test_hessian_vector_product_forward_over_reverse() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        return jax.jvp(lambda ws: jax.grad(loss)(ws, x), (ws,), (ws,))

    check(step, weights(), batch())


def test_jacobian() -> None:
    def two(ws: Weights, x: jax.Array) -> jax.Array:
        h = named_computation(layer, name="f0")(ws[0], x)
        return named_computation(layer, name="f1")(ws[1], h)[:2, 0]

    check(jax.jacrev(two), weights(), batch())


def test_fori_loop() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        def body(i: Any, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(ws, x[i]))

        return fori_loop(2, body, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)))

    check(step, weights(), batch(2))


def test_enumerated_for_with_outputs() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        def body(i: Any, total: Any, xi: jax.Array) -> Any:
            value, grads = jax.value_and_grad(loss)(ws, xi)
            return jax.tree.map(jnp.add, total, grads), value * i

        return enumerated_for(body, jax.tree.map(jnp.zeros_like, ws), x)

    check(step, weights(), batch(3))


def test_enumerated_for_differentiated_from_outside() -> None:
    def total(ws: Weights, x: jax.Array) -> Any:
        return enumerated_for(lambda i, c, xi: c + loss(ws, xi), jnp.zeros(()), x)

    check(jax.value_and_grad(total), weights(), batch(2))


def test_several_loops() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        _, grads = accumulate(ws, x)
        ws = [w - 0.1 * g for w, g in zip(ws, grads, strict=True)]
        after = enumerated_for(lambda i, c, xi: c + loss(ws, xi), jnp.zeros(()), x)
        return ws, after

    check(step, weights(), batch(2))


def test_names_mean_nothing_elsewhere() -> None:
    """Under jax.jit, without it, and under a transformation of the jitted pipeline."""
    jitted = mpmd_trace.jit(loss, config())
    expected = jax.grad(lambda ws: jnp.mean(layer(ws[1], layer(ws[0], batch())) ** 2))(weights())
    with pytest.warns(mpmd_trace.MpmdWarning, match="loss is called within another transformation"):
        of_jitted = jax.grad(jitted)(weights(), batch())
    for found in (jax.grad(loss)(weights(), batch()), jax.jit(jax.grad(loss))(weights(), batch()), of_jitted):
        jax.tree.map(lambda a, b: pytest.approx(a, b), found, expected)
        assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def test_a_list_of_microbatches_is_not_stacked() -> None:
    def step(ws: Weights, xs: list[jax.Array]) -> Any:
        return summed_gradients(loss, ws, xs)

    xs = [batch() + k for k in range(3)]
    jitted = check(step, weights(), xs)
    assert not re.search(r"stablehlo\.(concatenate|slice)", jitted.lower(weights(), xs).as_text("mpmd"))
