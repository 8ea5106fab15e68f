"""Naming the layers of an Equinox model from outside."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from traced_programs import calls, check_same, evaluate, functions, origins, plain_text

from mpmd_trace.equinox import join, name_layers, split
from mpmd_trace.frontend import FrontendError, trace
from mpmd_trace.frontend.naming import call, named_computation
from util import filled


class Block(eqx.Module):
    """A residual layer with dropout; its `drop` holds Python settings beside arrays."""

    linear: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, width: int, key: jax.Array) -> None:
        self.linear = eqx.nn.Linear(width, width, key=key)
        self.drop = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """x of shape (width,)."""
        return x + self.drop(jax.nn.gelu(self.linear(x)), key=key, inference=key is None)


class Model(eqx.Module):
    """Embedding tied to the head, and blocks."""

    embedding: eqx.nn.Embedding
    blocks: list[Block]

    def __init__(self, key: jax.Array, depth: int = 2) -> None:
        keys = jax.random.split(key, depth + 1)
        self.embedding = eqx.nn.Embedding(8, 4, key=keys[0])
        self.blocks = [Block(4, k) for k in keys[1:]]

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Logits of shape (length, 8) for tokens of shape (length,)."""
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = jax.vmap(lambda h, block=block: block(h, key))(x)
        return named_computation(lambda e, x: x @ e.T, name="head")(self.embedding.weight, x)


@pytest.fixture
def model() -> Model:
    return filled(Model, jax.random.key(0))


TOKENS = jnp.arange(10).reshape(2, 5) % 8


def _loss(model: Any, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
    logits = jax.vmap(lambda t: model(t, key))(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def test_names_are_paths(model: Model) -> None:
    named = name_layers(model, where=lambda m: [m.embedding, *m.blocks])
    assert [block.mpmd_name for block in named.blocks] == ["blocks_0", "blocks_1"]
    assert named.blocks[0].linear.weight is model.blocks[0].linear.weight
    assert jax.tree.structure(model) != jax.tree.structure(named)
    assert jax.tree.leaves(model)[0] is jax.tree.leaves(named)[0]


def test_names_can_be_chosen(model: Model) -> None:
    blocks = lambda m: m.blocks  # noqa: E731
    assert [b.mpmd_name for b in name_layers(model, blocks, name="b").blocks] == ["b"] * 2
    assert [b.mpmd_name for b in name_layers(model, blocks, name="xyz").blocks] == ["xyz"] * 2
    assert [b.mpmd_name for b in name_layers(model, blocks, name=["x", "y"]).blocks] == ["x", "y"]
    upper = name_layers(model, blocks, name=str.upper).blocks
    assert [b.mpmd_name for b in upper] == ["BLOCKS_0", "BLOCKS_1"]


@pytest.mark.parametrize("dropout", [False, True])
def test_a_named_model_computes_the_same(model: Model, dropout: bool) -> None:
    named = name_layers(model, where=lambda m: [m.embedding, *m.blocks])
    arrays, rest = eqx.partition(named, eqx.is_array)
    key = jax.random.key(1) if dropout else None

    def step(arrays: Any, tokens: jax.Array) -> Any:
        return jax.value_and_grad(lambda a: _loss(eqx.combine(a, rest), tokens, key))(arrays)

    plain_arrays, plain_rest = eqx.partition(model, eqx.is_array)
    value, grads = jax.value_and_grad(lambda a: _loss(eqx.combine(a, plain_rest), TOKENS, key))(plain_arrays)
    traced = trace(step, arrays, TOKENS)
    result, named_grads = evaluate(traced, arrays, TOKENS)
    assert jnp.allclose(result, value, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(named_grads), jax.tree.leaves(grads), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-6)
    found = origins(plain_text(traced))
    names = ["embedding", "blocks_0", "blocks_1", "head"]
    assert found == names + [f"{n}(1)" for n in reversed(names)]
    assert "arrays.blocks[0].linear.weight" in traced.in_names


def test_a_whole_training_step(model: Model) -> None:
    named = name_layers(model, where=lambda m: [m.embedding, *m.blocks])
    params, rest = eqx.partition(named, eqx.is_inexact_array)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.cosine_decay_schedule(1e-2, 10)))

    def loss(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        return _loss(eqx.combine(params, rest), tokens, key)

    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        total, grads = 0.0, jax.tree.map(jnp.zeros_like, params)
        for i in range(3):
            one = call(jax.value_and_grad(loss), i)
            value, g = one(params, tokens[i : i + 2], jax.random.fold_in(key, i))
            grads, total = jax.tree.map(jnp.add, grads, g), total + value
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, total

    tokens = jnp.arange(20).reshape(4, 5) % 8
    args = (params, optimizer.init(params), tokens, jax.random.key(3))
    text = plain_text(check_same(step, step, *args))
    assert calls(text) == [("loss", i) for i in range(3)]
    assert functions(text).count("loss") == 1


def test_layers_of_the_same_kind_share_a_trace(model: Model) -> None:
    traces = []

    class Counting(eqx.Module):
        weight: jax.Array

        def __call__(self, x: jax.Array) -> jax.Array:
            traces.append(1)
            return x * self.weight

    layers = [Counting(jnp.float32(i)) for i in range(3)]
    named = name_layers(layers, where=lambda m: m, name="layer")
    trace(lambda x: named[2](named[1](named[0](x))), jnp.ones(2))
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("where", "options", "message"),
    [
        (lambda m: [], {}, "selects no layer"),
        (lambda m: m.blocks[0].linear.weight, {}, "which is not a layer"),
        (lambda m: eqx.nn.Linear(2, 2, key=jax.random.key(0)), {}, "is not part of the model"),
        (lambda m: m.blocks, {"name": ["a"]}, "got 1 names for 2 layers"),
        (lambda m: m.blocks, {"name": "a,b"}, "separate entries"),
    ],
)
def test_bad_selections(model: Model, where: Any, options: Any, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        name_layers(model, where, **options)


def test_split_and_join(model: Model) -> None:
    tree = {"model": model, "name": "text", "n": 3}
    arrays, rest = split(tree)
    assert hash(rest) == hash(split(tree)[1]) and rest == split(tree)[1]
    joined = join(arrays, rest)
    assert eqx.tree_equal(joined, tree)
    with pytest.raises(FrontendError, match=r"the leaf \['a'\] of type set is neither"):
        split({"a": {1}})
