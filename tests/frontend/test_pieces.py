"""Programs whose stacked layers are in pieces compute what they computed, and join only what must be joined."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun

import mpmd_trace as mt
from mpmd_trace.frontend import layers, pieces, piecewise
from mpmd_trace.jax_compat import tracing

LAYERS, ROWS, WIDTH = 6, 2, 3
NAMES = ("w[0:2]", "w[2:3]", "w[3:6]")


def touched(w, x):
    """Something that cuts `w`."""
    return mt.scan(lambda x, w: (x + w, None), x, w, name="w")[0]


def cut(fn, *args):
    """`fn` in pieces, and which of its arguments are."""
    with layers.assigned_parts(NAMES):
        closed = jax.make_jaxpr(fn)(*args)
    cuts = pieces.Cuts(closed)
    cuts.find()
    made = piecewise.in_pieces(closed, cuts, [f"argument{i}" for i in range(len(args))])
    return made, cuts


def apart(values, atoms, cuts):
    found = []
    for value, atom in zip(values, atoms, strict=True):
        part = cuts.get(atom)
        rows = None if part is None else pieces.rows(part, atom.aval)
        found += [value] if rows is None else jnp.split(value, rows.bounds[1:-1], rows.axis)
    return found


def check(fn, *args):
    """That `fn` in pieces gives the pieces of what it gives; returns its jaxpr, and which arguments are in pieces."""
    made, cuts = cut(fn, *args)
    want = apart(jax.tree.leaves(fn(*args)), cuts.parts.outvars, cuts)
    got = jax.jit(jaxpr_as_fun(made))(*apart(args, cuts.parts.invars, cuts))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    return made, [cuts.get(v) is not None for v in cuts.parts.invars]


def joins(closed):
    """The arrays of all layers that a program puts together."""
    found = []
    for eqn in tracing.opened(closed).eqns:
        is_join = eqn.primitive.name == "concatenate" and eqn.outvars[0].aval.shape[eqn.params["dimension"]] == LAYERS
        found += [str(eqn)] if is_join else []
        for inner in tracing.subjaxprs(eqn):
            found += joins(inner)
    return found


W = np.linspace(-1, 2, LAYERS * ROWS * WIDTH, dtype=np.float32).reshape(LAYERS, ROWS, WIDTH)
X = np.linspace(0, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


UNARY = {
    "tanh": jnp.tanh,
    "cast": lambda v: v.astype(jnp.bfloat16).astype(jnp.float32),
    "scaled": lambda v: 0.5 * v,
    "shifted": lambda v: v + 2,
    "where": lambda v: jnp.where(v > 0, v, 0.1 * v),
    "transposed": lambda v: jnp.swapaxes(jnp.swapaxes(v, 1, 2), 1, 2),
    "flat": lambda v: jnp.reshape(v.ravel() + 1, v.shape),
    "rows": lambda v: v.reshape(LAYERS, -1).reshape(v.shape),
    "clipped": lambda v: jnp.clip(v, -0.5, 0.5),
    "normed": lambda v: v / (1 + jnp.sqrt(jnp.sum(v**2))),
    "by layer": lambda v: v - jnp.mean(v, axis=(1, 2), keepdims=True),
    "largest": lambda v: v / (1 + jnp.max(jnp.abs(v))),
    "dot": lambda v: v * jnp.vdot(v, v),
    "doubled": lambda v: jnp.concatenate([v, v], axis=1)[:, :ROWS],
    "products": lambda v: v + jnp.einsum("lab,lcb->lac", v, v) @ v,
    "sorted": lambda v: jnp.sort(v, axis=2),
    "barrier": lambda v: lax.optimization_barrier((v, 2 * v))[1],
    "relu": jax.nn.relu,
    "called": lambda v: jax.jit(lambda v: v + 1)(v),
    "checkpoint": lambda v: jax.checkpoint(lambda v: jnp.sin(v) * 2)(v),
    "numbered": lambda v: v * jnp.arange(LAYERS)[:, None, None],
    "loop": lambda v: lax.fori_loop(0, 3, lambda _, v: v * 0.9, v),
    "while": lambda v: lax.while_loop(lambda c: jnp.sum(c[0]) < 1, lambda c: (c[0] + 0.1, c[1] + 1), (v, 0))[0],
    "conditional": lambda v: lax.cond(jnp.sum(v) > 0.123, lambda v: v * 2, lambda v: v - 1, v),
    "scanned": lambda v: lax.scan(lambda c, x: (c + x, x), v, jnp.arange(3.0))[0],
}
BINARY = {
    "plus": jnp.add,
    "times": jnp.multiply,
    "largest of": jnp.maximum,
    "when": lambda a, b: jnp.where(jnp.sum(a) > 0.123, a, b),
    "mean": lambda a, b: 0.9 * a + 0.1 * b,
}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(sorted({*UNARY, *BINARY})), st.integers(0, 5), st.integers(0, 5)), max_size=6),
    st.booleans(),
    st.integers(0, 2),
)
def test_random_programs_in_pieces_give_the_same_and_join_nothing(ops, gradient, axis):
    """`axis`: that of the layers, of arguments and results; what is written for layers first gets them so."""

    def leading(v):
        return jnp.moveaxis(v, axis, 0)

    def fn(w, m, x):
        values = [w, m, jnp.zeros_like(w)]
        if gradient:
            values.append(jax.grad(lambda w: jnp.sum(touched(leading(w), x) ** 2))(w))
        for name, a, b in ops:
            first, second = values[a % len(values)], values[b % len(values)]
            found = BINARY[name](first, second) if name in BINARY else UNARY[name](leading(first))
            values.append(found if name in BINARY else jnp.moveaxis(found, 0, axis))
        return touched(leading(w), x), w + m, values

    w = np.moveaxis(W, 0, axis)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, split = check(fn, w, 2 * w, X)
    assert split == [True, True, False]
    assert joins(made) == []


@pytest.mark.parametrize("name", sorted(UNARY))
def test_each_op_keeps_pieces_apart(name):
    made, split = check(lambda w, x: (touched(w, x), UNARY[name](w)), W, X)
    assert split == [True, False]
    assert joins(made) == []


def test_the_gradient_of_outputs_is_in_pieces():
    def loss(w, x):
        _, outputs = mt.scan(lambda x, w: (x + w, jnp.tanh(x * w)), x, w, name="w")
        return jnp.sum(outputs**2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, split = check(jax.grad(loss), W, X)
    assert split == [True, False]
    assert joins(made) == []
