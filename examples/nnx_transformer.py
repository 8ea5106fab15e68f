"""A transformer in Flax NNX as a pipeline: dropout, an optimizer of NNX, and a step that changes both in place.

    python examples/nnx_transformer.py

The model is that of any NNX tutorial.  What is new is `name_layers`, which says what the layers are called, and
`mpmd_trace.nnx.jit` in the place of `nnx.jit`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

import mpmd_trace as mt
import mpmd_trace.nnx as mnnx

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 16, 2, 32
BATCH, CONTEXT, MICROBATCHES, STEPS = 8, 8, 2, 2

jax.config.update("jax_num_cpu_devices", 2)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Embedding(nnx.Module):
    def __init__(self, rngs):
        self.token = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.position = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)

    def __call__(self, tokens):
        return self.token(tokens) + self.position(jnp.arange(CONTEXT))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embedding = Embedding(rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss(model, tokens):
    labels = tokens[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), labels).mean()


def step(model, optimizer, tokens):
    value, grads = mnnx.value_and_grad(loss, microbatches=MICROBATCHES)(model, tokens)
    optimizer.update(model, grads)
    return value


# Which layers live where: the first half of the blocks with the embedding, the others with the head.

devices = jax.devices()
topology = {name: Mesh(np.array([devices[i]]), ("data",)) for i, name in enumerate(("m0", "m1"))}
names = ["embedding", *(f"blocks_{i}" for i in range(LAYERS)), "head"]
config = mt.make_config(
    topology, {name: "m0" if i < len(names) / 2 else "m1" for i, name in enumerate(names)}, pipeline_schedule="1F1B"
)


def main():
    adam = optax.adamw(1e-2)
    model, expected = Transformer(nnx.Rngs(0)), Transformer(nnx.Rngs(0))
    optimizer, expected_state = (nnx.Optimizer(m, adam, wrt=nnx.Param) for m in (model, expected))
    mnnx.name_layers(model, ["embedding", "blocks", "head"])

    batches = jax.random.randint(jax.random.key(0), (STEPS, BATCH, CONTEXT + 1), 0, VOCABULARY)
    train = mnnx.jit(step, config, donate_argnums=(0, 1)).lower(model, optimizer, batches[0]).compile()
    mnnx.place(train, model, optimizer)
    plain = nnx.jit(step)
    for tokens in batches:
        value, wanted = train(model, optimizer, tokens), plain(expected, expected_state, tokens)
        print(f"loss {value:.4f}, with nnx.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=1e-4)

    # Parameters, random streams and optimizer state are where their layer is.
    moments = optimizer.opt_state[0].mu
    for i in range(LAYERS):
        for part in (model.blocks[i], moments.blocks[i]):
            held = {d for x in jax.tree.leaves(nnx.state(part)) for d in x.devices()}
            assert held == {devices[i // (LAYERS // 2)]}
    assert int(model.blocks[0].dropout.rngs.count[...]) == STEPS * MICROBATCHES
    # And nothing else: what the programs of a mesh take is that, and the batch.
    for mesh, memory in train.memory_analysis().items():
        shards = [s for x in jax.tree.leaves(nnx.state((model, optimizer))) for s in x.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == topology[mesh].devices[0])
        assert 0 <= memory.arguments - own <= tokens.nbytes  # tokens
    report = train.placement_report()
    for mesh in report.meshes:
        print(f"{mesh.mesh} holds {mesh.parameters} bytes of parameters and {mesh.state} of optimizer state")
    print("transfers and bytes of a step:", report.causes)
    # Activations (and a few bytes of labels) go on for each microbatch, and their gradients come back.
    assert report.causes.keys() <= {"activations", "cotangents", "arguments", "small"}
    assert report.causes["cotangents"] == (MICROBATCHES, BATCH * CONTEXT * WIDTH * 4)


if __name__ == "__main__":
    main()
