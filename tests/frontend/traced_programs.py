"""Small programs for the tests of the frontend, and ways to look at what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mpmd_trace.frontend import Traced, trace
from mpmd_trace.frontend.eval_jaxpr import interpret
from mpmd_trace.frontend.naming import named_computation
from mpmd_trace.jax_compat import lowering, tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation
from util import normal

WIDTH = 4


def _hidden(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def _error(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((x @ w) ** 2)


first = named_computation(_hidden, name="first")
second = named_computation(_error, name="second")


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Scalar loss of a two-layer model on `x` of shape (batch, 4)."""
    return second(weights[1], first(weights[0], x))


def plain_loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """The same without names."""
    return _error(weights[1], _hidden(weights[0], x))


def weights() -> list[jax.Array]:
    """Two weight matrices, (4, 4) each."""
    return [normal(i, WIDTH, WIDTH) * 0.5 for i in range(2)]


def batch(microbatches: int = 3) -> jax.Array:
    """Data of shape (microbatches, 2, 4)."""
    return normal(2, microbatches, 2, WIDTH)


def evaluate(traced: Traced, *args: Any) -> Any:
    """The result of the traced program."""
    program = traced.rewrite(False).program.jaxpr if traced.rewritten.is_short else traced.rewritten.program.jaxpr
    leaves = jax.jit(lambda *values: _run_plainly(program, values))(*traced.constants, *jax.tree.leaves(args))
    return jax.tree.unflatten(traced.out_tree, leaves)


def _run_plainly(program: Closed, args: Sequence[Any]) -> list[Any]:
    """Return the results of a rewritten program, as if it had no `mpmd` ops."""

    def rule(eqn: Equation, values: list[Any]) -> list[Any]:
        if eqn.primitive in (lowering.named_computation_p, lowering.call_p):
            return _run_plainly(eqn.params["body"], values)
        if eqn.primitive in (lowering.named_tensor_p, lowering.broadcast_p, lowering.reduce_p, lowering.sharding_p):
            return values[:1]
        if eqn.primitive is lowering.slice_p:
            return [lax.index_in_dim(values[0], eqn.params["index"], keepdims=False)]
        return tracing.rebind(eqn, values)

    return interpret(program, args, rule)


def check_same(fn: Callable[..., Any], plain: Callable[..., Any], *args: Any) -> Traced:
    """Traced and jitted `fn` compute what `plain` computes; the traced program."""
    traced = trace(fn, *args)
    # One compilation for both: most of the time of these tests is XLA's.
    expected, jitted = jax.jit(lambda *a: (plain(*a), fn(*a)))(*args)
    for result in (evaluate(traced, *args), jitted):
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), result, expected)
    return traced


def origins(text: str) -> list[str]:
    """The origins of the named computations in `text`, in order: `first`, `first(1)` ..."""
    found = re.findall(r'mpmd\.named_computation<"([^"]*)"(\(\d+\))?>', text)
    return [name + count for name, count in found]


def calls(text: str) -> list[tuple[str, int | None]]:
    """Callee and counter of each call in `text`, in order."""
    found = re.findall(r"mpmd\.call @([\w.]+)\([^)]*\)(?: \{call_counter = (\d+) : ui32\})?", text)
    return [(callee, int(counter) if counter else None) for callee, counter in found]


def functions(text: str) -> list[str]:
    """The names of the private functions in `text`."""
    return re.findall(r"func\.func private @([\w.]+)\(", text)


def plain_text(traced: Traced) -> str:
    """The module without source locations, after jaxlib's parser and verifier accepted it."""
    from jaxlib.mlir import ir

    from mpmd_trace.jax_compat.mlir import new_context

    text = traced.mlir_text(debug_info=False)
    with new_context():
        for source in (text, traced.mlir_text(debug_info=True)):
            assert ir.Module.parse(source).operation.verify()
    return text
