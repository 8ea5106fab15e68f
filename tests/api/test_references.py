"""Mutable arrays that live inside of a program (`jax.new_ref`), and primitives of HiJax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import hijax

from mpmd_trace import named_computation
from pipelines import Weights, batch, check, layer, summed_gradients, weights


def model(first: Any, ws: Weights, x: jax.Array) -> jax.Array:
    found: jax.Array = named_computation(layer, name="f1")(ws[1], named_computation(first, name="f0")(ws[0], x))
    return found


def gradients(first: Any, ws: Weights, xs: jax.Array) -> Any:
    return summed_gradients(lambda ws, x: model(first, ws, x).sum(), ws, xs)


def written(w: jax.Array, x: jax.Array) -> jax.Array:
    ref = jax.new_ref(x)
    ref[0] = 2 * ref[1]
    return layer(w, ref[...])


def written_in_a_loop(w: jax.Array, x: jax.Array) -> jax.Array:
    ref = jax.new_ref(x)

    def body(_: None, __: None) -> tuple[None, None]:
        ref[...] = layer(w, ref[...])
        return None, None

    jax.lax.scan(body, None, None, 3)
    return ref[...]


def test_inside_of_a_named_computation() -> None:
    check(lambda ws, x: model(written, ws, x), weights(), batch())
    check(lambda ws, x: model(written_in_a_loop, ws, x), weights(), batch())
    check(lambda ws, xs: gradients(written, ws, xs), weights(), batch(2))


def test_over_meshes() -> None:
    """Written by computations on two meshes, which get it from outside: it moves from one to the other."""

    def step(ws: Weights, x: jax.Array) -> Any:
        total = jax.new_ref(jnp.zeros_like(x))

        def loud(w: jax.Array, x: jax.Array) -> jax.Array:
            total[...] += x
            return layer(w, x)

        for i, w in enumerate(ws):
            x = named_computation(loud, name=f"f{i}")(w, x)
            total[0] += 1.0
        return x, total[...]

    check(step, weights(), batch())


_Primitive: Any = getattr(hijax, "HiPrim", None) or getattr(hijax, "VJPHiPrimitive", None)


@pytest.mark.skipif(_Primitive is None, reason="this JAX has no primitives of HiJax")
def test_hijax() -> None:
    class Square(_Primitive):  # type: ignore[misc]
        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x: jax.Array) -> jax.Array:
            return x**2

        def vjp_fwd(self, nonzeros: Any, x: jax.Array) -> Any:
            return square(x), x

        def vjp_bwd_retval(self, x: jax.Array, cotangent: jax.Array) -> Any:
            return (2 * x * cotangent,)

    def square(x: jax.Array) -> jax.Array:
        found: jax.Array = Square(jax.typeof(x))(x)
        return found

    def first(w: jax.Array, x: jax.Array) -> jax.Array:
        return square(layer(w, x))

    check(lambda ws, x: square(model(first, ws, x)), weights(), batch())
    check(lambda ws, xs: gradients(first, ws, xs), weights(), batch(2))
