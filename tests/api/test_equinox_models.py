"""Models as Equinox's documentation writes them, their layers named from outside, against plain Equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace.equinox import NamedLayer, filter_jit, name_layers
from pipelines import assert_same, config
from util import filled, nightly, normal

KEY = jax.random.key(0)


def compare(step: Callable[..., Any], where: Any, model: Any, *args: Any) -> mpmd_trace.stages.Jitted:
    """`step` on the named model, over two meshes, gives what it gives under `eqx.filter_jit`, and where."""
    named = name_layers(model, where)
    layers = [x for x in jax.tree.leaves(where(named), is_leaf=callable) if isinstance(x, NamedLayer)]
    half = len(layers) // 2
    names = {x.mpmd_name: f"m{int(i >= half)}" for i, x in enumerate(layers)}
    assert len(names) >= 2
    jitted = filter_jit(step, config(names))
    expected = eqx.filter_jit(step)(model, *args)
    found = jitted(named, *args)
    assert jax.tree.structure(expected, is_leaf=eqx.is_array).num_leaves
    assert_same(*(jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (found, expected)), rtol=2e-4, atol=2e-5)
    return jitted


class TransformerLayer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    feed_forward: eqx.nn.MLP

    def __init__(self, width: int, key: jax.Array) -> None:
        k1, k2 = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, width, dropout_p=0.1, key=k1)
        self.norm = eqx.nn.LayerNorm(width)
        self.feed_forward = eqx.nn.MLP(width, width, width, 1, key=k2)

    def __call__(
        self, x: jax.Array, mask: jax.Array | None = None, *, enable_dropout: bool = False, key: jax.Array | None = None
    ) -> jax.Array:
        wide = None if mask is None else jnp.multiply(mask[:, None], mask[None]).astype(bool)
        x = jax.vmap(self.norm)(x + self.attention(x, x, x, wide, inference=not enable_dropout, key=key))
        return x + jax.vmap(self.feed_forward)(x)


# A vision transformer (Equinox's example of that name).


class Patches(eqx.Module):
    linear: eqx.nn.Linear
    size: int

    def __init__(self, channels: int, width: int, size: int, key: jax.Array) -> None:
        self.size = size
        self.linear = eqx.nn.Linear(size**2 * channels, width, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        c, h, w = x.shape
        x = x.reshape(c, h // self.size, self.size, w // self.size, self.size)
        return jax.vmap(self.linear)(jnp.transpose(x, (1, 3, 0, 2, 4)).reshape(-1, c * self.size**2))


class VisionTransformer(eqx.Module):
    patches: Patches
    positions: jax.Array
    cls_token: jax.Array
    blocks: list[TransformerLayer]
    dropout: eqx.nn.Dropout
    mlp: eqx.nn.Sequential

    def __init__(self, width: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 6)
        self.patches = Patches(1, width, 2, keys[0])
        self.positions = jax.random.normal(keys[1], (5, width))
        self.cls_token = jax.random.normal(keys[2], (1, width))
        self.blocks = [TransformerLayer(width, k) for k in keys[3:5]]
        self.dropout = eqx.nn.Dropout(0.2)
        self.mlp = eqx.nn.Sequential([eqx.nn.LayerNorm(width), eqx.nn.Linear(width, 3, key=keys[5])])

    def __call__(self, x: jax.Array, enable_dropout: bool, key: jax.Array) -> jax.Array:
        x = jnp.concatenate((self.cls_token, self.patches(x))) + self.positions
        dropout_key, *keys = jax.random.split(key, len(self.blocks) + 1)
        x = self.dropout(x, inference=not enable_dropout, key=dropout_key)
        for block, k in zip(self.blocks, keys, strict=True):
            x = block(x, enable_dropout=enable_dropout, key=k)
        return self.mlp(x[0])


def vit_step(model: VisionTransformer, images: jax.Array, enable: bool, key: jax.Array) -> Any:
    @eqx.filter_value_and_grad
    def loss(model: VisionTransformer) -> jax.Array:
        keys = jax.random.split(key, images.shape[0])
        logits = jax.vmap(model, in_axes=(0, None, 0))(images, enable, keys)
        return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])

    if not enable:  # the forward pass is enough: compiling takes most of the time here
        return jax.vmap(model, in_axes=(0, None, None))(images, enable, key)
    value, grads = loss(model)
    return value, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))


@pytest.mark.parametrize("enable_dropout", [nightly(True), False])
def test_vision_transformer(enable_dropout: bool) -> None:
    images = normal(0, 3, 1, 4, 4)
    where = lambda m: [m.patches, *m.blocks, m.mlp]  # noqa: E731
    compare(vit_step, where, filled(VisionTransformer, 4, KEY), images, enable_dropout, KEY)


# A BERT-like encoder: keyword flags, masks, optional keys, an inner attention with a name of its own.


class EmbedderBlock(eqx.Module):
    tokens: eqx.nn.Embedding
    segments: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, key: jax.Array) -> None:
        k1, k2 = jax.random.split(key)
        self.tokens, self.segments = eqx.nn.Embedding(11, width, key=k1), eqx.nn.Embedding(2, width, key=k2)
        self.norm, self.dropout = eqx.nn.LayerNorm(width), eqx.nn.Dropout(0.2)

    def __call__(
        self, tokens: jax.Array, segments: jax.Array, enable_dropout: bool = False, key: jax.Array | None = None
    ) -> jax.Array:
        x = jax.vmap(self.norm)(jax.vmap(self.tokens)(tokens) + jax.vmap(self.segments)(segments))
        return self.dropout(x, inference=not enable_dropout, key=key)


class Encoder(eqx.Module):
    embedder: EmbedderBlock
    layers: tuple[TransformerLayer, ...]
    pooler: eqx.nn.Linear

    def __init__(self, width: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.embedder = EmbedderBlock(width, keys[0])
        self.layers = tuple(TransformerLayer(width, k) for k in keys[1:3])
        self.pooler = eqx.nn.Linear(width, 2, key=keys[3])

    def __call__(
        self, tokens: jax.Array, segments: jax.Array, *, enable_dropout: bool = False, key: jax.Array | None = None
    ) -> jax.Array:
        keys = [None] * 3 if key is None else list(jax.random.split(key, 3))
        x = self.embedder(tokens, segments, enable_dropout, keys[0])
        mask = jnp.asarray(tokens != 0, jnp.int32)
        for layer, k in zip(self.layers, keys[1:], strict=True):
            x = layer(x, mask, enable_dropout=enable_dropout, key=k)
        return jnp.tanh(self.pooler(x[0]))


def test_encoder() -> None:
    def step(model: Encoder, tokens: jax.Array, key: jax.Array | None, enable: bool) -> Any:
        def loss(model: Encoder) -> jax.Array:
            one = lambda t: model(t, t % 2, enable_dropout=enable, key=key)  # noqa: E731
            return jnp.mean(jax.vmap(one)(tokens) ** 2)

        return eqx.filter_value_and_grad(loss)(model)

    tokens = jnp.arange(10).reshape(2, 5)
    where = lambda m: [m.embedder, *m.layers, m.pooler]  # noqa: E731
    compare(step, where, filled(Encoder, 4, KEY), tokens, KEY, True)


def test_recurrent_network() -> None:
    class RNN(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear
        bias: jax.Array
        hidden_size: int

        def __init__(self) -> None:
            self.cell = eqx.nn.GRUCell(2, 4, key=KEY)
            self.linear = eqx.nn.Linear(4, 1, use_bias=False, key=KEY)
            self.bias, self.hidden_size = jnp.zeros(1), 4

        def __call__(self, x: jax.Array) -> jax.Array:
            hidden = self.scan(jnp.zeros((self.hidden_size,)), x)
            return jax.nn.sigmoid(self.linear(hidden) + self.bias)

        def scan(self, hidden: jax.Array, x: jax.Array) -> jax.Array:
            out, _ = jax.lax.scan(lambda carry, inp: (self.cell(inp, carry), None), hidden, x)
            return out

    def step(model: RNN, x: jax.Array) -> Any:
        return eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x)))(model)

    compare(step, lambda m: [m.cell, m.linear], filled(RNN), normal(0, 3, 4, 2))


def test_u_net() -> None:
    class UNet(eqx.Module):
        down: list[eqx.nn.Conv2d]
        middle: eqx.nn.Conv2d
        up: list[eqx.nn.ConvTranspose2d]
        final: eqx.nn.Lambda
        pool: eqx.nn.MaxPool2d

        def __init__(self) -> None:
            keys = jax.random.split(KEY, 4)
            self.down = [eqx.nn.Conv2d(1, 2, 3, padding=1, key=keys[0])]
            self.middle = eqx.nn.Conv2d(2, 4, 3, padding=1, key=keys[1])
            self.up = [eqx.nn.ConvTranspose2d(4, 2, 2, stride=2, key=keys[2])]
            self.final = eqx.nn.Lambda(jax.nn.sigmoid)
            self.pool = eqx.nn.MaxPool2d(2, 2)

        def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
            skips = []
            for layer in self.down:
                x = jax.nn.relu(layer(x))
                skips.append(x)
                x = self.pool(x)
            x = jax.nn.relu(self.middle(x))
            for layer in self.up:
                x = layer(x) + skips.pop()
            return self.final(x)

    def step(model: UNet, x: jax.Array) -> Any:
        return eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)

    where = lambda m: [*m.down, m.middle, *m.up, m.final]  # noqa: E731
    compare(step, where, filled(UNet), normal(0, 2, 1, 4, 4))


class Convolutional(eqx.Module):
    """A network with batch norm and a shared weight, as in Equinox's pages on stateful layers and sharing."""

    body: eqx.nn.Sequential
    norm: eqx.nn.BatchNorm
    spectral: eqx.nn.SpectralNorm
    shared: eqx.nn.Shared

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        norm = eqx.nn.BatchNorm(2, "batch", mode="batch")
        self.body = eqx.nn.Sequential([eqx.nn.Conv2d(1, 2, 3, key=keys[0]), norm, eqx.nn.Lambda(jax.nn.relu)])
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="ema")
        self.spectral = eqx.nn.SpectralNorm(eqx.nn.Linear(8, 8, key=keys[1]), "weight", key=keys[2])
        embedding, linear = eqx.nn.Embedding(8, 8, key=keys[3]), eqx.nn.Linear(8, 8, key=keys[3])
        self.shared = eqx.nn.Shared((embedding, linear), where=lambda p: p[1].weight, get=lambda p: p[0].weight)

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.body(x, state)
        x, state = self.norm(x.reshape(-1), state)
        x, state = self.spectral(x, state)
        embedding, linear = self.shared()
        return linear(x + embedding(jnp.int32(3))), state


