"""Fine-tuning a BERT-like encoder in Equinox: its weights are frozen, and low-rank adapters (LoRA) are trained.

    python examples/bert_lora.py

Sentences come in buckets of two lengths, so there are two programs; they share parameters and adapters.  Frozen weights
have neither gradients nor optimizer state, and stay where they are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace.equinox import name_layers

LAYERS, WIDTH, HEADS, RANK, VOCABULARY, CLASSES = 2, 16, 2, 2, 32, 3
BATCH, MICROBATCHES, BUCKETS = 8, 2, (8, 16)

jax.config.update("jax_num_cpu_devices", 2)


class LoRA(eqx.Module):
    """A linear layer that is frozen, and what is learned in its place: `down` and `up`."""

    linear: eqx.nn.Linear
    down: jax.Array
    up: jax.Array

    def __init__(self, linear, key):
        self.linear = linear
        self.down = jax.random.normal(key, (RANK, linear.in_features)) / linear.in_features**0.5
        self.up = jnp.zeros((linear.out_features, RANK))

    def __call__(self, x, *, key=None):
        return self.linear(x) + self.up @ (self.down @ x)


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm

    def __init__(self, key):
        k1, k2 = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=k1)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=k2)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)

    def __call__(self, x, is_word):
        """`x` is `(length, width)`."""
        mask = jnp.broadcast_to(is_word, (len(x), len(x)))
        x = jax.vmap(self.norm1)(x + self.attention(x, x, x, mask=mask))
        return jax.vmap(self.norm2)(x + jax.vmap(self.mlp)(x))


class Classifier(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, key):
        k1, k2, *keys = jax.random.split(key, LAYERS + 2)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=k1)
        self.blocks = [Block(k) for k in keys]
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=k2)

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = block(x, tokens > 0)  # token 0 fills sentences up to the length of their bucket
        return self.head(x[0])


def with_adapters(model, key):
    """The model with LoRA in the attention, and which of its arrays are trained: adapters and head."""

    def projections(m):
        return [p for b in m.blocks for p in (b.attention.query_proj, b.attention.value_proj)]

    keys = jax.random.split(key, len(projections(model)))
    adapted = [LoRA(linear, k) for linear, k in zip(projections(model), keys, strict=True)]
    model = eqx.tree_at(projections, model, adapted)
    trained = jax.tree.map(lambda _: False, model)
    trained = eqx.tree_at(lambda m: m.head, trained, jax.tree.map(lambda _: True, model.head))
    parts = lambda m: [x for p in projections(m) for x in (p.down, p.up)]  # noqa: E731
    return model, eqx.tree_at(parts, trained, [True] * len(parts(trained)))


def loss(adapters, frozen, tokens, labels):
    logits = jax.vmap(eqx.combine(adapters, frozen))(tokens)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


optimizer = optax.adam(1e-2)


def step(adapters, state, frozen, tokens, labels):
    gradient = mt.value_and_grad(loss, microbatches=MICROBATCHES, batch_argnums=(2, 3))
    value, grads = gradient(adapters, frozen, tokens, labels)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(adapters, updates), state, value


meshes = {name: Mesh(np.array([d]), ("data",)) for name, d in zip(("m0", "m1"), jax.devices(), strict=True)}
config = mt.make_config(
    meshes, {"embedding": "m0", "blocks_0": "m0", "blocks_1": "m1", "head": "m1"}, pipeline_schedule="1F1B"
)


def main():
    model, trained = with_adapters(Classifier(jax.random.key(0)), jax.random.key(1))
    # The model is mapped over sentences from outside: `embedding` and `head` are called for each of them.
    model, trained = (name_layers(m, lambda m: [m.embedding, *m.blocks, m.head]) for m in (model, trained))
    adapters, frozen = eqx.partition(model, trained)
    state = optimizer.init(adapters)
    expected, expected_state, reference = adapters, state, frozen
    jitted, plain = mt.filter_jit(step, config), eqx.filter_jit(step)
    for i, length in enumerate(BUCKETS):
        tokens = jax.random.randint(jax.random.key(i), (BATCH, length), 1, VOCABULARY)
        tokens = jnp.where(jnp.arange(length) < length - jnp.arange(BATCH)[:, None] // 2, tokens, 0)
        labels = tokens[:, 0] % CLASSES
        train = jitted.lower(adapters, state, frozen, tokens, labels).compile()  # one for each length
        adapters, state, frozen = mt.place(train, adapters, state, frozen)
        adapters, state, value = train(adapters, state, frozen, tokens, labels)
        expected, expected_state, wanted = plain(expected, expected_state, reference, tokens, labels)
        print(f"length {length}: loss {value:.4f}, with jax.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=1e-4)
    pairs = zip(jax.tree.leaves((adapters, state)), jax.tree.leaves((expected, expected_state)), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)

    # Adapters and their moments are with their layers, and so are frozen weights, of which there is no state.
    for i, mesh in enumerate(meshes.values()):
        for part in (adapters, state[0].mu, state[0].nu, frozen):
            for array in jax.tree.leaves(eqx.filter(part.blocks[i], eqx.is_array)):
                assert array.devices() == set(mesh.devices.flat)
    # And nothing else: what the programs of a mesh take is that, and the batch.
    arrays = jax.tree.leaves(eqx.filter((adapters, state, frozen), eqx.is_array))
    for name, memory in train.memory_analysis().items():
        own = sum(x.nbytes for x in arrays if x.devices() == set(meshes[name].devices.flat))
        assert 0 <= memory.arguments - own <= tokens.nbytes + labels.nbytes  # sentences
    assert len(jax.tree.leaves(state[0].mu)) == len(jax.tree.leaves(adapters))
    report = train.placement_report()
    for mesh in report.meshes:
        print(f"{mesh.mesh} holds {mesh.parameters} bytes that are trained and {mesh.arguments} that are not")
    print("transfers and bytes of a step:", report.causes)
    assert report.causes.keys() <= {"activations", "cotangents", "small"}
    assert report.causes["cotangents"][0] == MICROBATCHES


if __name__ == "__main__":
    main()
