"""`name_scans` names the scans over layers, whatever other scans the function has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mpmd_trace as mt
from pipelines import assert_same, topology
from util import normal

LAYERS, MICROBATCHES, ROWS, WIDTH = 4, 6, 4, 8
PARAMETERS = {
    "in": normal(0, WIDTH, WIDTH),
    "blocks": 0.3 * normal(1, LAYERS, WIDTH, WIDTH),
    "short": 0.3 * normal(4, 3, WIDTH, WIDTH),
    "cell": 0.3 * normal(2, WIDTH, WIDTH),
}
BATCH = normal(3, MICROBATCHES, ROWS, WIDTH)


def config() -> mt.config.Config:
    return mt.make_config(topology(size=1), {"blocks": ["m0", "m1"]}, pipeline_schedule="1F1B")


def blocks(weights: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, weights)[0]


def loss(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(blocks(p["blocks"], x @ p["in"]) ** 2)


def sums(acc: Any, g: Any, _: jax.Array) -> Any:
    return jax.tree.map(jnp.add, acc, g)


def averages(acc: Any, g: Any, i: jax.Array) -> Any:
    return jax.tree.map(lambda a, g: a + (g - a) / (i + 1), acc, g)


def accumulating(add: Callable[..., Any]) -> Callable[..., Any]:
    """A step as packages have it, with a scan over microbatches that is longer than that over layers."""

    def step(p: Any, x: jax.Array) -> Any:
        def microbatch(carry: Any, x: jax.Array) -> Any:
            value, gradients = jax.value_and_grad(loss)(p, x)
            acc, i = carry
            return (add(acc, gradients, i), i + 1), value

        start = jax.tree.map(jnp.zeros_like, p), jnp.zeros(())
        (gradients, _), values = lax.scan(microbatch, start, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients), jnp.mean(values)

    return step


def over_time(p: Any, x: jax.Array) -> jax.Array:
    """A recurrent network over more steps than there are layers, then the layers."""
    steps = jnp.concatenate([x, x])
    _, hidden = lax.scan(lambda h, x: (jnp.tanh(h @ p["cell"] + x @ p["in"]),) * 2, x[0], steps)
    return jnp.mean(blocks(p["blocks"], hidden) ** 2)


def over_numbers(p: Any, x: jax.Array) -> jax.Array:
    """A schedule of noise with the same weights in every step, then the layers."""
    x, _ = lax.scan(lambda x, t: (jnp.tanh(x @ p["cell"]) / (t + 1), None), x, jnp.arange(9))
    return loss(p, x)


def checkpointed(p: Any, x: jax.Array) -> jax.Array:
    return jax.grad(lambda p: jnp.sum(jax.vmap(jax.checkpoint(loss), (None, 0))(p, x)))(p)["blocks"]


@pytest.mark.parametrize("fn", [accumulating(sums), accumulating(averages), over_time, over_numbers, checkpointed])
def test_the_scan_over_layers_is_named(fn: Callable[..., Any]) -> None:
    jitted = mt.jit(mt.name_scans(fn, "blocks"), config())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mt.MpmdWarning)  # about a step without microbatches
        warnings.filterwarnings("error", message="name_scans")
        lowered = jitted.lower(PARAMETERS, BATCH)
    assert set(lowered.traced.rewritten.computations) == {"blocks[0/2]", "blocks[1/2]"}
    compiled = lowered.compile()
    assert not compiled.placement_report().returning
    assert_same(compiled(PARAMETERS, BATCH), jax.jit(fn)(PARAMETERS, BATCH), rtol=3e-5, atol=2e-6)


def test_of_two_stacks_of_layers_the_longest_is_named_with_a_warning() -> None:
    def fn(p: Any, x: jax.Array) -> jax.Array:
        return blocks(p["blocks"], blocks(p["short"], x))

    text = (
        r"calls the longest scan 'blocks', that of length 4 at .*test_name_scans.py:\d+, and not that of length 3 at "
    )
    with pytest.warns(mt.MpmdWarning, match=text):
        mt.jit(mt.name_scans(fn, "blocks"), config()).lower(PARAMETERS, BATCH)


def test_scans_of_one_body_are_told_apart_by_their_lengths() -> None:
    """JAX traces the function once for both."""

    def block(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ w), None

    def fn(p: Any, x: jax.Array) -> jax.Array:
        x, _ = lax.scan(block, x, p["short"])
        return lax.scan(block, x, p["blocks"])[0]

    with pytest.warns(mt.MpmdWarning, match="calls the longest scan 'blocks'"):
        jitted = mt.jit(mt.name_scans(fn, "blocks"), config())
        lowered = jitted.lower(PARAMETERS, BATCH)
    assert set(lowered.traced.rewritten.computations) == {"blocks[0/2]", "blocks[1/2]"}
    assert_same(lowered.compile()(PARAMETERS, BATCH), jax.jit(fn)(PARAMETERS, BATCH), rtol=3e-5, atol=2e-6)


def test_what_is_not_over_layers_is_listed_where_nothing_is() -> None:
    def fn(p: Any, x: jax.Array) -> jax.Array:
        total, _ = lax.scan(lambda total, x: (total + jnp.sum(x @ p["in"]), None), 0.0, x)
        return lax.scan(lambda c, i: (jnp.tanh(c * i), None), total, jnp.arange(5))[0]

    text = (
        r"no jax.lax.scan over layers in 'fn' to be called 'blocks'; that of length 6 at .*: it carries sums, as over "
        r"microbatches; that of length 5 at .*: it scans no parameters"
    )
    with pytest.raises(mt.MpmdError, match=text):
        mt.jit(mt.name_scans(fn, "blocks"), config()).lower(PARAMETERS, BATCH)


def test_scans_with_derivatives_of_their_own_are_not_named() -> None:
    @jax.custom_vjp
    def tripled(weights: jax.Array, x: jax.Array) -> jax.Array:
        return blocks(weights, x)

    tripled.defvjp(lambda weights, x: jax.vjp(blocks, weights, x), lambda pullback, cotangent: pullback(3 * cotangent))

    def fn(p: Any, x: jax.Array) -> jax.Array:
        return loss(p, tripled(p["others"], x))

    args = PARAMETERS | {"others": 2 * PARAMETERS["blocks"]}, BATCH[0]
    got = mt.jit(jax.grad(mt.name_scans(fn, "blocks")), replace(config(), pipeline_schedule=None))(*args)
    assert_same(got, jax.jit(jax.grad(fn))(*args), rtol=1e-4)


def test_a_named_scan_that_is_to_be_divided() -> None:
    """One call has one place: the message tells what divides it."""
    divided = mt.make_config(config().topology, {"blocks[0:1]": "m0", "blocks[1:4]": "m1"})

    def lower(blocks: Callable[..., Any]) -> Any:
        return mt.jit(blocks, divided).lower(PARAMETERS["blocks"], BATCH[0])

    told = r"into 'blocks\[0:1\]', 'blocks\[1:4\]', use mpmd_trace.name_scans instead of named_computation, or mpmd_"
    with pytest.raises(mt.MpmdError, match=told):
        lower(mt.named_computation(blocks, name="blocks"))
    assert set(lower(mt.name_scans(blocks, "blocks")).traced.rewritten.computations) == {"blocks[0:1]", "blocks[1:4]"}
