"""Calls of libraries (`jax.ffi`) that have side effects."""

from __future__ import annotations

from typing import Any

import ffi_target
import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import named_computation
from mpmd_trace.diagnostics.messages import MpmdError
from pipelines import Weights, assert_same, batch, config, layer, summed_values, topology, weights

TOLD: list[float] = []
ffi_target.register("mpmd_trace_test_tell", TOLD.append)


def _tell(x: jax.Array) -> Any:
    call = jax.ffi.ffi_call("mpmd_trace_test_tell", jax.ShapeDtypeStruct(x.shape, x.dtype), has_side_effect=True)
    return call(x)


@jax.custom_vjp
def tell(x: jax.Array) -> Any:
    """Return `x`, which is told."""
    return _tell(x)


tell.defvjp(lambda x: (_tell(x), x), lambda x, g: (g + 0 * _tell(x),))


def told_by(fn: Any, *args: Any) -> tuple[Any, list[float]]:
    TOLD.clear()
    found = jax.block_until_ready(fn(*args))
    jax.effects_barrier()
    return found, sorted(round(x, 3) for x in TOLD)


def check_told(jitted: Any, fn: Any, args: tuple[Any, ...], times: int) -> None:
    """The jitted function returns and tells what `jax.jit` does, as many times."""
    expected, told = told_by(jax.jit(fn), *args)
    found, ours = told_by(jitted, *args)
    assert_same(found, expected)
    assert ours == told and len(told) == times


def first_and_second(ws: Weights, x: jax.Array) -> jax.Array:
    def loud(w: jax.Array, x: jax.Array) -> jax.Array:
        _tell(2 * jax.lax.stop_gradient(x))  # nothing reads it
        return tell(layer(w, x))

    h = named_computation(loud, name="f0")(ws[0], x)
    _tell(3 * jax.lax.stop_gradient(h))  # in code without a name
    return jnp.sum(named_computation(lambda w, h: jnp.sin(tell(layer(w, h))), name="f1")(ws[1], h))


def step(ws: Weights, xs: jax.Array) -> tuple[jax.Array, Weights]:
    found: tuple[jax.Array, Weights] = summed_values(first_and_second, ws, xs)
    _tell(found[0])
    return found


@pytest.mark.filterwarnings("ignore:a step does not fit")
@pytest.mark.parametrize("options", [{}, {"pipeline_schedule": "zb-h1"}, {"remat": "auto", "device_memory": 500}])
def test_side_effects_happen_as_often_as_under_jit(options: dict[str, Any]) -> None:
    options = {"pipeline_schedule": "1F1B", **options}
    jitted = mpmd_trace.jit(step, config(topology=topology(size=1), **options))
    for _ in range(2):
        check_told(jitted, step, (weights(), batch(3)), 3 * 6 + 1)


def test_not_among_several_devices() -> None:
    """As little as `jax.jit` can."""
    with pytest.raises(MpmdError, match=r"put it into jax\.shard_map, which says what each device does"):
        mpmd_trace.jit(first_and_second, config())(weights(), batch())


def test_on_each_device_in_shard_map() -> None:
    mesh = topology()["m0"]

    def model(ws: Weights, x: jax.Array) -> jax.Array:
        parts = jax.sharding.PartitionSpec("x")
        each = jax.shard_map(lambda x: tell(jnp.cos(x)), mesh=mesh, in_specs=parts, out_specs=parts)
        h = named_computation(lambda w, x: layer(w, each(x)), name="f0")(ws[0], x)
        return jnp.sum(named_computation(layer, name="f1")(ws[1], h))

    check_told(mpmd_trace.jit(model, config()), model, (weights(), batch()), 2)


def test_in_loops_and_conditionals() -> None:
    def model(ws: Weights, x: jax.Array) -> jax.Array:
        def first(w: jax.Array, x: jax.Array) -> Any:
            return jax.lax.scan(lambda h, _: (_tell(layer(w, h)), None), x, None, length=3)[0]

        h = named_computation(first, name="f0")(ws[0], x)
        h = jax.lax.cond(jnp.sum(h) > -1e3, lambda h: _tell(-h), lambda h: _tell(h + 1), h)
        return jnp.sum(named_computation(layer, name="f1")(ws[1], h))

    check_told(mpmd_trace.jit(model, config(topology=topology(size=1))), model, (weights(), batch()), 4)


def test_without_side_effects_it_is_an_op_like_others() -> None:
    def model(ws: Weights, x: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("mpmd_trace_test_tell", jax.ShapeDtypeStruct(x.shape, x.dtype))
        call(x)  # unused: it is not made
        h = named_computation(layer, name="f0")(ws[0], call(jnp.cos(x)))
        return jnp.sum(named_computation(layer, name="f1")(ws[1], h))

    check_told(mpmd_trace.jit(model, config(topology=topology(size=1))), model, (weights(), batch()), 1)


def test_barrier_waits_for_programs_without_results() -> None:
    def heavy(x: jax.Array) -> jax.Array:
        w = jnp.full((800, 800), x[0, 0] / 800)
        return jnp.sum(jax.lax.fori_loop(0, 8, lambda _, w: jnp.tanh(w @ w), w))  # more than runs while it is issued

    def model(x: jax.Array) -> jax.Array:
        h = named_computation(heavy, name="f1")(named_computation(jnp.cos, name="f0")(x))
        _tell(h)  # a program of its own, which nothing waits for
        return jnp.sum(x)

    jitted = mpmd_trace.jit(model, config(topology=topology(size=1)))
    told_by(jitted, batch())
    assert len(told_by(jitted, batch())[1]) == 1
