"""`jax.checkpoint` around several stages: each stage recomputes its own part, as the start of its backward."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, call, enumerated_for, fori_loop, named_computation, named_tensor
from pipelines import Weights, batch, check, config, layer, summed_gradients, weights
from util import nightly

STAGES = {f"f{i}": (f"m{i // 2}", i // 2) for i in range(4)}
Model = Callable[[Weights, jax.Array], jax.Array]


def part(first: int, last: int) -> Model:
    def run(ws: Weights, x: jax.Array) -> jax.Array:
        for i in range(first, last):
            x = named_computation(layer, name=f"f{i}")(ws[i], x)
        return x

    return run


def whole(ws: Weights, x: jax.Array) -> jax.Array:
    return jax.checkpoint(lambda ws, x: jnp.mean(part(0, 4)(ws, x) ** 2))(ws, x)


def across(ws: Weights, x: jax.Array) -> jax.Array:
    """From the middle of the first stage to that of the second."""
    return jnp.mean(part(3, 4)(ws, jax.checkpoint(part(1, 3))(ws, part(0, 1)(ws, x))) ** 2)


def nested(ws: Weights, x: jax.Array) -> jax.Array:
    first = jax.checkpoint(part(0, 2))
    return jax.checkpoint(lambda ws, x: jnp.mean(part(2, 4)(ws, first(ws, x)) ** 2))(ws, x)


def with_policy(ws: Weights, x: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.dots_saveable
    return jnp.mean(jax.checkpoint(part(0, 4), policy=policy)(ws, x) ** 2)


def residual(ws: Weights, x: jax.Array) -> jax.Array:
    """Unnamed code between the stages, values that skip some, and rules of their own for derivatives."""

    def norm(h: jax.Array) -> jax.Array:
        return h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-3)

    def run(ws: Weights, x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = x + named_computation(lambda w, h: jax.nn.gelu(jax.nn.relu(h) @ w), name=f"f{i}")(w, norm(x))
        return jnp.mean(norm(x) * x)

    return jax.checkpoint(run)(ws, x)


def gradients(model: Model) -> Callable[..., Weights]:
    return functools.partial(summed_gradients, model)


@pytest.mark.parametrize("model", [whole, across, nested, with_policy, residual])
def test_around_several_stages(model: Model) -> None:
    check(gradients(model), weights(4), batch(2), config=config(STAGES, pipeline_schedule="1F1B"))


def test_each_stage_runs_once_forwards_and_once_backwards() -> None:
    """The gradient alone: the forward pass is there for what the stages hand on."""
    jitted = check(gradients(whole), weights(4), batch(2), config=config(STAGES))
    plan = jitted.lower(weights(4), batch(2)).compile().program.plan
    assert [run.mesh for run in plan.runs].count("m0") == 1 + 4  # the indices; forward and backward of each microbatch
    assert [run.mesh for run in plan.runs].count("m1") == 1 + 2  # zeros for the sums; both at once


def test_the_backward_recomputes_its_stage() -> None:
    """The backward of the first stage takes its input, and nothing that its forward computed inside."""
    widen = 16

    def wide(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tile(x @ w, widen)).reshape(*x.shape, widen).sum(-1)

    def model(ws: Weights, x: jax.Array) -> jax.Array:
        return jnp.mean(named_computation(layer, name="f1")(ws[1], named_computation(wide, name="f0")(ws[0], x)))

    def held(model: Model) -> int:
        names = {"f0": ("m0", 0), "f1": ("m1", 1)}
        jitted = check(gradients(model), weights(), batch(2), config=config(names))
        analysis = jitted.lower(weights(), batch(2)).compile().memory_analysis()
        return analysis["m0"].peak - analysis["m0"].temporary

    assert held(jax.checkpoint(model)) < held(model)


def test_zero_bubble() -> None:
    check(gradients(whole), weights(4), batch(2), config=config(STAGES, pipeline_schedule="zb-h1"))


LOOPS: dict[str, Callable[[Model, Weights, jax.Array], jax.Array]] = {
    "enumerated_for": lambda model, ws, xs: enumerated_for(lambda i, c, x: c + model(ws, x), jnp.zeros(()), xs),
    "fori_loop": lambda model, ws, xs: fori_loop(len(xs), lambda i, c: c + model(ws, xs[i]), jnp.zeros(())),
    "call": lambda model, ws, xs: sum((call(model, i)(ws, xs[i]) for i in range(len(xs))), jnp.zeros(())),
    "scan": lambda model, ws, xs: jax.lax.scan(lambda c, x: (c + model(ws, x) * (1 + c), None), 0.0, xs)[0],
}


def around(model: Model, loop: str, with_value: bool) -> Callable[..., Any]:
    derivative: Any = jax.value_and_grad if with_value else jax.grad
    return lambda ws, xs: derivative(lambda ws: LOOPS[loop](model, ws, xs))(ws)


@pytest.mark.parametrize(
    ("loop", "stages", "with_value"),
    [
        nightly("enumerated_for", False, True),
        ("enumerated_for", True, False),
        ("fori_loop", True, True),
        nightly("call", False, False),
        ("scan", True, False),
    ],
)
def test_gradient_around_the_loop(loop: str, stages: bool, with_value: bool) -> None:
    """Forward and backward of a microbatch are different calls, and each stage runs once in each of them."""
    names = STAGES if stages else {name: mesh for name, (mesh, _) in STAGES.items()}
    jitted = check(around(whole, loop, with_value), weights(4), batch(2), config=config(names, placement="cut"))
    plan = jitted.lower(weights(4), batch(2)).compile().program.plan
    runs = [run.mesh for run in plan.runs if run.origins]
    assert runs.count("m0") == 4
    assert runs.count("m1") == (4 if with_value or loop == "scan" else 2), "both at once where nobody wants the value"


@pytest.mark.parametrize("model", [across, residual])
def test_gradient_around_the_loop_of_parts(model: Model) -> None:
    fn = around(model, "enumerated_for", with_value=True)
    check(fn, weights(4), batch(2), config=config(STAGES, placement="cut"))


def handed(ws: Weights, x: jax.Array) -> jax.Array:
    return jnp.mean(part(2, 4)(ws, named_tensor(part(0, 2)(ws, x), "handed")) ** 2)


def handed_by_stages(ws: Weights, x: jax.Array) -> jax.Array:
    h = named_tensor(jax.checkpoint(part(0, 2))(ws, x), "handed")
    return jnp.mean(jax.checkpoint(part(2, 4))(ws, h) ** 2)


@pytest.mark.parametrize(
    ("model", "mesh", "placement"),
    [(handed, "m0", "cut"), (handed_by_stages, "m1", "reference"), (jax.checkpoint(handed), "m0", "reference")],
)
def test_gradient_around_the_loop_of_what_is_on_the_host(model: Model, mesh: str, placement: str) -> None:
    """In calls of forwards and backwards, a named tensor is moved to the memory of the host."""
    step = around(model, "enumerated_for", with_value=True)
    names = {**STAGES, "handed": f"{mesh}#pinned_host"}
    jitted = check(step, weights(4), batch(2), config=config(names, placement=placement))
    text = jitted.lower(weights(4), batch(2)).as_text("mpmd")
    assert len(re.findall(r'= mpmd.transfer .* -> .*"pinned_host">$', text, re.MULTILINE)) >= 2


@pytest.mark.parametrize("model", [nested, with_policy])
def test_a_checkpoint_around_the_loop(model: Model) -> None:
    fn = jax.grad(jax.checkpoint(lambda ws, xs: LOOPS["enumerated_for"](model, ws, xs)))
    check(fn, weights(4), batch(2), config=config(STAGES))


def test_what_cannot_be_one_backward_is_told() -> None:
    """A product with the Hessian: derivatives of the backward need more of the code between stages than is kept."""
    fn = around(residual, "enumerated_for", with_value=False)
    product = lambda ws, xs: jax.jvp(lambda p: fn(p, xs), (ws,), (ws,))[1]  # noqa: E731
    with pytest.raises(MpmdError) as found:
        mpmd_trace.jit(product, config(STAGES))(weights(4), batch(2))
    assert f"{__file__}:" in str(found.value)
    assert "note: jax.checkpoint around several stages recomputes them here" in str(found.value)
    assert "Take the gradient inside of the body of the loop" in str(found.value)
    assert "that is differentiated twice has one when each stage has its own checkpoint" in str(found.value)


def test_products_with_the_hessian() -> None:
    """Reverse over reverse is refused; the message tells what is not: forward over reverse, a checkpoint a stage."""

    def loss(ws: Weights, x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            y = named_computation(jax.checkpoint(layer), name=f"f{i}")(w, x * jax.lax.rsqrt(1 + jnp.mean(x**2)))
            x = x + y
        return jnp.mean(x**2)

    def product(ws: Weights, x: jax.Array) -> Weights:
        found: Weights = jax.jvp(lambda p: jax.grad(loss)(p, x), (ws,), (ws,))[1]
        return found

    def in_reverse(ws: Weights, x: jax.Array) -> Weights:
        found: Weights = jax.grad(lambda p: sum(map(jnp.vdot, jax.grad(loss)(p, x), ws)))(ws)
        return found

    check(product, weights(4), batch(2)[0], config=config(STAGES))
    with pytest.raises(MpmdError, match=r"forward over reverse: jax\.jvp"):
        mpmd_trace.jit(in_reverse, config(STAGES)).lower(weights(4), batch(2)[0])
