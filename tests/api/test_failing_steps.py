"""A step that fails half way: what was donated and is gone is told, everything else is as it was."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from mpmd_trace.api.compiled import Compiled
from pipelines import Weights, assert_same, batch, config, layer, loss, weights


def step(ws: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    value, grads = jax.value_and_grad(loss)(ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def chain(ws: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    """The second weight is replaced first."""
    second = named_computation(lambda w: 2 * w, name="f1")(ws[1])
    return [named_computation(lambda w, v: w + v, name="f0")(ws[0], second), second], x


def compiled(fn: Any = step) -> tuple[Compiled, Weights]:
    made = mpmd_trace.jit(fn, config(), donate_argnums=0).lower(weights(), batch()).compile()
    (placed, _), _ = made.place(weights(), batch())
    return made, placed


def fail_at(made: Compiled, number: int, error: BaseException) -> None:
    """Let the instruction of this number raise."""

    def call(_: Any) -> Any:
        raise error

    steps = made.program.runtime.steps
    steps[number] = (call, *steps[number][1:])


def test_wrong_arguments_cost_nothing() -> None:
    made, ws = compiled()
    with pytest.raises(MpmdError, match="must be float32"):
        made(ws, batch()[:2])
    assert_same(made(ws, batch()), jax.jit(step)(weights(), batch()))


def test_interrupted_before_anything_is_reused() -> None:
    made, ws = compiled()
    fail_at(made, 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as found:
        made(ws, batch())
    assert not hasattr(found.value, "__notes__")
    assert_same(ws, weights())


def test_interrupted_half_way() -> None:
    """The second weight's buffer was given to its successor by then; the error names what is gone, and only that."""
    made, ws = compiled(chain)
    fail_at(made, 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as found:
        made(ws, batch())
    (note,) = found.value.__notes__
    assert note == (
        "this step had reused the buffers of donated arguments, which are gone:\n"
        "  argument ws[1]\n"
        "all others are as they were"
    )
    assert [w.is_deleted() for w in ws] == [False, True]


def test_not_a_number() -> None:
    """`jax_debug_nans` stops at the program that makes one, before the state is replaced."""

    def root(ws: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
        h = named_computation(lambda w, x: jnp.sqrt(layer(w, x)), name="f0")(ws[0], x)
        y = named_computation(layer, name="f1")(ws[1], h)
        return [w + jnp.mean(y) for w in ws], jnp.mean(y)

    made = mpmd_trace.jit(root, config(), donate_argnums=0)
    (ws, x), _ = made.lower(weights(), batch()).compile().place(weights(), batch())
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as found:
        made(ws, x)
    assert all(note.startswith("while issuing") for note in found.value.__notes__)
    assert_same(ws, weights())
    made(ws, x)
