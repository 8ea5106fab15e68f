"""Loops become calls, one per iteration, and can be differentiated, batched and nested."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from traced_programs import batch, calls, check_same, first, functions, loss, origins, plain_loss, plain_text, weights

from mpmd_trace import MpmdWarning
from mpmd_trace.frontend import FrontendError, trace
from mpmd_trace.frontend.naming import call, enumerated_for, fori_loop


def _fori(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ws, x: fori_loop(x.shape[0], lambda i, c: c + f(ws, x[i]) * i, 0.0)


def _python(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ws, x: sum(f(ws, x[i]) * i for i in range(x.shape[0]))


def test_fori_loop() -> None:
    text = plain_text(check_same(_fori(loss), _python(plain_loss), weights(), batch()))
    assert calls(text) == [("iteration", 0), ("iteration", 1), ("iteration", 2)]
    assert functions(text) == ["iteration"]


def test_slices_at_the_index_are_taken_outside_of_the_shared_body() -> None:
    text = plain_text(trace(_fori(loss), weights(), batch()))
    main, body = text.split("func.func private", 1)
    assert main.count("stablehlo.slice") == 3
    assert "slice" not in body


def test_fori_loop_can_be_differentiated() -> None:
    step, plain = jax.grad(_fori(loss)), jax.grad(_python(plain_loss))
    text = plain_text(check_same(step, plain, weights(), batch()))
    assert [counter for _, counter in calls(text)] == [0, 1, 2, 2, 1, 0]
    assert origins(text)[-2:] == ["second(1)", "first(1)"]
    assert "concatenate" not in text  # residuals go from iteration to iteration, not through stacks


def test_fori_loop_can_be_batched() -> None:
    xs = jnp.stack([batch(), batch() * 2])

    def step(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(jax.grad(f), (None, 0))

    text = plain_text(check_same(step(_fori(loss)), step(_python(plain_loss)), weights(), xs))
    assert [counter for _, counter in calls(text)] == [0, 1, 2, 2, 1, 0]


def test_fori_loop_can_be_nested() -> None:
    def nested(ws: list[jax.Array], x: jax.Array) -> Any:
        def outer(i: Any, c: Any) -> Any:
            return fori_loop(2, lambda j, d: d + loss(ws, x[i]) * (j + 1), c)

        return fori_loop(x.shape[0], outer, 0.0)

    def plain(ws: list[jax.Array], x: jax.Array) -> Any:
        return sum(plain_loss(ws, x[i]) * (j + 1) for i in range(3) for j in range(2))

    text = plain_text(check_same(jax.grad(nested), jax.grad(plain), weights(), batch()))
    assert [counter for _, counter in calls(text)] == [0, 1, 2, 2, 1, 0]


def test_fori_loop_with_explicit_calls() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return fori_loop(x.shape[0], lambda i, c: c + call(loss)(ws, x[i]) * i, 0.0)

    text = plain_text(check_same(step, _python(plain_loss), weights(), batch()))
    assert calls(text) == [("loss", 0), ("loss", 1), ("loss", 2)]
    assert "dynamic_slice" not in text


def test_no_iteration_gives_the_first_carry() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return fori_loop(0, lambda i, c: c + loss(ws, x[0]), 1.5)

    check_same(step, lambda ws, x: jnp.float32(1.5), weights(), batch())


def test_loop_without_names_stays_a_loop() -> None:
    text = plain_text(check_same(_fori(plain_loss), _python(plain_loss), weights(), batch()))
    assert "stablehlo.while" in text
    assert not calls(text)


def test_enumerated_for_accumulates_gradients() -> None:
    def step(f: Callable[..., Any]) -> Callable[..., Any]:
        def body(i: Any, total: Any, x: jax.Array, ws: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(f)(ws, x))

        def run(ws: list[jax.Array], x: jax.Array) -> Any:
            zero = jax.tree.map(jnp.zeros_like, ws)
            return enumerated_for(lambda i, c, xi: body(i, c, xi, ws), zero, x, unroll=3)

        return run

    text = plain_text(check_same(step(loss), step(plain_loss), weights(), batch()))
    assert calls(text) == [("iteration", 0), ("iteration", 1), ("iteration", 2)]
    assert origins(text) == ["first", "second", "second(1)", "first(1)"]


def test_enumerated_for_stacks_outputs() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return enumerated_for(lambda i, c, xi: (c + i, {"y": first(ws[0], xi), "i": i}), jnp.int32(0), x)

    def plain(ws: list[jax.Array], x: jax.Array) -> Any:
        return jnp.int32(3), {"y": jnp.tanh(x @ ws[0]), "i": jnp.arange(3)}

    check_same(step, plain, weights(), batch())


def test_a_loop_index_that_only_counts_does_not_go_through_the_calls() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: c + loss(ws, x[i]), 0.0)

    def plain(ws: list[jax.Array], x: jax.Array) -> Any:
        return sum(plain_loss(ws, x[i]) for i in range(3))

    text = plain_text(check_same(step, plain, weights(), batch()))
    assert "i32" not in text.split("func.func private")[1].split("{")[0].replace("f32", "")


def test_a_reversed_scan_counts_by_its_slices() -> None:
    def step(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ws, x: jax.lax.scan(lambda c, xi: (c * 0.5 + f(ws, xi), c), 0.0, x, reverse=True)

    text = plain_text(check_same(step(loss), step(plain_loss), weights(), batch()))
    assert [counter for _, counter in calls(text)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fori_loop(jnp.int32(3), lambda i, c: c, 0.0), "as a Python int"),
        (lambda: fori_loop(-1, lambda i, c: c, 0.0), "cannot run -1 iterations"),
        (lambda: fori_loop(4, lambda i, c: c, 0.0, unroll=2), "only be unrolled fully"),
        (lambda: enumerated_for(lambda i, c, x: c, 0.0, {}), "got no array"),
        (
            lambda: enumerated_for(lambda i, c, x: c, 0.0, {"a": jnp.ones(3), "b": jnp.ones((2, 2))}),
            r"inputs\['a'\]: 3, inputs\['b'\]: 2",
        ),
        (lambda: enumerated_for(lambda i, c, x: [c, c, c], 0.0, jnp.ones(3)), "must return a carry"),
    ],
)
def test_bad_loops(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        make()


def test_a_loop_of_unknown_length_around_names_is_an_error() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return jax.lax.while_loop(lambda c: c < 10, lambda c: c + 1 + loss(ws, x[0]), 0.0)

    with pytest.raises(FrontendError) as error:
        trace(step, weights(), batch())
    text = str(error.value)
    assert "'first', 'second' occurs inside a loop with a number of iterations" in text
    assert "test_loops.py:" in text


def test_a_list_holds_the_microbatches() -> None:
    xs = batch()

    def step(f: Callable[..., Any], stacked: bool) -> Callable[..., Any]:
        def run(ws: list[jax.Array], *parts: Any) -> Any:
            inputs = (
                {"x": jnp.stack(parts), "k": jnp.arange(3)}
                if stacked
                else [{"x": part, "k": k} for k, part in enumerate(parts)]
            )
            zero = jax.tree.map(jnp.zeros_like, ws)

            def body(i: Any, carry: Any, item: Any) -> Any:
                grads = jax.grad(f)(ws, item["x"] * item["k"])
                return jax.tree.map(jnp.add, carry, grads), item["k"] + i

            return enumerated_for(body, zero, inputs)

        return run

    text = plain_text(check_same(step(loss, False), step(plain_loss, True), weights(), *xs))
    assert calls(text) == [("iteration", 0), ("iteration", 1), ("iteration", 2)]


XS = jnp.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda carry, i, x: carry + x, r"calls its body as body\(i, carry, x\), and the parameters of <lambda> are"),
        (lambda acc, idx, batch: acc + batch, "'idx' does"),
        (lambda state, mb_index, batch: state + batch, "'mb_index' does"),
        (lambda c, x: c + x, r"which <lambda>\(c, x\) does not take: too many positional arguments"),
    ],
)
def test_a_body_that_takes_the_carry_first_is_an_error(body: Callable[..., Any], message: str) -> None:
    with pytest.raises(FrontendError, match=message) as error:
        enumerated_for(body, 0.0, XS)
    assert "test_loops.py:" in str(error.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda i, carry, x: carry + x, 6.0),
        (lambda _, count, x: count + x, 6.0),
        (lambda k, i, x: i + x, 6.0),
        (lambda mb, c, x: c + x * mb, 8.0),
        (lambda *args: args[1] + args[2], 6.0),
        (lambda a, b, x: b + x, 6.0),
        (lambda a, b, x: x * 2, 6.0),
        (lambda a, b, x: b + x * (a + 1), 14.0),
        (lambda a, b, x: (b + x, a), 6.0),
    ],
)
def test_bodies_in_the_right_order(body: Callable[..., Any], expected: float) -> None:
    found = enumerated_for(body, 0.0, XS)
    assert float(found[0] if isinstance(found, tuple) else found) == expected


@pytest.mark.parametrize("carry", [0.0, jnp.zeros(2)])
def test_a_carry_that_only_counts_is_a_warning(carry: Any) -> None:
    def body(total: Any, number: Any, x: Any) -> Any:
        return total + x

    xs = XS if jnp.ndim(carry) == 0 else jnp.ones((3, 2))
    with pytest.warns(MpmdWarning, match="returns as carry depends on i, and not on the carry that it gets"):
        enumerated_for(body, carry, xs)


@pytest.mark.parametrize("body", [lambda c, n, x: c + n * x, lambda c, n, x: c - x * n, lambda c, n, x: (c + n * x, x)])
def test_a_carry_that_only_scales_is_a_warning(body: Callable[..., Any]) -> None:
    with pytest.warns(MpmdWarning, match="is a sum with i in it, in which the carry that it gets is only a factor"):
        enumerated_for(body, 0.0, XS)


@pytest.mark.parametrize(
    ("body", "carry"),
    [
        (lambda g, n, x: jax.tree.map(jnp.add, g, {"a": x, "b": x}), {"a": 0.0, "b": 0.0}),
        (lambda g, n, x: {"a": g["a"] + x}, {"a": 0.0}),
        (lambda g, n, x: (g[0] + n, g[1] * x), (0, 1.0)),
        (lambda g, n, x: jnp.maximum(g, 2), jnp.zeros(3)),
        (lambda g, n, x: (g * 2, x), jnp.zeros((2, 2))),
        (lambda g, n, x: g.at[n].set(x), jnp.zeros(3)),
    ],
)
def test_a_body_that_works_with_the_carry_first_alone(body: Callable[..., Any], carry: Any) -> None:
    told = "returns something of the carry's type only when it is called with the carry first"
    with pytest.raises(FrontendError, match=told) as error, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may look odd before
        enumerated_for(body, carry, XS)
    assert "test_loops.py:" in str(error.value)


def test_an_error_in_a_body_tells_the_order() -> None:
    def body(grads: Any, number: Any, x: Any) -> Any:
        return jax.tree.map(jnp.add, grads, {"a": x, "c": x})

    with pytest.raises(TypeError) as error:
        enumerated_for(body, {"a": 0.0, "b": 0.0}, XS)
    note = "enumerated_for calls its body as body(i, carry, x): the index comes first, then the carry."
    assert note in error.value.__notes__


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "an empty list of microbatches"),
        ([(), ()], "the first microbatch has no array"),
        ([jnp.ones(3), jnp.ones(2)], r"microbatch 1 is float32\[2\], the first float32\[3\]. A list given to"),
        ([{"a": jnp.ones(3)}, {"a": jnp.arange(3)}], r"microbatch 1\['a'\] is int32\[3\]"),
        ([jnp.ones(3), (jnp.ones(3),)], "microbatch 1 has the structure"),
    ],
)
def test_microbatches_that_differ(inputs: Any, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        enumerated_for(lambda i, c, x: c, 0.0, inputs)
