"""Settings of JAX that change what a function is traced to."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace as mt
from pipelines import Weights, assert_same, batch, config, layer, weights

#: Flags of JAX that may make another program of the same function; those that it has.
FLAGS = (
    "jax_scan3",
    "jax_remat3",
    "jax_custom_vjp3",
    # JAX 0.10 evaluates equations while it lowers others, which its compilation cache cannot do then.
    *(["eager_constant_folding"] if jax.__version_info__ >= (0, 12) else []),
    "jax_use_direct_linearize",
    "jax_enable_custom_prng",
    "jax_threefry_partitionable",
    "jax_softmax_custom_jvp",
    "jax_mutable_array_checks",
    "jax_refs_to_pins",
    "jax_remove_size_one_mesh_axis_from_type",
    "jax_use_simplified_jaxpr_constants",
)


@jax.custom_vjp
def scaled(x: jax.Array) -> jax.Array:
    return 2 * x


scaled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def loss(ws: Weights, x: jax.Array) -> jax.Array:
    x = jax.checkpoint(mt.named_computation(layer, name="f0"))(ws[0], scaled(x))
    x, _ = jax.lax.scan(lambda x, w: (scaled(layer(w, x)), None), x, jnp.stack([ws[1]] * 2))
    return jnp.mean(mt.named_computation(jnp.sin, name="f1")(x) + jnp.arange(4.0))


def step(ws: Weights, x: jax.Array) -> object:
    return mt.value_and_grad(loss, microbatches=4)(ws, x)


@functools.cache
def usual() -> tuple[object, int]:
    """Return the results of `jax.jit`, and how many programs a step runs, as things are set."""
    args = weights(), batch(rows=8)
    compiled = mt.jit(step, config(pipeline_schedule="1F1B")).lower(*args).compile()
    return jax.jit(step)(*args), len(compiled.program.plan.runs)


@pytest.mark.parametrize("flag", [f for f in FLAGS if f in jax.config.values])
def test_the_pipeline_is_the_same(flag: str) -> None:
    args = weights(), batch(rows=8)
    wanted, runs = usual()
    before = jax.config.values[flag]
    jax.config.update(flag, not before)
    try:
        compiled = mt.jit(step, config(pipeline_schedule="1F1B")).lower(*args).compile()
        assert_same(compiled(*args), wanted)
    finally:
        jax.config.update(flag, before)
    assert len(compiled.program.plan.runs) == runs


def test_only_keys_that_the_program_uses_twice_are_refused() -> None:
    def noisy(times: int, ws: Weights, x: jax.Array, key: jax.Array) -> jax.Array:
        x = mt.named_computation(layer, name="f0")(ws[0], x)
        for _ in range(times):
            x += jax.random.normal(key, x.shape)
        return jnp.mean(mt.named_computation(layer, name="f1")(ws[1], x))

    def step(times: int) -> object:
        value_and_grad = mt.value_and_grad(functools.partial(noisy, times), microbatches=4, key_argnum=2)
        return lambda *args: value_and_grad(*args)

    args = weights(), batch(rows=8), jax.random.key(0)
    with jax.debug_key_reuse(True):
        with pytest.raises(jax.errors.KeyReuseError):
            mt.jit(step(2), config(pipeline_schedule="1F1B")).lower(*args)
        results = mt.jit(step(1), config(pipeline_schedule="1F1B"))(*args)
    assert_same(results, jax.jit(step(1))(*args))


@pytest.mark.parametrize("kind", ["nan", "divide"])
def test_errors_that_jax_keeps_in_a_ref_are_refused_by_the_name_of_the_flag(kind: str) -> None:
    flag = f"jax_error_checking_behavior_{kind}"
    args = weights(), batch(rows=8)
    jax.config.update(flag, "raise")
    try:
        with pytest.raises(mt.MpmdError, match=f"{flag}='raise' keeps errors in a Ref .*Set it to 'ignore'"):
            mt.jit(step, config())(*args)
    finally:
        jax.config.update(flag, "ignore")
    assert_same(mt.jit(step, config())(*args), jax.jit(step)(*args))