@pytest.mark.parametrize("inference", [False, True])
def test_stateful_and_shared_layers(inference: bool) -> None:
    model, state = eqx.nn.make_with_state(Convolutional)(KEY)
    where = lambda m: [m.body.layers[0], m.body.layers[1], m.norm, m.spectral, m.shared.pytree[1]]  # noqa: E731
    images = normal(0, 4, 1, 4, 4)

    def step(model: Convolutional, state: eqx.nn.State, x: jax.Array, inference: bool) -> Any:
        model = eqx.nn.inference_mode(model, inference)

        def loss(model: Convolutional, state: eqx.nn.State) -> Any:
            batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            out, state = batched(x, state)
            return jnp.mean(out**2), state

        return loss(model, state) if inference else eqx.filter_value_and_grad(loss, has_aux=True)(model, state)

    jitted = compare(step, where, model, state, images, inference)
    named = name_layers(model, where)
    assert isinstance(named.norm, eqx.nn.BatchNorm) and named.body.is_stateful()
    if not inference:  # the state that comes back is the state of the next step
        expected: list[Any] = []
        for run, m in ((eqx.filter_jit(step), model), (jitted, named)):
            (_, after), _ = run(m, state, images, inference)
            expected.append(jax.tree.leaves(eqx.filter(run(m, after, images, inference), eqx.is_array)))
        assert_same(*expected, rtol=2e-4, atol=2e-5)
    smaller = state.substate(named.norm)
    assert jax.tree.leaves(state.update(smaller))


def test_a_sequence_of_layers_with_state_and_key() -> None:
    layers = [eqx.nn.Linear(4, 4, key=KEY), eqx.nn.Dropout(0.5), eqx.nn.Lambda(jnp.tanh)]
    model = eqx.nn.Sequential(layers)
    jitted = compare(lambda m, x, k: m(x, key=k), lambda m: list(m.layers), model, jnp.arange(4.0), KEY)
    assert isinstance(jitted, mpmd_trace.stages.Jitted)
