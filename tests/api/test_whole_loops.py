"""Loops and conditionals over values of several meshes that cannot be divided: what they move is said, and where."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace
from mpmd_trace import MpmdWarning
from pipelines import loss

WIDTH = 512  # a megabyte a weight


def together(ws: Any, x: jax.Array) -> Any:
    """Each iteration reads the norm of all gradients, and how many there are depends on the data."""
    grads = jax.grad(loss)(ws, x)

    def body(carry: Any) -> Any:
        i, gs = carry
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gs))
        return i + 1, [g / norm for g in gs]

    return jax.lax.while_loop(lambda carry: carry[0] < jnp.argmax(x[0]), body, (0, grads))[1]


def apart(ws: Any, x: jax.Array) -> Any:
    grads = jax.grad(loss)(ws, x)
    return jax.lax.fori_loop(0, 3, lambda i, gs: [jnp.tanh(g) for g in gs], grads)


def switched(ws: Any, x: jax.Array) -> Any:
    grads = jax.grad(loss)(ws, x)
    which = (x[0, 0] > 0).astype(int) + (x[0, 1] > 0)
    branches = [lambda gs, k=k: [g * k for g in gs] for k in (1.0, 2.0, 3.0)]
    return jax.lax.switch(which, branches, grads)


def printing(ws: Any, x: jax.Array) -> Any:
    """The printing branch runs once, so the conditional does."""
    grads = jax.grad(loss)(ws, x)

    def aloud(gs: Any) -> Any:
        jax.debug.print("small")
        return [g * 2 for g in gs]

    which = (x[0, 0] > 0).astype(int) + (x[0, 1] > 0)
    return jax.lax.switch(which, [lambda gs: gs, aloud, aloud], grads)


def lower(step: Any, width: int = WIDTH) -> None:
    config = mpmd_trace.make_config({f"m{i}": AbstractMesh((1,), ("x",)) for i in range(2)}, {"f0": "m0", "f1": "m1"})
    ws = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 2
    mpmd_trace.jit(step, config).lower(ws, jax.ShapeDtypeStruct((2, width), jnp.float32))


@pytest.mark.parametrize(
    ("step", "kind", "way_out"),
    [(together, "loop", "Loop over the values of each mesh"), (printing, "switch", "it has effects")],
)
def test_what_stays_whole_is_said(step: Any, kind: str, way_out: str) -> None:
    with pytest.warns(MpmdWarning, match="stays whole") as caught:
        lower(step)
    (one,) = caught
    text = str(one.message)
    assert f"the {kind} runs on mesh m" in text and way_out in text
    # One gradient goes there, and what is made of it stays.
    assert f"about {4 * WIDTH**2 + 16:,} bytes of a step move" in text
    lines = step.__code__.co_firstlineno, step.__code__.co_firstlineno + 13
    assert one.filename == __file__ and lines[0] < one.lineno < lines[1]


@pytest.mark.parametrize(("step", "width"), [(together, 16), (printing, 16), (apart, WIDTH), (switched, WIDTH)])
def test_nothing_is_said_of_what_is_small_or_divided(step: Any, width: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower(step, width)
