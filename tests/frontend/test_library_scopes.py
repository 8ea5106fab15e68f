"""Names inside of modules whose parameters are in a frame of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mpmd_trace as mt
from mpmd_trace.linen import name_layers

X = jnp.ones((2, 4))


class Inside(nn.Module):
    """A name inside of a module, on a function that makes a submodule."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array) -> jax.Array:
            return nn.Dense(4)(x)

        for name in ("first", "second"):
            x = mt.named_computation(layer, name=name)(x)
        return x


class Function(nn.Module):
    """A name inside of a module, on a function of its parameters."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        w = self.param("w", nn.initializers.normal(), (4, 4))
        return mt.named_computation(jnp.matmul, name="product")(x, w)


def test_a_part_of_a_linen_module_says_how_it_is_named() -> None:
    with pytest.raises(mt.MpmdError, match=r"'Dense_0' of the Linen module around it.*linen.name_layers") as told:
        Inside().init(jax.random.key(0), X)
    assert "test_library_scopes.py" in str(told.value).partition(": error")[0]


def test_a_function_of_the_parameters_of_a_linen_module_has_a_name() -> None:
    variables = Function().init(jax.random.key(0), X)
    wanted = X @ variables["params"]["w"]
    np.testing.assert_array_equal(jax.jit(Function().apply)(variables, X), wanted)
    np.testing.assert_array_equal(name_layers(Function().apply, Function)(variables, X), wanted)


def _parameter(hk: Any) -> jax.Array:
    return hk.get_parameter("w", (4, 4), init=jnp.zeros)  # type: ignore[no-any-return]


def _random(hk: Any) -> jax.Array:
    return jax.random.normal(hk.next_rng_key(), (4, 4))


def _state(hk: Any) -> jax.Array:
    return hk.get_state("w", (4, 4), init=jnp.zeros)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("of", "used"), [(_parameter, "'~/w'"), (_random, "random numbers"), (_state, "'~/w'")])
def test_a_part_of_a_haiku_function_says_how_it_is_named(of: Callable[[Any], jax.Array], used: str) -> None:
    hk = pytest.importorskip("haiku")

    def model(x: jax.Array) -> jax.Array:
        return mt.named_computation(lambda x: x @ of(hk), name="first")(x)

    transformed = hk.transform_with_state(model)
    message = rf"{used} of the Haiku module around it.*hk.transform"
    with pytest.raises(mt.MpmdError, match=message):
        transformed.init(jax.random.key(0), X)
    place = hk.transform_with_state(lambda x: x @ of(hk))
    with pytest.raises(mt.MpmdError, match=message):
        transformed.apply(*place.init(jax.random.key(0), X), jax.random.key(0), X)


def test_a_haiku_function_has_a_name_also_inside_of_another_one() -> None:
    hk = pytest.importorskip("haiku")
    part = hk.transform(lambda x: x @ _parameter(hk) + _random(hk)[:2])
    named = mt.named_computation(part.apply, name="first")
    outer = hk.transform(lambda x: named(hk.lift(part.init, name="part")(jax.random.key(0), x), hk.next_rng_key(), x))
    variables = outer.init(jax.random.key(0), X)
    key = jax.random.key(1)
    wanted = outer.apply(variables, key, X)
    np.testing.assert_array_equal(jax.jit(outer.apply)(variables, key, X), wanted)
