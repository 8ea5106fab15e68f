"""Loops and conditionals that stay what they are, with names inside: they run whole, on one mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

import mpmd_trace
from mpmd_trace import MpmdWarning, enumerated_for, named_computation
from pipelines import Weights, assert_same, batch, check, config, layer, loss, summed_values, weights


def last(ws: Weights, x: jax.Array) -> jax.Array:
    return jnp.sum(named_computation(layer, name="f1")(ws[1], x))


def with_loop(ws: Weights, x: jax.Array) -> jax.Array:
    def body(state: Any) -> Any:
        return state[0] + 1, named_computation(layer, name="f0")(ws[0], state[1])

    return last(ws, lax.while_loop(lambda state: jnp.sum(state[1]) > state[0], body, (0, x))[1])


def with_conditional(ws: Weights, x: jax.Array) -> jax.Array:
    first = named_computation(layer, name="f0")
    return last(ws, lax.cond(jnp.sum(x) > 0, lambda: first(ws[0], x), lambda: 2 * first(ws[0], x)))


def test_names_of_one_mesh() -> None:
    """The loop or conditional is part of the computation whose name is inside, also of its backward."""
    jitted = check(with_loop, weights(), batch())
    lowered = jitted.lower(weights(), batch())
    assert 'mpmd.named_computation<"f0">' in lowered.as_text("stablehlo")
    assert [run.mesh for run in lowered.compile().program.plan.runs] == ["m0", "m1"]
    check(jax.value_and_grad(with_conditional), weights(), batch())
    check(lambda ws, xs: enumerated_for(lambda i, c, x: c + with_loop(ws, x), jnp.zeros(()), xs), weights(), batch(2))


def test_names_of_several_meshes() -> None:
    """Everything that the loop needs is sent to one mesh, which is told."""

    def step(ws: Weights, x: jax.Array) -> Any:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + loss(ws, x)), (0, 0.0))[1]

    line = step.__code__.co_firstlineno + 1
    with pytest.warns(MpmdWarning, match=r"'f0', 'f1' occur inside a loop .* runs whole on one mesh") as found:
        check(step, weights(), batch())
    assert [(w.filename, w.lineno) for w in found] == [(__file__, line)]


def test_line_search() -> None:
    """Of optax's L-BFGS: the model is evaluated inside of its loop."""
    optimizer = optax.lbfgs(memory_size=2)

    def step(ws: Weights, state: Any, x: jax.Array) -> Any:
        def f(ws: Weights) -> jax.Array:
            return loss(ws, x)

        value, grad = optax.value_and_grad_from_state(f)(ws, state=state)
        updates, state = optimizer.update(grad, state, ws, value=value, grad=grad, value_fn=f)
        return optax.apply_updates(ws, updates), value

    args = weights(), optimizer.init(weights()), batch()
    expected = jax.jit(step)(*args)
    with pytest.warns(MpmdWarning, match="runs whole on one mesh"):
        found = mpmd_trace.jit(step, config())(*args)
    assert_same(found, expected, rtol=1e-3, atol=1e-4)


def _doubled_late(i: Any, x: jax.Array) -> jax.Array:
    return lax.cond(i > 1, lambda x: 2 * x, lambda x: x, x)


def _chosen(i: Any, x: jax.Array) -> jax.Array:
    return lax.switch(i % 3, [lambda: x, lambda: 2 * x, lambda: jnp.sin(x)])


@pytest.mark.parametrize("between", [_doubled_late, _chosen])
@pytest.mark.filterwarnings("error::mpmd_trace.MpmdWarning")
def test_stages_are_found_through_unnamed_conditionals_on_the_number_of_the_microbatch(between: Any) -> None:
    """The stages behind the conditional follow those before it, so that 1F1B can be followed exactly."""

    def microbatch(ws: Weights, i: Any, x: jax.Array) -> jax.Array:
        for k, w in enumerate(ws):
            x = named_computation(layer, name=f"f{k}")(w, x)
            x = between(i, x) if k == 1 else x
        return jnp.mean(x**2)

    def step(ws: Weights, numbers: jax.Array, xs: jax.Array) -> Any:
        return summed_values(lambda ws, given: microbatch(ws, *given), ws, (numbers, xs))

    settings = config({f"f{k}": f"m{k}" for k in range(4)}, meshes=4, pipeline_schedule="1F1B")
    jitted = mpmd_trace.jit(step, settings)
    arguments = weights(4), jnp.arange(5), batch(5)
    assert_same(jitted(*arguments), jax.jit(step)(*arguments))
    assert list(jitted.lower(*arguments).partitioned.module.main.topology.meshes) == ["m0", "m1", "m2", "m3"]
