"""Values that leave a named computation without being returned are one clear error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from mpmd_trace.frontend import trace


class Handler:
    """Keeps what it draws, as a stream of random numbers or a probabilistic program does."""

    def __init__(self) -> None:
        self.key: Any = jax.random.key(0)
        self.seen: list[Any] = []

    def draw(self, like: jax.Array) -> jax.Array:
        self.key, own = jax.random.split(self.key)
        self.seen.append(jax.random.normal(own, like.shape))
        return self.seen[-1]


def in_another_name(x: jax.Array) -> jax.Array:
    handler = Handler()
    for name in ("a", "b"):
        x = mt.named_computation(lambda x: x + handler.draw(x), name=name)(x)
    return jnp.sum(x)


def in_the_step(x: jax.Array) -> jax.Array:
    handler = Handler()
    x = mt.named_computation(lambda x: x + handler.draw(x), name="a")(x)
    return jnp.sum(x * handler.seen[0])


def in_a_call(x: jax.Array) -> jax.Array:
    handler = Handler()
    return mt.call(lambda x: x + handler.draw(x), 0)(x) + handler.seen[0]


@pytest.mark.parametrize("around", [lambda f: f, jax.grad, lambda f: jax.jit(jax.vmap(f))])
@pytest.mark.parametrize("fn", [in_another_name, in_the_step])
def test_the_name_and_the_line_are_told(fn: Callable[..., Any], around: Callable[..., Any]) -> None:
    text = (
        r"that the named computation 'a' made at .*test_leaks.py:2[3-6] and did not return. .* \(a stream of random "
        r"numbers, .*\). Return it, or make it outside of the named computation 'a' and pass it in"
    )
    with pytest.raises(mt.MpmdError, match=text):
        trace(around(fn), jnp.ones((2, 3)) if around is not jax.grad else jnp.ones(3))


def test_calls_and_names_outside_of_jit() -> None:
    with pytest.raises(mt.MpmdError, match="that the call of '<lambda>' made at"):
        trace(in_a_call, jnp.ones(3))
    with pytest.raises(mt.MpmdError, match=r"that the named computation 'a' made at .* and did not return"):
        in_another_name(jnp.ones(3))


@pytest.mark.parametrize("wrap", [lambda step: step, lambda step: functools.partial(step, times=3), jax.jit])
def test_a_value_of_the_step_that_is_used_afterwards(wrap: Callable[[Any], Any]) -> None:
    """JAX's error says where the step is defined, also if some arguments are given to it before."""
    seen: list[Any] = []

    def step(x: jax.Array, times: int = 2) -> jax.Array:
        seen.append(x)
        return times * x

    trace(wrap(step), jnp.ones(3))
    with pytest.raises(jax.errors.UnexpectedTracerError, match=r"the value leaked was step at .*test_leaks\.py:\d+ "):
        _ = seen[0] + 1
