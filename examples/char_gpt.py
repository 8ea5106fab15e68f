"""A character-level GPT, trained as a 1F1B pipeline over four meshes of two devices each.

    mpmd-trace run examples/char_gpt.py

The model is plain Equinox and knows nothing of meshes.  Its parts get names with `name_layers`; the
configuration at the end says which name lives where.  The text is what Python's own `help()` prints.
"""

import pydoc_data.topics

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace.equinox import name_layers

BLOCKS, WIDTH, HEADS, CONTEXT = 4, 64, 4, 64
BATCH, MICROBATCHES, STEPS = 16, 8, 20
MESHES, DEVICES_PER_MESH = 4, 2

processes = mpmd_trace.initialize()  # 1 without --processes
jax.config.update("jax_num_cpu_devices", MESHES * DEVICES_PER_MESH // processes)


class Block(eqx.Module):
    """A pre-norm transformer block; `x` is `(context, width)`."""

    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        k1, k2, k3 = jax.random.split(key, 3)
        self.norm1 = eqx.nn.LayerNorm(WIDTH)
        self.norm2 = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=k1)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=k2)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=k3)

    def __call__(self, x):
        y = jax.vmap(self.norm1)(x)
        mask = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
        x = x + self.attention(y, y, y, mask=mask)
        y = jax.vmap(self.norm2)(x)
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(y)))


class Embedding(eqx.Module):
    token: jax.Array
    position: jax.Array

    def __init__(self, vocabulary, key):
        k1, k2 = jax.random.split(key)
        self.token = 0.02 * jax.random.normal(k1, (vocabulary, WIDTH))
        self.position = 0.02 * jax.random.normal(k2, (CONTEXT, WIDTH))

    def __call__(self, tokens):
        return self.token[tokens] + self.position


class Head(eqx.Module):
    norm: eqx.nn.LayerNorm
    linear: eqx.nn.Linear

    def __init__(self, vocabulary, key):
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.linear = eqx.nn.Linear(WIDTH, vocabulary, key=key)

    def __call__(self, x):
        return jax.vmap(self.linear)(jax.vmap(self.norm)(x))


class GPT(eqx.Module):
    """Maps `(batch, context)` token ids to `(batch, context, vocabulary)` logits."""

    embedding: Embedding
    blocks: list
    head: Head

    def __init__(self, vocabulary, key):
        keys = jax.random.split(key, BLOCKS + 2)
        block = eqx.filter_jit(Block)  # compiled once for all of them
        self.embedding = Embedding(vocabulary, keys[0])
        self.blocks = [block(k) for k in keys[1:-1]]
        self.head = Head(vocabulary, keys[-1])

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = jax.vmap(block)(x)
        return jax.vmap(self.head)(x)


def loss_fn(model, tokens):
    """The mean cross-entropy of predicting `tokens[:, 1:]` from `tokens[:, :-1]`."""
    model = name_layers(model, lambda m: [m.embedding, *m.blocks, m.head])
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


schedule = optax.warmup_cosine_decay_schedule(1e-4, 3e-3, warmup_steps=5, decay_steps=STEPS)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))


def step(parameters, static, opt_state, batch):
    """One training step; `batch` is `(microbatches, batch / microbatches, context + 1)`."""

    def microbatch(i, carry, tokens):
        def loss(parameters):
            return loss_fn(eqx.combine(parameters, static), tokens) / MICROBATCHES

        return jax.tree.map(jnp.add, carry, jax.value_and_grad(loss)(parameters))

    # Outside mpmd_trace.jit this is a lax.scan; inside, every iteration is a pipeline microbatch.
    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
    loss, grads = mpmd_trace.enumerated_for(microbatch, start, batch)
    updates, opt_state = optimizer.update(grads, opt_state, parameters)
    return optax.apply_updates(parameters, updates), opt_state, loss, grads


def read_text():
    """All help topics as ids, and the number of distinct characters."""
    text = "\n\n".join(pydoc_data.topics.topics[t] for t in sorted(pydoc_data.topics.topics))
    characters = sorted(set(text))
    ids = {c: i for i, c in enumerate(characters)}
    return np.array([ids[c] for c in text], np.int32), len(characters)


def batch_of(text, step):
    """The batch of a step: random pieces of the text, the same in every run."""
    starts = np.random.default_rng(step).integers(0, len(text) - CONTEXT - 1, BATCH)
    rows = np.stack([text[s : s + CONTEXT + 1] for s in starts])
    return rows.reshape(MICROBATCHES, BATCH // MICROBATCHES, CONTEXT + 1)


def program():
    """What the command line runs."""
    text, vocabulary = read_text()
    model = GPT(vocabulary, jax.random.key(0))
    parameters, static = eqx.partition(model, eqx.is_array)

    def train_step(parameters, opt_state, batch):
        # Arrays are arguments; sizes and activation functions are part of the program.
        return step(parameters, static, opt_state, batch)

    devices = np.array(jax.devices()[: MESHES * DEVICES_PER_MESH]).reshape(MESHES, DEVICES_PER_MESH)
    topology = {f"stage{i}": Mesh(devices[i], ("data",)) for i in range(MESHES)}
    per_mesh = BLOCKS // MESHES
    where = {f"blocks_{i}": f"stage{i // per_mesh}" for i in range(BLOCKS)}
    where |= {"embedding": "stage0", "head": f"stage{MESHES - 1}"}
    config = mpmd_trace.make_config(topology, where, pipeline_schedule="1F1B")
    data_parallel = NamedSharding(topology["stage0"], PartitionSpec(None, "data"))
    return mpmd_trace.Program(
        train_step,
        (parameters, optimizer.init(parameters), batch_of(text, 0)),
        config,
        steps=STEPS,
        advance=lambda i, args, result: (result[0], result[1], batch_of(text, i + 1)),
        loss=lambda result: result[2],
        gradients=lambda result: result[3],
        in_shardings=(None, None, data_parallel),
        tokens=BATCH * CONTEXT,
        name="char_gpt",
    )
