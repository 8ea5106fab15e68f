"""A training step of Equinox modules for `first_step.py`: RMSNorm, attention and gated feed-forward layers of its own
library and of a user, with two devices a mesh, over which the rows of a batch are sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.equinox import name_layers

HEADS = 2


class Block(eqx.Module):
    norm1: eqx.nn.RMSNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.RMSNorm
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.norm1, self.norm2 = eqx.nn.RMSNorm(width), eqx.nn.RMSNorm(width)
        self.attention = eqx.nn.MultiheadAttention(HEADS, width, key=keys[0])
        self.gate = eqx.nn.Linear(width, 2 * width, key=keys[1])
        self.up = eqx.nn.Linear(width, 2 * width, key=keys[2])
        self.down = eqx.nn.Linear(2 * width, width, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.vmap(self.one)(x)

    def one(self, x: jax.Array) -> jax.Array:
        """The block for one row: `x` is (length, width)."""
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        y = jax.vmap(self.norm2)(x)
        return x + jax.vmap(self.down)(jax.nn.silu(jax.vmap(self.gate)(y)) * jax.vmap(self.up)(y))


class Embedding(eqx.Module):
    table: eqx.nn.Embedding

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jax.vmap(jax.vmap(self.table))(tokens)


class Head(eqx.Module):
    norm: eqx.nn.RMSNorm
    out: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.vmap(jax.vmap(lambda y: self.out(self.norm(y))))(x)


class Model(eqx.Module):
    embed: Embedding
    blocks: list[Block]
    head: Head

    def __init__(self, layers: int, width: int, vocabulary: int, key: jax.Array) -> None:
        first, last, *keys = jax.random.split(key, layers + 2)
        self.embed = Embedding(eqx.nn.Embedding(vocabulary, width, key=first))
        self.blocks = [Block(width, key) for key in keys]
        self.head = Head(eqx.nn.RMSNorm(width), eqx.nn.Linear(width, vocabulary, key=last))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def modules(
    layers: int, meshes: int, microbatches: int, mesh_of: Callable[[int], str], sizes: tuple[int, int, int, int]
) -> tuple[Callable[..., Any], tuple[Any, ...], mt.config.Config, dict[str, Any]]:
    """A step with its arguments, the configuration for a pipeline of it, and options of `mpmd_trace.jit`.

    `sizes`: the width, the length of a text, the size of the vocabulary, and the rows of a microbatch.
    """
    width, length, vocabulary, rows = sizes
    plain = Model(layers, width, vocabulary, jax.random.key(0))
    model = name_layers(plain, lambda m: [m.embed, *m.blocks, m.head])
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def loss(p: Any, tokens: jax.Array, wanted: jax.Array) -> jax.Array:
        logits = eqx.combine(p, static)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, wanted).mean()

    def step(p: Any, state: Any, tokens: jax.Array, wanted: jax.Array) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=microbatches)(p, tokens, wanted)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    names = [one.mpmd_name for one in (model.embed, *model.blocks, model.head)]
    places = ["m0", *map(mesh_of, range(layers)), f"m{meshes - 1}"]
    devices = np.array(jax.devices()[: 2 * meshes]).reshape(meshes, 2)
    config = mt.make_config(
        {f"m{i}": Mesh(devices[i], ("data",)) for i in range(meshes)},
        dict(zip(names, places, strict=True)),
        pipeline_schedule="1F1B",
    )
    tokens, wanted = np.random.default_rng(1).integers(0, vocabulary, (2, rows * microbatches, length), np.int32)
    batch = NamedSharding(Mesh(devices[0], ("data",)), PartitionSpec("data"))
    arguments = (parameters, optimizer.init(parameters), tokens, wanted)
    return step, arguments, config, {"in_shardings": (None, None, batch, batch)}
