"""`mpmd_trace.value_and_grad` against `jax.value_and_grad` of the whole batch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpmd_trace as mt
from util import max_examples, normal

KEY = jax.random.key(0)
WEIGHTS = {"a": normal(0, 3, 4), "b": jnp.zeros(4)}
X, Y = normal(1, 12, 3), normal(2, 12, 4)


def errors(weights, x, y):
    return jnp.sum((jnp.tanh(x @ weights["a"] + weights["b"]) - y) ** 2, axis=-1)


def mean(weights, x, y):
    return jnp.mean(errors(weights, x, y))


def same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), got, want)
    jax.tree.map(lambda a, b: (a.dtype, a.shape) == (b.dtype, b.shape) or pytest.fail(f"{a} {b}"), got, want)


@pytest.mark.parametrize("microbatches", [1, 3, 12])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_the_whole_batch_gives_the_same(microbatches, reduce):
    def loss(*args):
        return getattr(jnp, reduce)(errors(*args))

    got = mt.value_and_grad(loss, microbatches=microbatches, reduce=reduce)(WEIGHTS, X, Y)
    same(got, jax.value_and_grad(loss)(WEIGHTS, X, Y))


def test_integers_have_gradients_without_values():
    def loss(parameters, x, y):
        return parameters["times"] * mean(parameters, x, y)

    parameters = {**WEIGHTS, "times": jnp.int32(3), "mask": np.array([True, False])}
    _, got = mt.value_and_grad(loss, microbatches=3, allow_int=True)(parameters, X, Y)
    want = jax.grad(loss, allow_int=True)(parameters, X, Y)
    same([got.pop(name) for name in "ab"], [want.pop(name) for name in "ab"])
    assert jax.tree.map(lambda g: (g.dtype, g.shape), got) == jax.tree.map(lambda g: (g.dtype, g.shape), want)
    with pytest.raises(TypeError, match="set allow_int to True"):
        mt.value_and_grad(loss, microbatches=3)(parameters, X, Y)


def test_weights_count_in_the_whole_batch_and_not_in_each_part():
    tokens = jnp.asarray([1, 0, 0, 2, 5, 1, 1, 1, 0, 0, 0, 0], jnp.int32)

    def sums(weights, x, y, tokens):
        return jnp.sum(errors(weights, x, y) * tokens), jnp.sum(tokens)

    def whole(weights):
        total, count = sums(weights, X, Y, tokens)
        return total / count

    got = mt.value_and_grad(sums, microbatches=4, reduce="weighted")(WEIGHTS, X, Y, tokens)
    same(got, jax.value_and_grad(whole)(WEIGHTS))


def test_auxiliary_results_each_become_what_is_asked_for():
    def loss(weights, x, y):
        e = errors(weights, x, y)
        return jnp.mean(e), {"worst": jnp.max(e), "rows": e, "count": e.size, "mean": jnp.mean(e)}

    how = {"worst": "stack", "rows": "concatenate", "count": "sum", "mean": "mean"}
    (value, aux), _ = mt.value_and_grad(loss, microbatches=3, has_aux=True, aux=how)(WEIGHTS, X, Y)
    e = errors(WEIGHTS, X, Y)
    same(aux["worst"], e.reshape(3, 4).max(1))
    same(aux["rows"], e)
    assert int(aux["count"]) == 12
    same((value, aux["mean"]), (jnp.mean(e), jnp.mean(e)))


def test_rows_that_nobody_said_what_to_do_with_are_a_warning():
    def loss(weights, x, y):
        e = errors(weights, x, y)
        return jnp.mean(e), (e, jnp.max(e), weights)

    with pytest.warns(mt.MpmdWarning, match=r"a row for each of the 6 rows of a microbatch.*aux=.concatenate. gives"):
        mt.value_and_grad(loss, microbatches=2, has_aux=True)(WEIGHTS, X, Y)
    mt.value_and_grad(loss, microbatches=2, has_aux=True, aux="mean")(WEIGHTS, X, Y)
    mt.value_and_grad(lambda *a: (loss(*a)[0], loss(*a)[1][1:]), microbatches=2, has_aux=True)(WEIGHTS, X, Y)


def test_a_state_goes_through_the_microbatches_and_each_has_a_key():
    def loss(weights, state, x, key, y):
        mask = jax.random.bernoulli(key, 0.5, (3,))
        return mean(weights, x * mask, y), {"n": state["n"] + 1, "last": jnp.mean(x) + 0.5 * state["last"]}

    state = {"n": jnp.int32(7), "last": jnp.float32(1.0)}
    step = mt.value_and_grad(loss, microbatches=4, state_argnum=1, key_argnum=3)
    (value, after), gradients = step(WEIGHTS, state, X, KEY, Y)
    wanted, values, sums = state, [], jax.tree.map(jnp.zeros_like, WEIGHTS)
    for i in range(4):
        rows = slice(3 * i, 3 * i + 3)
        key = jax.random.fold_in(KEY, i)
        (one, wanted), g = jax.value_and_grad(loss, has_aux=True)(WEIGHTS, wanted, X[rows], key, Y[rows])
        values.append(one)
        sums = jax.tree.map(jnp.add, sums, g)
    same((value, after, gradients), (jnp.mean(jnp.stack(values)), wanted, jax.tree.map(lambda g: g / 4, sums)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Averages:
    mean: jax.Array


def test_states_of_a_class_that_compares_by_identity():
    def loss(weights, state, x, y):
        return mean(weights, x, y), Averages(0.5 * state.mean + jnp.mean(x, 0))

    step = mt.value_and_grad(loss, microbatches=2, state_argnum=1)
    (_, after), _ = step(WEIGHTS, Averages(jnp.ones(3)), X, Y)
    same(after.mean, 0.25 + 0.5 * jnp.mean(X[:6], 0) + jnp.mean(X[6:], 0))
    step = mt.value_and_grad(lambda w, s, x: (0.0 * w["b"][0], Averages(x)), microbatches=2, state_argnum=1)
    with pytest.raises(mt.MpmdError, match=r"state\.mean is float32\[6, 3\], not float32\[3\]"):
        step(WEIGHTS, Averages(jnp.ones(3)), X)


def test_state_and_auxiliary_results_together_and_several_arguments():
    def loss(a, state, x, b, y):
        return mean({"a": a, "b": b}, x, y), (state + 1, jnp.sum(x))

    step = mt.value_and_grad(loss, (0, -2), microbatches=2, has_aux=True, state_argnum=1)
    (value, (state, aux)), gradients = step(WEIGHTS["a"], jnp.int32(0), X, WEIGHTS["b"], Y)
    want, by = jax.value_and_grad(lambda a, b: mean({"a": a, "b": b}, X, Y), (0, 1))(WEIGHTS["a"], WEIGHTS["b"])
    same((value, gradients), (want, by))
    assert int(state) == 2
    same(aux, jnp.sum(X) / 2)


def test_arguments_that_are_no_batch():
    def loss(weights, x, y, scale, *, shift):
        return scale * mean(weights, x, y) + shift

    step = mt.value_and_grad(loss, microbatches=3, batch_argnums=(1, 2))
    same(step(WEIGHTS, X, Y, 2.0, shift=jnp.float32(1.0)), jax.value_and_grad(loss)(WEIGHTS, X, Y, 2.0, shift=1.0))


def test_gradients_of_small_types_are_summed_in_a_larger_one():
    weights = jnp.ones(4, jnp.bfloat16)

    def loss(w, x):
        return jnp.sum(w * x.astype(jnp.bfloat16))

    x = jnp.ones((512, 4), jnp.float32)
    _, small = mt.value_and_grad(loss, microbatches=512, reduce="sum")(weights, x)
    _, wide = mt.value_and_grad(loss, microbatches=512, reduce="sum", sum_dtype=jnp.float32)(weights, x)
    assert small.dtype == jnp.bfloat16 and float(small[0]) == 256.0  # 256 + 1 is 256
    assert wide.dtype == jnp.float32 and float(wide[0]) == 512.0


@max_examples(6)
@given(
    st.sampled_from([1, 2, 3, 4, 6]), st.lists(st.integers(0, 3), min_size=12, max_size=12).filter(any), st.booleans()
)
def test_any_weights(microbatches, tokens, jitted):
    tokens = jnp.asarray(tokens, jnp.float32)

    def sums(weights, x, y, n):
        return jnp.sum(errors(weights, x, y) * n), jnp.sum(n)

    step = mt.value_and_grad(sums, microbatches=microbatches, reduce="weighted")
    got = (jax.jit(step) if jitted else step)(WEIGHTS, X, Y, tokens)
    same(got, jax.value_and_grad(lambda w: sums(w, X, Y, tokens)[0] / jnp.sum(tokens))(WEIGHTS))


def test_arguments_without_arrays_are_the_same_for_all_microbatches():
    def loss(weights, scale, x, activation):
        return scale * jnp.mean(activation(x @ weights["a"] + weights["b"]))

    args = (WEIGHTS, 2.0, X, jnp.tanh)
    same(mt.value_and_grad(loss, microbatches=3)(*args), jax.value_and_grad(loss)(*args))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mt.value_and_grad(mean, microbatches=0), "microbatches is a Python int from 1 on, not 0"),
        (lambda: mt.value_and_grad(mean, microbatches=2, reduce="max"), "reduce is one of 'mean', 'sum', 'weighted'"),
        (lambda: mt.value_and_grad(mean, microbatches=2, aux="sum"), "without has_aux=True there are none"),
        (
            lambda: mt.value_and_grad(mean, microbatches=2, has_aux=True, aux="weighted"),
            "aux is made of 'mean', 'sum', 'stack', 'concatenate', 'last'; got 'weighted'",
        ),
        (
            lambda: mt.value_and_grad(mean, microbatches=5)(WEIGHTS, X, Y),
            r"cannot be cut into 5 microbatches of equally many rows: x is \[12, 3\]; y is \[12, 4\]",
        ),
        (
            lambda: mt.value_and_grad(lambda w, x: 0.0, microbatches=2)(WEIGHTS, {"x": X, "k": 3}),
            r"x\['k'\] is 3, which is not an array",
        ),
        (
            lambda: mt.value_and_grad(lambda w, x, key: 0.0, microbatches=2)(WEIGHTS, X, jax.random.key(0)),
            r"key is a PRNG key.* key_argnum=2 gives each microbatch a key of its own",
        ),
        (
            lambda: mt.value_and_grad(lambda w, k: 0.0, microbatches=2)(WEIGHTS, 3),
            "there is no batch to cut into 2 microbatches: .* no array in them",
        ),
        (lambda: mt.value_and_grad(mean, microbatches=2, state_argnum=0)(WEIGHTS, X, Y), "argument 0 is named twice"),
        (lambda: mt.value_and_grad(mean, 3, microbatches=2)(WEIGHTS, X, Y), "argnums names argument 3; there are 3"),
        (
            lambda: mt.value_and_grad(mean, microbatches=2, reduce="weighted")(WEIGHTS, X, Y),
            r"mean returns a total and a weight for these options of value_and_grad, as \(total, weight\)",
        ),
        (
            lambda: mt.value_and_grad(lambda w, s, x: (0.0 * w["b"][0], x), microbatches=2, state_argnum=1)(
                WEIGHTS, jnp.zeros(3), X
            ),
            r"is not like the one it gets.*: state is float32\[.*\], not float32\[3\]",
        ),
    ],
)
def test_mistakes_are_told(call, text):
    with pytest.raises(mt.MpmdError, match=text):
        call()


@pytest.mark.parametrize("rows", [1, 5])
def test_a_batch_that_is_filled_up_has_the_gradient_of_its_rows(rows):
    x = jnp.arange(3.0 * rows).reshape(rows, 3) / 10
    batch = {"x": x, "y": jnp.sin(x[:, 0])}
    w = jnp.array([0.5, -1.0, 2.0])

    def losses(w, batch):
        return (batch["x"] @ w - batch["y"]) ** 2

    def weighted(w, batch, weights):
        return jnp.sum(weights * losses(w, batch)), jnp.sum(weights)

    padded, weights = mt.pad_rows(batch, 4)
    assert padded["x"].shape == (-(-rows // 4) * 4, 3) and float(weights.sum()) == rows
    found = mt.value_and_grad(weighted, microbatches=4, reduce="weighted")(w, padded, weights)
    wanted = jax.value_and_grad(lambda w: jnp.mean(losses(w, batch)))(w)
    for a, b in zip(found, wanted, strict=True):
        assert jnp.allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    ("batch", "multiple", "text"),
    [
        ((jnp.ones((2, 3)), jnp.ones(3)), 2, r"the same number of rows, at least one; got \[2, 3\], \[3\]"),
        (jnp.ones(()), 2, "the same number of rows"),
        (jnp.ones((0, 3)), 2, "at least one"),
        ((), 2, "got none"),
        (jnp.ones(3), 0, "a Python int from 1 on, not of 0"),
    ],
)
def test_batches_that_cannot_be_filled_up_are_errors(batch, multiple, text):
    with pytest.raises(mt.MpmdError, match=text):
        mt.pad_rows(batch, multiple)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("new", [jax.random.key, jax.random.PRNGKey])
def test_a_key_that_all_microbatches_share_is_a_warning(
    new: Any, generator: str, request: pytest.FixtureRequest
) -> None:
    def loss(weights, x, key):
        return jnp.mean((x + jax.random.normal(key)) @ weights["a"])

    request.addfinalizer(functools.partial(jax.config.update, "jax_default_prng_impl", "threefry2x32"))
    jax.config.update("jax_default_prng_impl", generator)
    key = new(0)
    with pytest.warns(mt.MpmdWarning, match=r"numbers from key(, if this uint32.* key)?\. key_argnum names"):
        mt.value_and_grad(loss, microbatches=2)(WEIGHTS, X, key=key)
    with pytest.warns(mt.MpmdWarning, match="draw the same random numbers from key"):
        mt.value_and_grad(loss, microbatches=2, batch_argnums=1)(WEIGHTS, X, key)
    mt.value_and_grad(loss, microbatches=2, key_argnum=2)(WEIGHTS, X, key)
    with pytest.raises(mt.MpmdError, match=r"key \w.* a PRNG key, which is not cut into microbatches\. key_argnum=2"):
        mt.value_and_grad(loss, microbatches=2)(WEIGHTS, X, key)
    keys = jax.random.split(key, len(X))  # of each row: with old keys a uint32[rows, 2]
    mt.value_and_grad(lambda w, x, keys: loss(w, x, keys[0]), microbatches=2)(WEIGHTS, X, keys)


def test_numbers_of_the_type_of_an_old_key_may_be_rows() -> None:
    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights["a"]) * labels[:, None])

    x, labels = X[:2], jnp.arange(2, dtype=jnp.uint32)
    value, _ = mt.value_and_grad(loss, microbatches=2)(WEIGHTS, x, labels)
    assert jnp.allclose(value, loss(WEIGHTS, x, labels), rtol=1e-5)
