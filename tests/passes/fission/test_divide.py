"""Fission of loops and conditionals: what a body computes stays, and nothing early waits for what is late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Op, Region, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import read_module
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.common.splitting import backward_closure
from mpmd_trace.passes.fission.demand import demanded
from mpmd_trace.passes.fission.divide import divide
from mpmd_trace.passes.fission.waiting import waits_for
from mpmd_trace.passes.manager import run_passes
from oracle import evaluate

MESH = MeshAttr.get([("x", 2)])
WIDTH = 3
#: How a function is made: an op and what it takes; loops and branches contain such lists.
Steps = list[tuple[Any, ...]]


def leaves(pool: list[jax.Array], weights: jax.Array, steps: Steps) -> list[jax.Array]:
    """Run steps on the last values of a pool; every step adds one or more."""
    pool = list(pool)
    for kind, *rest in steps:
        numbers = [pool[-1 - n % len(pool)] for n in rest if isinstance(n, int)]
        if kind == "mul":
            pool.append(numbers[0] * numbers[1])
        elif kind == "sub":
            pool.append(numbers[0] - numbers[1])
        elif kind == "tanh":
            pool.append(jnp.tanh(numbers[0]))
        elif kind == "dot":
            pool.append(numbers[0] @ weights)
        elif kind == "scan":
            inner = rest[2]

            def body(carry: tuple[jax.Array, ...], row: jax.Array, inner: Steps = inner) -> tuple[Any, Any]:
                made = leaves([*carry, row], weights, inner)
                return tuple(made[-len(carry) :]), made[-1] + made[0]

            carried, rows = lax.scan(body, (numbers[0], numbers[1]), weights, reverse=rest[3])
            pool += [*carried, rows[0], rows.sum(0)]
        elif kind == "cond":
            branches = [lambda pool=pool, s=s: tuple(leaves(pool[-2:], weights, s)[-2:]) for s in rest[1:3]]
            pool += lax.cond(numbers[0][0] > 0, *branches)
    return pool


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> Steps:
    """Some steps; loops and conditionals are nested up to `depth` deep."""
    number = st.integers(0, 5)
    kinds = ["mul", "sub", "tanh", "dot", *(["scan", "cond"] if depth else [])]
    steps: Steps = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        if kind == "scan":
            steps.append((kind, draw(number), draw(number), draw(programs(depth - 1)), draw(st.booleans())))
        elif kind == "cond":
            steps.append((kind, draw(number), draw(programs(depth - 1)), draw(programs(depth - 1))))
        else:
            steps.append((kind, draw(number), draw(number)))
    return steps


def module_of(fn: Callable[..., Any], *args: jax.Array) -> tuple[Module, Region]:
    """A function as a module, and as the body of a fragment."""
    module = read_module(jax.jit(fn, keep_unused=True).lower(*args).as_text())
    run_passes(module, "mpmd-clean-up")
    main = module.lookup("main")
    assert main is not None
    body = main.regions[0].clone()
    returned = body.returned
    body.block.terminator.erase()
    body.block.append(make_op("mpmd.return", returned))
    return module, freeze(body)


def evaluate_body(module: Module, body: Region, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """What a body returns, in the place of the function that it was made from."""
    other = module.clone()
    main = other.lookup("main")
    assert main is not None
    copy = body.clone()
    returned = copy.returned
    copy.block.terminator.erase()
    copy.block.append(make_op("func.return", returned))
    main.regions[0] = copy
    copy.parent = main
    verify(other)
    return evaluate(other, args)


def halves(body: Region, late: tuple[bool, ...]) -> tuple[list[Op], list[Op]]:
    """The ops of the two parts, those in loops and branches included."""
    first = backward_closure(body, [v for v, is_late in zip(body.returned, late, strict=True) if not is_late])
    second = backward_closure(body, body.returned)
    return [o for op in first for o in op.walk()], [o for op in second if op not in set(first) for o in op.walk()]


def products(ops: Iterable[Op]) -> int:
    return sum(op.name == "stablehlo.dot_general" for op in ops)


def late_products(body: Region, late: tuple[bool, ...]) -> int:
    """How many products only late results need."""
    copy = body.clone()
    early, every = (
        demanded([v for v, is_late in zip(copy.returned, late, strict=True) if with_late or not is_late], ())
        for with_late in (False, True)
    )
    return products(op for op in copy.walk() if op.results and op.results[0] in every - early)


@settings(max_examples=25, deadline=None)
@given(steps=programs(), mask=st.lists(st.booleans(), min_size=8, max_size=8))
def test_random_programs_compute_the_same_after_fission(steps: Steps, mask: list[bool]) -> None:
    def fn(*args: jax.Array) -> Any:
        return tuple(leaves(list(args[:-1]), args[-1], steps)[-8:])

    keys = jax.random.split(jax.random.key(0), 3)
    args = [jax.random.normal(k, (WIDTH,)) for k in keys[:2]] + [jax.random.normal(keys[2], (WIDTH, WIDTH))]
    module, body = module_of(fn, *args)
    late = tuple(mask[: len(body.returned)])
    divided = divide(body, late, MESH)
    assert not divided.whole
    first, second = map(products, halves(divided.body, late))
    assert second >= late_products(body, late)
    assert first + second <= products(body.walk())
    for before, after in zip(evaluate(module, args), evaluate_body(module, divided.body, args), strict=True):
        np.testing.assert_array_equal(before, after)


def backward_of(layer: Callable[[Any, jax.Array], jax.Array], w: Any, x: jax.Array) -> tuple[Module, Region]:
    """The gradients of a stage, first that of its input."""

    def fn(w: Any, x: jax.Array, dy: jax.Array) -> Any:
        dw, dx = jax.vjp(layer, w, x)[1](dy)
        return dx, dw

    return module_of(fn, w, x, x)


W, X = jnp.ones((4, WIDTH, WIDTH)), jnp.ones((2, WIDTH))


def test_the_gradients_of_parameters_leave_the_loop_over_layers() -> None:
    def layers(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0]

    _, body = backward_of(layers, W, X)
    assert [products(part) for part in halves(body, (False, True))] == [3, 0]  # forward, dx and dw
    divided = divide(body, (False, True), MESH).body
    assert [products(part) for part in halves(divided, (False, True))] == [2, 1]
    loops = [op for op in divided.block if op.name == "stablehlo.while"]
    # Of the activations and cotangents only what the product reads is stacked.
    rows = [r.type.text for r in loops[1].results]
    assert rows.count("tensor<4x2x3xf32>") == 1


def test_a_loop_that_runs_until_something_is_true_stays_whole() -> None:
    def search(w: jax.Array, x: jax.Array, dy: jax.Array) -> Any:
        return lax.while_loop(lambda s: s[0].sum() < 10, lambda s: (s[0] + s[1] @ w[0], s[1] + s[0] @ w[1]), (x, dy))

    _, body = module_of(search, W, X, X)
    assert divide(body, (False, True), MESH).body is body  # both carried values need each other
    other = module_of(
        lambda w, x: lax.while_loop(lambda s: s[0].sum() < 10, lambda s: (s[0] + 1, s[1] + s[0] @ w[1]), (x, x)), W, X
    )[1]
    divided = divide(other, (False, True), MESH)
    assert [one.kind for one in divided.whole] == ["loop"]
    assert divided.whole[0].contracts
    assert "how often" in divided.whole[0].reason


def test_ops_with_effects_stay_whole() -> None:
    def layers(w: jax.Array, x: jax.Array) -> Any:
        def body(carry: Any, w: jax.Array) -> Any:
            jax.debug.callback(lambda _: None, carry[0])
            return (jnp.tanh(carry[0]), carry[1] + carry[0] @ w), None

        return lax.scan(body, (x, x), w)[0]

    _, body = module_of(layers, W, X)
    assert [one.reason for one in divide(body, (False, True), MESH).whole] == ["it has effects"]


@pytest.mark.parametrize("adds_only", [True, False])
def test_adding_is_no_work_that_can_wait(adds_only: bool) -> None:
    def fn(x: jax.Array, total: jax.Array) -> Any:
        y = x @ x
        return jnp.tanh(y), total + (y if adds_only else x.T @ y)

    _, body = module_of(fn, jnp.ones((4, 4)), jnp.ones((4, 4)))
    first = backward_closure(body, body.returned[:1])
    assert waits_for(body, first) is not adds_only
