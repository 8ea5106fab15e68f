"""Losses that change with the number of microbatches are warned of, and no others."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mpmd_trace as mt
from mpmd_trace.frontend.nonlinear_losses import nonlinear_losses
from mpmd_trace.frontend.trace import trace
from util import normal

KEY = jax.random.key(0)
W, X = normal(0, 8, 8), normal(1, 16, 8)
Y = jnp.arange(16) % 8


def cross_entropies(w, x, y):
    logits = jax.nn.log_softmax(jnp.tanh(x @ w) @ w)
    return -jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]


def one(w, x, y):
    return cross_entropies(w, x[None], y[None])[0]


def attention(w, x, _):
    h = x.reshape(-1, 4, 2) @ w[:2, :2]
    scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", h, h))
    return jnp.mean(jnp.einsum("bqk,bkd->bqd", scores, h).reshape(-1, 2) ** 2)


def normalized_per_row(w, x, _):
    h = x @ w
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    return jnp.mean(h**4) + 1e-3 * jnp.sum(w**2)


def convolution(w, x, _):
    return lax.conv_general_dilated(x.reshape(-1, 1, 2, 4), w[:6, :2].reshape(3, 1, 2, 2), (1, 1), "SAME")


def through_layers(of_layer):
    """A loss with a part per layer of a scan, each recomputed."""

    def loss(w, x, _):
        def body(carry, _):
            h = jnp.tanh(carry[0] @ w)
            return (h, carry[1] + of_layer(jax.nn.softmax(h))), None

        (h, total), _ = lax.scan(jax.checkpoint(body), (x, 0.0), None, 2)
        return jnp.mean(h**2) + total

    return loss


def expert_shares(w, x):
    scores = jax.nn.softmax(x @ w)
    return jnp.mean(scores, 0) * jnp.mean(jax.nn.one_hot(jnp.argmax(scores, -1), 8), 0)


def quantized(axis):
    def loss(w, x, _):
        scale = jnp.max(jnp.abs(x), axis, keepdims=True) / 127
        return jnp.mean((jnp.round(x / scale).astype(jnp.int8).astype(x.dtype) * scale @ w) ** 2)

    return loss


def contrastive(w, x, _):
    a = x @ w
    logits = a @ jnp.roll(a, 1, -1).T
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits))


LINEAR = {
    "cross entropy": lambda w, x, y: jnp.mean(cross_entropies(w, x, y)),
    "by vmap": lambda w, x, y: jnp.mean(jax.vmap(one, (None, 0, 0))(w, x, y)),
    "by map": lambda w, x, y: jnp.mean(lax.map(lambda row: one(w, *row), (x, y))),
    "mean of squares": lambda w, x, _: jnp.mean((x @ w) ** 2),
    "attention": attention,
    "normalized per row": normalized_per_row,
    "convolution": lambda w, x, _: jnp.mean(jax.nn.relu(convolution(w, x, _))),
    "layers": through_layers(jnp.mean),
    "scales per row": quantized(-1),
    "a balance that is switched off": lambda w, x, _: jnp.mean(x @ w) + 0.0 * jnp.sum(expert_shares(w, x)),
    "a guard": lambda w, x, _: jnp.where(jnp.isfinite(jnp.mean(x @ w)), jnp.mean(x @ w), 0.0),
    "a branch": lambda w, x, _: lax.cond(w[0, 0] > 0, lambda: jnp.mean(x @ w), lambda: jnp.mean(x**2 @ w)),
    "medians of rows": lambda w, x, _: jnp.mean(jnp.median(x @ w, -1) * lax.top_k(x, 2)[0][:, 1]),
    "about the largest of rows": lambda w, x, _: jnp.mean(lax.approx_max_k(x @ w, 2)[0]),
    "all rows, the largest first": lambda w, x, y: jnp.mean(lax.top_k(cross_entropies(w, x, y), x.shape[0])[0]),
    "sorted within rows": lambda w, x, _: jnp.mean((jnp.sort(x @ w, -1) - jnp.roll(x, 1, -1)) ** 2),
    "rows in another order": lambda w, x, _: jnp.mean(
        (jnp.roll(x, 1, 0) @ w) ** 2 * jnp.roll(x, 1, 0) + jnp.flip(jnp.flip(x, 0), 0) * x + jnp.roll(x, -1, 0)
    ),
    "sorted together": lambda w, x, _: jnp.mean(jnp.prod(jnp.stack(lax.sort((x @ w, x), dimension=0)), 0)),
    "chosen and rejected": lambda w, x, _: jnp.mean(
        jnp.square(jnp.roll(h := jnp.concatenate([x, x @ w]), len(x), 0) - h)
    ),
    "of the same rows": lambda w, x, _: jnp.mean(jnp.diagonal(x @ w @ x.T)),
}
NONLINEAR = {
    "masked mean": (lambda w, x, y: jnp.mean(cross_entropies(w, x, y), where=y > 2), "weighted"),
    "masked mean of at least one": (
        lambda w, x, y: jnp.sum(cross_entropies(w, x, y) * (y > 2)) / jnp.maximum(jnp.sum(y > 2), 1),
        "weighted",
    ),
    "balance of experts": (lambda w, x, _: jnp.mean(x @ w) + jnp.sum(expert_shares(w, x)), "nonlinear"),
    "counts of experts": (
        lambda w, x, y: jnp.mean(x @ w) + jnp.sum(jnp.zeros(8).at[y // 3].add(1.0) ** 2),
        "nonlinear",
    ),
    "layers": (through_layers(lambda scores: jnp.sum(jnp.mean(scores, 0) ** 2)), "nonlinear"),
    "contrastive": (contrastive, "contrastive_value_and_grad"),
    "distances": (
        lambda w, x, _: jnp.mean(jnp.max(jnp.sum((x[:, None] @ w - x[None] @ w) ** 2, -1), 1)),
        "contrastive_value_and_grad",
    ),
    "rolled rows": (lambda w, x, _: jnp.mean(jnp.tanh(x @ w - jnp.roll(x, 1, 0))), "contrastive_value_and_grad"),
    "products with rolled rows": (
        lambda w, x, _: jnp.mean(jnp.einsum("bi,bi->b", x @ w, jnp.roll(x, 1, 0))),
        "contrastive_value_and_grad",
    ),
    "sorted rows": (lambda w, x, _: jnp.mean((jnp.sort(x @ w, 0) - jnp.sort(x, 0)) ** 2), "contrastive_value_and_grad"),
    "largest losses": (lambda w, x, y: jnp.mean(jnp.sort(cross_entropies(w, x, y))[-2:]), "contrastive_value_and_grad"),
    "median of losses": (lambda w, x, y: jnp.median(cross_entropies(w, x, y)), "contrastive_value_and_grad"),
    "quantile of losses": (lambda w, x, y: jnp.mean(jnp.quantile(x @ w, 0.9, axis=0)), "contrastive_value_and_grad"),
    "top losses": (lambda w, x, y: jnp.mean(lax.top_k(cross_entropies(w, x, y), 2)[0]), "contrastive_value_and_grad"),
    "top losses beside their mean": (
        lambda w, x, y: jnp.mean(lax.top_k((h := cross_entropies(w, x, y)) - jnp.mean(h), 2)[0]),
        "contrastive_value_and_grad",
    ),
    "about the top losses": (
        lambda w, x, y: jnp.mean(lax.approx_max_k(cross_entropies(w, x, y), 2)[0]),
        "contrastive_value_and_grad",
    ),
    "one scale": (quantized(None), "nonlinear"),
    "batch norm": (lambda w, x, _: jnp.mean(jnp.tanh((x @ w - jnp.mean(x @ w, 0)) / jnp.std(x @ w, 0))), "nonlinear"),
    "root of a mean": (lambda w, x, _: jnp.sqrt(jnp.mean((x @ w) ** 2)), "nonlinear"),
    "covariance": (lambda w, x, _: jnp.sum(((x @ w).T @ x / len(x) - jnp.eye(8)) ** 2), "nonlinear"),
}


def warnings_of(loss, **options):
    return list(nonlinear_losses(jax.make_jaxpr(mt.value_and_grad(loss, microbatches=4, **options))(W, X, Y)))


def values(loss):
    return jax.jit(lambda *a: (loss(*a), mt.value_and_grad(loss, microbatches=4)(*a)[0]))(W, X, Y)


@pytest.mark.parametrize("name", LINEAR)
def test_what_microbatches_do_not_change_is_not_warned_of(name):
    np.testing.assert_allclose(*values(LINEAR[name]), rtol=1e-4)
    assert not warnings_of(LINEAR[name])


@pytest.mark.parametrize("name", NONLINEAR)
def test_what_microbatches_change_is_warned_of(name):
    loss, wanted = NONLINEAR[name]
    whole, parts = values(loss)
    assert abs(whole - parts) > 1e-4 * abs(whole)
    ((text, place),) = warnings_of(loss)
    assert wanted in text
    assert place.startswith(f"{__file__}:")


def test_dropout_is_not_warned_of():
    def loss(w, x, key):
        return jnp.mean(jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x @ w / 0.9, 0) ** 2)

    step = mt.value_and_grad(loss, microbatches=4, key_argnum=2)
    assert not list(nonlinear_losses(jax.make_jaxpr(step)(W, X, KEY)))


def test_a_weighted_total_is_not_warned_of_and_neither_is_a_loss_with_a_state():
    def total(w, x, y):
        return jnp.sum(cross_entropies(w, x, y) * (y > 2)), jnp.sum(y > 2)

    def normalized(w, x, average):
        average = 0.9 * average + 0.1 * jnp.mean(x, 0)
        return jnp.mean(((x - jnp.mean(x, 0)) @ w) ** 2), average

    assert not warnings_of(total, reduce="weighted")
    step = mt.value_and_grad(normalized, microbatches=4, state_argnum=2)
    assert not list(nonlinear_losses(jax.make_jaxpr(step)(W, X, jnp.zeros(8))))


def test_the_warning_is_given_where_the_loss_becomes_nonlinear_also_in_named_layers():
    def loss(w, x):
        shares = mt.named_computation(lambda w, x: jnp.mean(jax.nn.softmax(x @ w), 0), name="layer")(w, x)
        return jnp.sum(shares**2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace(lambda w, x: mt.value_and_grad(loss, microbatches=4)(w, x), W, X)
    (one_warning,) = caught
    assert one_warning.category is mt.MpmdWarning
    assert one_warning.lineno == loss.__code__.co_firstlineno + 2
