"""A Llama-like model as a pipeline: layers stacked and scanned, rotary positions, grouped queries, a gated MLP, tied
embeddings; computed in bfloat16 from master weights in float32.

    python examples/llama.py

The model is plain JAX.  `mt.scan` is `jax.lax.scan` with a name, and that name is assigned to two meshes: each holds
its own half of every stacked weight, and of the optimizer state that belongs to it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt

LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 4, 32, 4, 2, 48, 64
BATCH, CONTEXT, MICROBATCHES, STEPS = 8, 16, 4, 3
HEAD = WIDTH // HEADS

jax.config.update("jax_num_cpu_devices", 4)


# The model.


def norm(x, scale):
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)).astype(scale.dtype) * scale


def rotate(x, positions):
    """Rotary positions; `x` is `(batch, context, heads, head)`."""
    frequencies = 10_000.0 ** -jnp.linspace(0, 1, HEAD // 2, endpoint=False)
    angles = positions[..., None, None] * frequencies
    sin, cos = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def project(x, layer, positions):
    """Queries, keys and values."""
    y = norm(x, layer["norm1"])
    q = rotate(jnp.einsum("btw,whd->bthd", y, layer["query"]), positions)
    k = rotate(jnp.einsum("btw,wkd->btkd", y, layer["key"]), positions)
    return q, k, jnp.einsum("btw,wkd->btkd", y, layer["value"])


def finish(x, attended, layer):
    """What follows on attention: its projection, and the gated MLP."""
    x = x + jnp.einsum("bthd,hdw->btw", attended, layer["out"])
    y = norm(x, layer["norm2"])
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def block(x, layer):
    """One layer, in the form that a scan wants: `x` is `(batch, context, width)`."""
    q, k, v = project(x, layer, jnp.arange(x.shape[1]))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # each of the key heads serves two queries
    return finish(x, attended, layer), None


def init(key):
    """Master weights.  The leading axis of those in `blocks` is for the layers."""
    shapes = {
        "query": (WIDTH, HEADS, HEAD),
        "key": (WIDTH, KV_HEADS, HEAD),
        "value": (WIDTH, KV_HEADS, HEAD),
        "out": (HEADS, HEAD, WIDTH),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    *keys, last = jax.random.split(key, len(shapes) + 1)
    blocks = {
        name: jax.random.normal(k, (LAYERS, *shape)) / WIDTH**0.5
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    blocks |= {"norm1": jnp.ones((LAYERS, WIDTH)), "norm2": jnp.ones((LAYERS, WIDTH))}
    return {"embedding": 0.02 * jax.random.normal(last, (VOCABULARY, WIDTH)), "blocks": blocks, "norm": jnp.ones(WIDTH)}


# The step.


def embed(embedding, tokens):
    return embedding[tokens]


def head(embedding, scale, x, labels):
    logits = norm(x, scale) @ embedding.T
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def loss(params, tokens):
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
    x = mt.named_computation(embed, name="embed")(params["embedding"], tokens[:, :-1])
    x, _ = mt.scan(block, x, params["blocks"], name="blocks")
    return mt.named_computation(head, name="head")(params["embedding"], params["norm"], x, tokens[:, 1:])


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def step(params, state, tokens):
    # The embedding is tied: both ends of the pipeline read it.  Each end sums its own gradient over the microbatches,
    # and what is sent is one sum a step.
    value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(params, tokens)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


# Which layers live where.

devices = np.array(jax.devices()).reshape(2, 2)
config = mt.make_config(
    {"m0": Mesh(devices[0], ("data",)), "m1": Mesh(devices[1], ("data",))},
    {"embed": "m0", "blocks": ["m0", "m1"], "head": "m1"},
    pipeline_schedule="1F1B",
)


def main():
    keys = jax.random.split(jax.random.key(0), STEPS + 1)
    batches = [jax.random.randint(k, (BATCH, CONTEXT + 1), 0, VOCABULARY) for k in keys[1:]]
    params = expected = init(keys[0])
    state = expected_state = optimizer.init(params)
    train = mt.jit(step, config).lower(params, state, batches[0]).compile()
    plain = jax.jit(step)
    for tokens in batches:
        params, state, value = train(params, state, tokens)
        expected, expected_state, wanted = plain(expected, expected_state, tokens)
        print(f"loss {value:.4f}, with jax.jit {wanted:.4f}")
        np.testing.assert_allclose(value, wanted, rtol=2e-2)  # sums in another order, in bfloat16

    # To the user a stacked weight is one array; each mesh holds its half, also of Adam's moments.
    for stacked in jax.tree.leaves((params["blocks"], optax.tree_utils.tree_get(state, "mu")["blocks"])):
        for shard in stacked.addressable_shards:
            mesh = 0 if shard.device in devices[0] else 1
            assert shard.index[0] == slice(mesh * LAYERS // 2, (mesh + 1) * LAYERS // 2)
    # And nothing else: what the programs of a mesh take on each of its devices is that, and the batch.
    for mesh, memory in train.memory_analysis().items():
        shards = [s for x in jax.tree.leaves((params, state)) for s in x.addressable_shards]
        own = sum(s.data.nbytes for s in shards if s.device == config.topology[mesh].devices[0])
        assert 0 <= memory.arguments - own <= tokens.nbytes  # tokens
    report = train.placement_report()
    for mesh in report.meshes:
        print(f"{mesh.mesh} holds {mesh.parameters} bytes of parameters and {mesh.state} of optimizer state")
    assert sum(mesh.parameters for mesh in report.meshes) == sum(x.nbytes for x in jax.tree.leaves(params))
    assert sum(mesh.state for mesh in report.meshes) == sum(x.nbytes for x in jax.tree.leaves(state))

    # What moves in a step: activations forth and their gradients back for each microbatch; the embedding and its
    # gradient once.
    print("transfers and bytes of a step:", report.causes)
    assert not report.misplaced and not report.returning
    times = {cause: number for cause, (number, _) in report.causes.items() if cause != "small"}
    assert times == {"activations": 4, "cotangents": 4, "parameters": 1, "gradients": 1, "arguments": 1}


if __name__ == "__main__":
    main()
