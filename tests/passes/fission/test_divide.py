"""Fission of loops and conditionals: what a body computes stays, and nothing early waits for what is late."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Op, Region, make_op
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.text import read_module
from mpmd_trace.ir.verifier import verify
from mpmd_trace.passes.common.splitting import backward_closure
from mpmd_trace.passes.fission.deferred_work import waits_for
from mpmd_trace.passes.fission.demand import demanded
from mpmd_trace.passes.fission.split_divided import divide
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.interpreter import interpret
from util import max_examples, normal

MESH = MeshAttr.get([("x", 2)])
WIDTH = 3
#: How a function is made: an op and what it takes; loops and branches contain such lists.
Steps = list[tuple[Any, ...]]
#: A type, where a counter of it starts, what it stays below, and its step.
Count = tuple[Any, int, int, int]


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

            # Nobody returns what is carried last.
            carried, rows = lax.scan(body, (numbers[0], numbers[1], pool[0]), weights, reverse=rest[3])
            pool += [*carried[:2], rows[0], rows.sum(0)]
        elif kind == "while":
            pool += while_loop(numbers, weights, *rest[2:])
        elif kind == "cond":
            branches = [lambda pool=pool, s=s: tuple(leaves(pool[-2:], weights, s)[-2:]) for s in rest[1:3]]
            pool += lax.cond(numbers[0][0] > 0, *branches)
    return pool


def while_loop(
    values: list[jax.Array], weights: jax.Array, count: Count, steps: Steps, carries_limit: bool, counts_data: bool
) -> list[jax.Array]:
    """Run steps as often as something is counted, with an integer that depends on the counter or on data."""
    dtype, start, limit, step = count

    def body(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, end, integer, *pool = state
        made = leaves([*pool, pool[0] * number + integer], weights, steps)
        integer = (3 * integer + ((made[-1][0] > 0) if counts_data else number.astype(jnp.int32))) % 7
        return (number + dtype(step), end, integer, *made[-len(pool) :])

    state = (dtype(start), dtype(limit), jnp.int32(1), *values, values[0])
    result = lax.while_loop(lambda s: s[0] < (s[1] if carries_limit else dtype(limit)), body, state)
    return [*result[3:5], values[0] * result[2]]


@st.composite
def counts(draw: st.DrawFn) -> Count:
    """Some type, start, limit and step, of which a loop ends soon, also if the sum overflows meanwhile."""
    dtype = draw(st.sampled_from([jnp.int8, jnp.uint8, jnp.int32, jnp.uint32]))
    info = jnp.iinfo(dtype)
    start, step = draw(st.integers(int(info.min), int(info.max))), draw(st.integers(1, int(info.max)))
    span = int(info.max) - int(info.min) + 1
    numbers = [(start + n * step - int(info.min)) % span + int(info.min) for n in range(6)]
    ends = [n for n in range(1, 6) if max(numbers[:n]) < numbers[n]]
    end = draw(st.sampled_from(ends)) if ends else 0
    return dtype, start, draw(st.integers(max(numbers[:end], default=int(info.min) - 1) + 1, numbers[end])), step


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> Steps:
    """Some steps; loops and conditionals are nested up to `depth` deep."""
    number = st.integers(0, 5)
    kinds = ["mul", "sub", "tanh", "dot", *(["scan", "cond", "while", "while"] if depth else [])]
    steps: Steps = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        if kind == "scan":
            steps.append((kind, draw(number), draw(number), draw(programs(depth - 1)), draw(st.booleans())))
        elif kind == "while":
            flags = draw(st.booleans()), draw(st.booleans())
            steps.append((kind, draw(number), draw(number), draw(counts()), draw(programs(depth - 1)), *flags))
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
    assert not verify(other)
    return interpret(other, args)


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


@max_examples(6)
@given(steps=programs(), mask=st.lists(st.booleans(), min_size=8, max_size=8))
def test_random_programs_compute_the_same_after_fission(steps: Steps, mask: list[bool]) -> None:
    def fn(*args: jax.Array) -> Any:
        return tuple(leaves(list(args[:-1]), args[-1], steps)[-8:])

    args = normal(0, WIDTH), normal(1, WIDTH), normal(2, WIDTH, WIDTH)
    module, body = module_of(fn, *args)
    late = tuple(mask[: len(body.returned)])
    divided = divide(body, late, MESH)
    first, second = map(products, halves(divided.body, late))
    assert all("overflows" in one.reason for one in divided.whole)
    assert divided.whole or second >= late_products(body, late)
    assert first + second <= products(body.walk())
    for before, after in zip(interpret(module, args), evaluate_body(module, divided.body, args), strict=True):
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


Loop = Callable[[jax.Array, jax.Array], Any]


def counted(dtype: Any, start: int, limit: int, step: int) -> Loop:
    """Two results, of which the second needs of every iteration what the first one does."""

    def fn(w: jax.Array, x: jax.Array) -> Any:
        def body(state: Any) -> Any:
            i, x, total = state
            return i + dtype(step), jnp.tanh(x @ w) + 0.01 * i, total + jnp.outer(x, x) @ w * i

        return lax.while_loop(lambda s: s[0] < dtype(limit), body, (dtype(start), x, w))[1:]

    return fn


def unused_inside(w: jax.Array, x: jax.Array) -> Any:
    """A result of the inner loop is carried on by the outer one, and nobody returns it."""

    def outer(carry: Any, _: None) -> Any:
        x, total, statistic = carry

        def inner(_: int, s: Any) -> Any:
            return s[0] + jnp.outer(x, s[0][0]) @ w, s[1] * 2 + s[0][0]

        total, statistic = lax.fori_loop(0, 2, inner, (total, statistic))
        return (jnp.tanh(x @ w), total, statistic @ w), None

    return lax.scan(outer, (x, w, x), None, length=3)[0][:2]


def carried_limit(w: jax.Array, x: jax.Array) -> Any:
    def body(s: Any) -> Any:
        return s[0] + 1, s[1], jnp.tanh(s[2] @ w), s[3] + jnp.outer(s[2], s[2]) @ w

    return lax.while_loop(lambda s: s[0] < s[1], body, (0, 4, x, w))[2:]


def divided_in_two(fn: Loop) -> tuple[list[int], list[str]]:
    """How many products there are in the halves, and why loops stay whole; the numbers are those of the function."""
    args = normal(0, WIDTH, WIDTH), normal(1, WIDTH)
    module, body = module_of(fn, *args)
    divided = divide(body, (False, True), MESH)
    for before, after in zip(interpret(module, args), evaluate_body(module, divided.body, args), strict=True):
        np.testing.assert_array_equal(before, after)
    return [products(part) for part in halves(divided.body, (False, True))], [one.reason for one in divided.whole]


@pytest.mark.parametrize(
    ("dtype", "start", "limit", "step"),
    [
        (jnp.int8, -100, 100, 1),  # the numbers of the rows
        (jnp.int8, -100, 21, 60),
        (jnp.int8, 0, 101, 100),  # 14 iterations, since the counter goes on from below
        (jnp.uint8, 0, 250, 100),
    ],
)
def test_a_loop_whose_counter_overflows_stays_whole(dtype: Any, start: int, limit: int, step: int) -> None:
    number, reasons = divided_in_two(counted(dtype, start, limit, step))
    assert number == [2, 0]
    assert len(reasons) == 1 and "its counter overflows" in reasons[0]


@pytest.mark.parametrize(
    ("dtype", "start", "limit", "step"),
    [(jnp.int8, -3, 117, 60), (jnp.int8, -128, -2, 63), (jnp.uint8, 5, 250, 50), (jnp.uint32, 2**32 - 4, 2**32 - 1, 1)],
)
def test_counters_that_reach_the_ends_of_their_types(dtype: Any, start: int, limit: int, step: int) -> None:
    assert divided_in_two(counted(dtype, start, limit, step)) == ([1, 1], [])


@pytest.mark.parametrize(("fn", "late"), [(unused_inside, 2), (carried_limit, 1)])
def test_what_late_loops_need_is_there(fn: Loop, late: int) -> None:
    assert divided_in_two(fn) == ([1, late], [])


def test_early_ops_read_no_copies_for_late_ones() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        turned = w.T
        y = turned @ x
        held, _ = lax.optimization_barrier((y, x))
        return y, jnp.outer(held, x) @ turned

    args = jnp.ones((WIDTH, WIDTH)), jnp.ones((WIDTH,))
    module, body = module_of(fn, *args)
    late = (False, True)
    divided = divide(body, late, MESH).body
    transposes = [sum(op.name == "stablehlo.transpose" for op in half) for half in halves(divided, late)]
    assert transposes == [1, 1]
    for before, after in zip(interpret(module, args), evaluate_body(module, divided, args), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("manual", "dims"), [({"x"}, {'"x", ?', "?"}), ({"x", "y"}, {'"x", "y"', ""})])
def test_rows_of_devices_are_sharded_along_automatic_axes(manual: set[str], dims: set[str]) -> None:
    def fn(w: jax.Array, x: jax.Array, dy: jax.Array) -> Any:
        spec = P(tuple(sorted(manual)))
        part = jax.shard_map(
            lambda w, x: jnp.tanh(x @ w) @ w.T, in_specs=(P(), spec), out_specs=spec, axis_names=manual
        )
        dw, dx = jax.vjp(part, w, x)[1](dy)
        return dx, dw

    with jax.set_mesh(jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)):
        _, body = module_of(fn, *[jnp.ones((4, 4))] * 3)
    divided = divide(body, (False, True), MeshAttr.get([("x", 2), ("y", 2)])).body
    *_, ahead, behind = (op for op in divided.walk() if op.name == "sdy.manual_computation")
    rows = re.findall(r"\[\{([^{}]*)\}, \{([^{}]*)\}, \{([^{}]*)\}\]", behind.props["in_shardings"].text)
    assert rows and {dim for row in rows for dim in row} == dims
    assert all(text in ahead.props["out_shardings"].text for text in (f"{{{dim}}}" for dim in dims))
