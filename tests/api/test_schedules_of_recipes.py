"""Training steps with targets, token weights, clipping and loss scaling run in exactly the order of their schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import test_schedules_run as plain

import mpmd_trace
from mpmd_trace import schedules
from mpmd_trace.equinox import name_layers
from pipelines import assert_same, topology
from util import nightly, normal

MICROBATCHES = plain.MICROBATCHES
#: With these, backwards are split, and what is sent may not take weight gradients along.
SPLIT = [n for n in plain.TRAINING if n.startswith("zb") or n in ("interleaved-zero-bubble", "v-half", "dualpipe-v")]


def step_of(
    model: plain.Model,
    *,
    backwards: bool,
    loop: bool,
    weighted: bool,
    clipped: bool,
    scaled: bool,
    recomputed: bool,
    chains: tuple[str, ...] = ("",),
) -> Any:
    """A training step; with `loop` and `backwards` its gradient is taken around the loop.

    Without `loop` each of the chains has an equal part of the microbatches, under names that begin with its own.
    """
    static = eqx.partition(model, eqx.is_array)[1]

    def step(parameters: Any, xs: jax.Array, ys: jax.Array, ws: jax.Array, scale: jax.Array) -> Any:
        tokens = jnp.sum(ws)

        def loss(parameters: Any, x: jax.Array, y: jax.Array, w: jax.Array, named: str = "") -> jax.Array:
            model = eqx.combine(parameters, static)
            whole = name_layers(model, lambda m: m.blocks, name=lambda name: named + name)
            errors = jnp.mean((whole(x) - y) ** 2, -1)
            found = jnp.sum(errors * w) / tokens if weighted else jnp.mean(errors)
            return found * scale if scaled else found

        each = jax.checkpoint(loss) if recomputed else loss

        def one(x: jax.Array, y: jax.Array, w: jax.Array, named: str = "") -> Any:
            return jax.value_and_grad(functools.partial(each, named=named))(parameters, x, y, w)

        if loop and backwards:
            whole = jax.value_and_grad(
                lambda parameters: mpmd_trace.enumerated_for(
                    lambda i, total, part: total + each(parameters, *part), jnp.zeros(()), (xs, ys, ws)
                )
            )
            total = whole(parameters)
        elif loop:
            zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
            total = mpmd_trace.enumerated_for(
                lambda i, sums, part: jax.tree.map(jnp.add, sums, one(*part)), zeros, (xs, ys, ws)
            )
        else:
            totals: dict[str, Any] = {}
            for i in reversed(range(MICROBATCHES)) if backwards else range(MICROBATCHES):
                chain = chains[i * len(chains) // MICROBATCHES]
                found = mpmd_trace.call(functools.partial(one, named=chain), call_counter=i)(xs[i], ys[i], ws[i])
                totals[chain] = jax.tree.map(jnp.add, totals[chain], found) if chain in totals else found
            total = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), totals.values())
        value, grads = total
        if scaled:
            grads = jax.tree.map(lambda g: g / scale, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        if clipped:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
        updated = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads)
        if scaled:
            updated = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, parameters)
        return value, updated

    return step


def check(
    name: str,
    recipe: str,
    *,
    loop: bool,
    runs: bool,
    chains: tuple[str, ...] = ("",),
    names: dict[str, tuple[str, int]] | None = None,
) -> None:
    schedule = schedules.get_schedule(name, 2, MICROBATCHES, guard=False)
    model = plain.Model(schedule.stages // len(chains))
    asked = {what: what in recipe for what in ("weighted", "clipped", "scaled", "recomputed")}
    step = step_of(model, backwards=name in plain.REVERSED, loop=loop, chains=chains, **asked)
    shape = (MICROBATCHES, 2, plain.WIDTH)
    args = (
        eqx.filter(model, eqx.is_array),
        normal(0, *shape),
        normal(1, *shape),
        abs(normal(2, *shape[:2])),
        jnp.float32(8.0),
    )
    lowered, rows = plain.lower(name, topology(2, size=1), step, names or plain.assign(schedule), *args)
    assert rows == plain.expected(schedule.unfused(), rows)
    assert name in plain.REVERSED or "stablehlo.slice" not in lowered.as_text(), "microbatches are cut at an index"
    if runs:
        assert_same(lowered.compile()(*args), jax.jit(step)(*args))


#: The others in `make nightly`; `test_schedules_run.py` has all of them.
EACH_TIME = ("zb-h1", "zb-v", "looped-bfs", "dualpipe-v")


@pytest.mark.parametrize("name", [name if name in EACH_TIME else nightly(name) for name in plain.TRAINING])
def test_all_together(name: str) -> None:
    check(name, "weighted clipped scaled", loop=False, runs=name in ("1f1b", "zb-h1", "zb-v"))


@pytest.mark.parametrize(
    ("name", "recipe"),
    [*(("1f1b", recipe) for recipe in ("targets", "weighted", "clipped")), *((name, "scaled") for name in SPLIT)],
)
def test_loops(name: str, recipe: str) -> None:
    check(name, recipe, loop=True, runs=False)


@pytest.mark.parametrize("name", plain.REVERSED)
def test_gradients_around_the_loop(name: str) -> None:
    recomputed = "recomputed" * (name == "looped-bfs")
    check(name, "weighted clipped scaled " + recomputed, loop=True, runs=bool(recomputed))


def test_two_chains_in_opposite_directions() -> None:
    """DualPipe, whose chains share the parameters, targets, the number of tokens and the norm."""
    check("dualpipe", "weighted clipped scaled", loop=False, runs=False, chains=("down_", "up_"), names=plain.BOTH_WAYS)


def parameters_and_loss(model: plain.Model) -> tuple[Any, Callable[[Any, jax.Array], jax.Array]]:
    parameters, static = eqx.partition(model, eqx.is_array)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(name_layers(eqx.combine(parameters, static), lambda m: m.blocks)(x) ** 2)

    return parameters, loss


@pytest.mark.parametrize(("name", "epochs"), [("1f1b", False), ("zb-v", False), ("1f1b", True)])
def test_each_of_two_loops_has_the_order_of_the_schedule(name: str, epochs: bool) -> None:
    """Epochs; or a second gradient where the first one has led, with the norm of all in between."""
    schedule = schedules.get_schedule(name, 2, MICROBATCHES, guard=False)
    model = plain.Model(schedule.stages)
    parameters, loss = parameters_and_loss(model)

    def step(parameters: Any, xs: jax.Array) -> Any:
        gradients = mpmd_trace.value_and_grad(loss, microbatches=MICROBATCHES)

        def epoch(parameters: Any, _: None) -> Any:
            _, found = gradients(parameters, xs)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(found)))
            return jax.tree.map(lambda p, g: p + 0.1 * g / norm, parameters, found), None

        if epochs:
            return jax.lax.scan(epoch, parameters, None, length=2)[0]
        return gradients(epoch(parameters, None)[0], xs)

    xs = jnp.ones((2 * MICROBATCHES, plain.WIDTH))
    _, rows = plain.lower(name, topology(2, size=1), step, plain.assign(schedule), parameters, xs)
    assert rows == [row + row for row in plain.expected(schedule, rows)]


def test_two_gradients_in_a_loop_keep_no_more_microbatches_than_one() -> None:
    """The gradient of each microbatch is that of a step uphill: forward and backward twice, the norm of all between."""
    model = plain.Model(2)
    parameters, loss = parameters_and_loss(model)

    def gradient(parameters: Any, x: jax.Array) -> Any:
        found = jax.grad(loss)(parameters, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(found)))
        return jax.grad(loss)(jax.tree.map(lambda p, g: p + 0.1 * g / norm, parameters, found), x)

    def step(parameters: Any, xs: jax.Array) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return mpmd_trace.enumerated_for(
            lambda i, sums, x: jax.tree.map(jnp.add, sums, gradient(parameters, x)), zeros, xs
        )

    names = {"blocks_0": "m0", "blocks_1": "m1"}
    args = parameters, jnp.ones((4, 2, plain.WIDTH))
    lowered, rows = plain.lower("1F1B", topology(2, size=1), step, names, *args)
    assert [" ".join(f"{a.kind}{a.microbatch}" for a in row) for row in rows] == [
        "F0 F1 B0 F0 B1 F1 B0 F2 B1 F3 B2 F2 B3 F3 B2 B3",
        "F0 B0 F1 B1 F0 B0 F1 B1 F2 B2 F3 B3 F2 B2 F3 B3",
    ]
    assert_same(lowered.compile()(*args), jax.jit(step)(*args))
