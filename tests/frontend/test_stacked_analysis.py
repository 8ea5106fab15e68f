"""Programs whose stacked layers are in pieces compute what they computed, and join only what must be joined."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.frontend import layer_scan
from mpmd_trace.frontend.stacked import analysis, interpreter
from mpmd_trace.jax_compat import tracing
from util import max_examples

LAYERS, ROWS, WIDTH = 6, 2, 3
MESH = Mesh(np.array(jax.devices()[:1]), ("x",))
NAMES = ("w[0:2]", "w[2:3]", "w[3:6]")


def touched(w, x):
    """Something that cuts `w`."""
    return mt.scan(lambda x, w: (x + w, None), x, w, name="w")[0]


def cut(fn, *args):
    """`fn` in pieces, and which of its arguments are."""
    with layer_scan.assigned_parts(NAMES):
        closed = tracing.lowered(jax.make_jaxpr(fn)(*args))
    cuts = analysis.Cuts(closed)
    cuts.find()
    made = interpreter.in_pieces(closed, cuts, [f"argument{i}" for i in range(len(args))])
    return made, cuts


def apart(values, atoms, cuts):
    found = []
    for value, atom in zip(values, atoms, strict=True):
        part = cuts.get(atom)
        rows = None if part is None else analysis.rows(part, atom.aval)
        found += [value] if rows is None else jnp.split(value, rows.bounds[1:-1], rows.axis)
    return found


def check(fn, *args):
    """That `fn` in pieces gives the pieces of what it gives; returns its jaxpr, and which arguments are in pieces."""
    made, cuts = cut(fn, *args)
    both = jax.jit(lambda whole, pieces: (fn(*whole), jaxpr_as_fun(made)(*pieces)))  # compiled at once
    want, got = both(args, apart(args, cuts.parts.invars, cuts))
    want = apart(jax.tree.leaves(want), cuts.parts.outvars, cuts)
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


def square(a):
    """A positive definite matrix."""
    return jnp.einsum("ab,cb->ac", a, a) + jnp.eye(ROWS)


def convolved(a, kernel):
    """Rows of channels, with a kernel of (rows, outputs, inputs)."""
    return lax.conv_general_dilated(a[None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WOI", "NWC"))[0]


#: Functions of one layer, under `vmap` over the layers.
BY_LAYER = {
    "rows by number": lambda a: a[jnp.array([1, 0, 1])],
    "rows found": lambda a: a[jnp.argmax(a, 0)],
    "one row": lambda a: lax.dynamic_slice(a, (jnp.argmax(a[:, 0]), 0), (1, 2)),
    "one row set": lambda a: lax.dynamic_update_slice(a, a[:1, :1], (jnp.argmax(a[:, 0]), 0)),
    "set": lambda a: a.at[1].set(0.0),
    "set where found": lambda a: a.at[jnp.argmax(a, 0)].set(a[0]),
    "added": lambda a: a.at[jnp.array([1, 1])].add(a),
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "top_k": lambda a: lax.top_k(a, 2)[0],
    "quantile": lambda a: jnp.quantile(a, 0.3, axis=1),
    "searchsorted": lambda a: jnp.searchsorted(jnp.sort(a[0]), a[1]),
    "cholesky": lambda a: jnp.linalg.cholesky(square(a)),
    "qr": lambda a: jnp.abs(jnp.linalg.qr(a)[1]),
    "triangular_solve": lambda a: jax.scipy.linalg.solve_triangular(square(a), a, lower=True),
    "solve": lambda a: jnp.linalg.solve(square(a), a),
    "inverse": lambda a: jnp.linalg.inv(square(a)),
    "slogdet": lambda a: jnp.linalg.slogdet(square(a))[1],
    "eigh": lambda a: jnp.linalg.eigh(square(a))[0],
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "expm": lambda a: jax.scipy.linalg.expm(square(a)),
    "fft": lambda a: jnp.abs(jnp.fft.fft(a)),
    "noise": lambda a: a * jax.random.normal(jax.random.fold_in(jax.random.key(0), jnp.argmax(a)), a.shape),
    "window": lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
    "convolved": lambda a: convolved(a, jnp.ones((2, 3, 3))),
    "convolved with": lambda a: convolved(jnp.ones((4, 3)), jnp.stack([a, 2 * a])),
    "convolved by channel": lambda a: lax.conv_general_dilated(
        a[None], jnp.ones((2, 1, 3)), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=3
    )[0],
    "convolved by layer": lambda a: convolved(a, jnp.stack([a, 2 * a])),
    "gradient of convolved": lambda a: jax.grad(lambda a: jnp.sum(convolved(a, jnp.stack([a, 2 * a])) ** 3))(a),
    "scan": lambda a: lax.scan(lambda c, x: (c + x, c * x), a[0], a)[1],
    "cond": lambda a: lax.cond(a[0, 0] > 0, lambda a: a + 1, lambda a: a - 1, a),
    "while": lambda a: lax.while_loop(lambda c: jnp.sum(c[0]) < 3, lambda c: (c[0] + 0.5, c[1] + 1), (a, 0)),
}
UNARY |= {f"vmap {name}": jax.vmap(f) for name, f in BY_LAYER.items()}
UNARY |= {
    "stop_gradient": lax.stop_gradient,
    "straight through": lambda v: v + lax.stop_gradient(jnp.round(v) - v),
    "constrained": lambda v: lax.with_sharding_constraint(v, NamedSharding(MESH, PartitionSpec(None, "x"))),
    "columns by number": lambda v: v[:, :, jnp.array([1, 0])],
    "columns at": lambda v: lax.dynamic_slice(v, (0, 0, jnp.argmax(X)), (LAYERS, ROWS, 1)),
    "columns set": lambda v: jnp.asarray(v).at[:, :, jnp.array([0])].set(1.0),
    "map": lambda v: lax.map(lambda a: a / (1 + jnp.linalg.norm(a)), v),
    "gradient of map": lambda v: jax.grad(lambda s, v: jnp.sum(lax.map(lambda a: s * jnp.sin(s * a), v) ** 2), (0, 1))(
        0.5, v
    ),
    "carried": lambda v: lax.scan(lambda c, a: (c + a[0], c * a), X[0], v),
    "carried back": lambda v: lax.scan(lambda c, a: (c * 0.5 + a, c), jnp.zeros_like(X), v, reverse=True, unroll=4)[0],
    "stacked": lambda v: jnp.stack([v, 2 * v], 1)[:, 1],
    "layers apart": lambda v: jnp.stack([i * a for i, a in enumerate(jnp.unstack(v))]),
    "scanned rows": lambda v: lax.scan(lambda c, x: (c + x, c * x), v[:, 0], jnp.swapaxes(v, 0, 1), reverse=True),
}
BINARY = {
    "plus": jnp.add,
    "times": jnp.multiply,
    "largest of": jnp.maximum,
    "when": lambda a, b: jnp.where(jnp.sum(a) > 0.123, a, b),
    "mean": lambda a, b: 0.9 * a + 0.1 * b,
}


def names_of_ops():
    """Of ops that give arrays of the shape of what they take."""
    shapes = {name: getattr(jax.eval_shape(f, W), "shape", ()) for name, f in UNARY.items()}
    return st.sampled_from(sorted({*(name for name, shape in shapes.items() if shape == W.shape), *BINARY}))


@max_examples(6)
@given(
    st.lists(st.tuples(st.deferred(names_of_ops), st.integers(0, 5), st.integers(0, 5)), max_size=6),
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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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


def nested(depth, v):
    """Conditionals in conditionals, and functions in functions."""
    if depth == 0:
        return jnp.tanh(v)
    return lax.cond(
        jnp.sum(v) > depth / 8, lambda v: jax.jit(lambda v: nested(depth - 1, v) + 1)(v), lambda v: v * 2, v
    )


def work(depth, monkeypatch):
    """How many equations are looked at, and how many the program in pieces has."""
    looked = []
    look = analysis.Cuts._equation
    monkeypatch.setattr(analysis.Cuts, "_equation", lambda self, eqn: (looked.append(eqn), look(self, eqn)))
    made, split = check(lambda w, x: (touched(w, x), nested(depth, w)), W, X)
    assert split == [True, False]
    assert joins(made) == []
    return np.array([len(looked), str(made).count(" = ")])


def test_nested_control_flow_takes_work_in_proportion(monkeypatch):
    small, large = work(4, monkeypatch), work(8, monkeypatch)
    assert (large < 3 * small).all()


def test_a_loop_over_layers_whose_iterations_are_not_those_of_each_layer_joins_them():
    """The loop ends by a value of all layers, and with a test for each row."""

    def fn(w, x):
        return touched(w, x), jax.vmap(lambda a: lax.while_loop(lambda a: jnp.sum(a) < 9, lambda a: a + 1, a), 1, 1)(w)

    with pytest.warns(mt.MpmdWarning, match="'while' needs all layers of argument0 in one place"):
        _, split = check(fn, W, X)
    assert split == [True, False]
