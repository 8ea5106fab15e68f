"""Names keep their meaning, and are found, under every transformation of JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from traced_programs import batch, calls, check_same, first, functions, loss, origins, plain_loss, plain_text, weights

from mpmd_trace.frontend.naming import call, named_computation, named_tensor

Loss = Callable[[list[jax.Array], jax.Array], jax.Array]


def test_forward_only() -> None:
    traced = check_same(loss, plain_loss, weights(), batch()[0])
    assert origins(plain_text(traced)) == ["first", "second"]
    assert list(traced.names) == ["first", "second"]


def test_without_any_jit() -> None:
    gradients = jax.grad(loss)(weights(), batch()[0])
    expected = jax.grad(plain_loss)(weights(), batch()[0])
    for a, b in zip(gradients, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-5)


def test_names_are_located_where_they_are_used() -> None:
    traced = check_same(loss, plain_loss, weights(), batch()[0])
    file, line = traced.names["first"][0].rsplit(":", 1)
    assert file.endswith("programs.py")
    assert "second(weights[1], first(" in Path(file).read_text().splitlines()[int(line) - 1]
    assert f'programs.py":{line}:' in traced.mlir_text()
    assert "mpmd_trace/frontend" not in traced.mlir_text()


def test_grad_gives_backward_computations_a_transpose_count() -> None:
    traced = check_same(jax.grad(loss), jax.grad(plain_loss), weights(), batch()[0])
    found = origins(plain_text(traced))
    assert found[0] == "first"
    assert found[-2:] == ["second(1)", "first(1)"]


def _accumulate(step: Callable[..., Any], ws: list[jax.Array], x: jax.Array) -> Any:
    total = None
    for i in range(x.shape[0]):
        grads = step(i)(ws, x[i])
        total = grads if total is None else jax.tree.map(jnp.add, total, grads)
    return total


def test_grad_inside_calls_shares_one_function() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return _accumulate(lambda i: call(jax.value_and_grad(loss), i), ws, x)

    def plain(ws: list[jax.Array], x: jax.Array) -> Any:
        return _accumulate(lambda i: jax.value_and_grad(plain_loss), ws, x)

    text = plain_text(check_same(step, plain, weights(), batch()))
    assert calls(text) == [("loss", 0), ("loss", 1), ("loss", 2)]
    assert origins(text) == ["first", "second", "second(1)", "first(1)"]


def test_grad_outside_calls_gives_forward_and_backward_functions() -> None:
    def total(one: Callable[[int], Loss]) -> Callable[..., Any]:
        return lambda ws, x: sum(one(i)(ws, x[i]) for i in range(3))

    step = jax.value_and_grad(total(lambda i: call(loss, call_counter=i)))
    plain = jax.value_and_grad(total(lambda i: plain_loss))
    text = plain_text(check_same(step, plain, weights(), batch()))
    forward, backward = calls(text)[:3], calls(text)[3:]
    assert forward == [("loss", 0), ("loss", 1), ("loss", 2)]
    assert backward == [("loss_transposed", 2), ("loss_transposed", 1), ("loss_transposed", 0)]
    assert functions(text) == ["loss", "loss_transposed"]
    assert origins(text) == ["first", "second", "second(1)", "first(1)"]


def test_call_without_counter() -> None:
    text = plain_text(check_same(call(loss), plain_loss, weights(), batch()[0]))
    assert calls(text) == [("loss", None)]


def test_nested_call_becomes_part_of_the_outer_one() -> None:
    def outer(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        return call(loss, 7)(ws, x) + 1

    text = plain_text(check_same(call(outer, 2), lambda w, x: plain_loss(w, x) + 1, weights(), batch()[0]))
    assert calls(text) == [("outer", 2)]


def test_vmap_keeps_one_computation() -> None:
    def step(f: Loss) -> Callable[..., Any]:
        return jax.grad(lambda ws, x: jax.vmap(f, (None, 0))(ws, x).sum())

    text = plain_text(check_same(step(loss), step(plain_loss), weights(), batch()))
    assert origins(text) == ["first", "second", "second(1)", "first(1)"]


def test_vmap_of_grad_of_call() -> None:
    def step(f: Loss) -> Callable[..., Any]:
        return jax.vmap(jax.grad(f), (None, 0))

    check_same(step(call(loss, 0)), step(plain_loss), weights(), batch())


@pytest.mark.parametrize("around", [True, False])
def test_checkpoint_recomputes_behind_a_barrier(around: bool) -> None:
    def step(f: Loss) -> Callable[..., Any]:
        return jax.value_and_grad(jax.checkpoint(f) if around else f)

    def inside(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        block = named_computation(jax.checkpoint(lambda w, x: jnp.tanh(x @ w)), name="block")
        return jnp.mean((block(ws[0], x) @ ws[1]) ** 2)

    text = plain_text(check_same(step(loss if around else inside), step(plain_loss), weights(), batch()[0]))
    assert "stablehlo.optimization_barrier" in text
    name = "first" if around else "block"
    found = [o for o in origins(text) if o.startswith(name)]
    assert found[0] == name and set(found[1:]) == {f"{name}(1)"}


def test_jvp_jacobian_and_hessian() -> None:
    x = batch()[0]

    def jvp(f: Loss) -> Callable[..., Any]:
        return lambda ws: jax.jvp(lambda w: f(w, x), (ws,), (ws,))

    for transform in (jvp, lambda f: jax.jacfwd(lambda w: f(w, x)), _hessian):
        check_same(transform(loss), transform(plain_loss), weights())


def _hessian(f: Loss) -> Callable[..., Any]:
    return jax.hessian(lambda w: f(w, batch()[0]))


def test_second_order_reverse_counts_both_transpositions() -> None:
    def step(f: Loss) -> Callable[..., Any]:
        def slope(ws: list[jax.Array], x: jax.Array) -> jax.Array:
            return sum(jnp.sum(g**2) for g in jax.grad(f)(ws, x))

        return jax.grad(slope)

    text = plain_text(check_same(step(loss), step(plain_loss), weights(), batch()[0]))
    assert "first(2)" in origins(text)


def test_custom_vjp_around_a_name() -> None:
    def make(layer: Callable[..., Any]) -> Callable[..., Any]:
        @jax.custom_vjp
        def clipped(w: jax.Array, x: jax.Array) -> jax.Array:
            return layer(w, x)

        def forward(w: jax.Array, x: jax.Array) -> Any:
            y, pull = jax.vjp(layer, w, x)
            return y, pull

        def backward(pull: Any, ct: jax.Array) -> Any:
            return pull(jnp.clip(ct, -0.01, 0.01))

        clipped.defvjp(forward, backward)
        return jax.grad(lambda w, x: jnp.sum(clipped(w, x)))

    plain = make(lambda w, x: jnp.tanh(x @ w))
    text = plain_text(check_same(make(first), plain, weights()[0], batch()[0]))
    assert origins(text) == ["first", "first(1)"]


def test_custom_vjp_and_jvp_without_differentiation() -> None:
    @jax.custom_jvp
    def inner(w: jax.Array, x: jax.Array) -> jax.Array:
        return first(w, x)

    inner.defjvp(lambda p, t: (inner(*p), inner(*t)))
    text = plain_text(check_same(inner, lambda w, x: jnp.tanh(x @ w), weights()[0], batch()[0]))
    assert origins(text) == ["first"]


def test_scan_inside_a_computation_stays_a_loop() -> None:
    def stacked(ws: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]

    def step(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda ws, x: jnp.sum(f(ws, x)))

    ws = jnp.stack(weights())
    text = plain_text(check_same(step(named_computation(stacked, name="stack")), step(stacked), ws, batch()[0]))
    assert origins(text) == ["stack", "stack(1)"]
    assert "stablehlo.while" in text


def test_scan_around_names_becomes_calls() -> None:
    def step(f: Loss) -> Callable[..., Any]:
        def total(ws: list[jax.Array], x: jax.Array) -> Any:
            return jax.lax.scan(lambda c, xi: (c + f(ws, xi), c), 0.0, x)

        return jax.value_and_grad(total, has_aux=True)

    text = plain_text(check_same(step(loss), step(plain_loss), weights(), batch()))
    assert [counter for _, counter in calls(text)] == [0, 1, 2, 2, 1, 0]
    assert functions(text) == ["iteration", "iteration_transposed"]
    assert "stablehlo.while" not in text


def test_names_in_a_scan_in_a_computation_are_part_of_it() -> None:
    def stacked(layer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ws, x: jax.lax.scan(lambda h, w: (layer(w, h), None), x, ws)[0]

    outer = named_computation(stacked(first), name="outer")
    ws = jnp.stack(weights())
    plain = stacked(lambda w, x: jnp.tanh(x @ w))
    traced = check_same(outer, plain, ws, batch()[0])
    assert origins(plain_text(traced)) == ["outer"]
    assert ("outer", "first") in traced.rewritten.nested


def test_named_tensor_keeps_its_name_when_differentiated() -> None:
    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        return jax.grad(lambda w: jnp.sum(named_tensor(x @ w, "hidden") ** 2))(ws[0])

    def plain(ws: list[jax.Array], x: jax.Array) -> Any:
        return jax.grad(lambda w: jnp.sum((x @ w) ** 2))(ws[0])

    text = plain_text(check_same(step, plain, weights(), batch()[0]))
    assert text.count("mpmd.named_tensor %") == 2
    assert 'name="hidden"' in text


def test_jit_around_and_inside_is_transparent() -> None:
    step = jax.jit(jax.grad(jax.jit(loss)))
    text = plain_text(check_same(step, jax.grad(plain_loss), weights(), batch()[0]))
    assert origins(text)[-1] == "first(1)"
    assert "call @" not in text
