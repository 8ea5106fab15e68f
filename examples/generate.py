"""Generation over a pipeline: the cache of keys and values stays with its layers, and is written in place.

    python examples/generate.py

The model is that of `llama.py`.  One program reads the prompts, another one writes a token a step; both take the same
parameters, and the cache that the first one made.  A pipeline of two stages is busy as long as there are two groups of
sequences: while the second stage works on the one, the first stage works on the other.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from llama import HEAD, KV_HEADS, LAYERS, VOCABULARY, embed, finish, init, norm, project

import mpmd_trace as mt

GROUPS, BATCH, PROMPT, LENGTH = 2, 4, 8, 16

devices = np.array(jax.devices())
config = mt.make_config(
    {"m0": Mesh(devices[:1], ("data",)), "m1": Mesh(devices[1:2], ("data",))},
    {"embed": "m0", "blocks": ["m0", "m1"], "head": "m1"},
    output_mesh_assignment=("m0", None),  # a token that is written is where the next step reads it
)


def write(params, cache, tokens, start):
    """The next token of each sequence, after reading `tokens`, which begin at position `start`."""
    positions = start + jnp.arange(tokens.shape[1])
    visible = jnp.arange(LENGTH) <= positions[:, None]

    def block(x, part):
        layer, (keys, values) = part
        q, k, v = project(x, layer, positions)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, start, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, start, axis=1)
        attended = jax.nn.dot_product_attention(q, keys, values, mask=visible[None, None])
        return finish(x, attended, layer), (keys, values)

    def head(embedding, scale, x):
        return jnp.argmax(norm(x[:, -1], scale) @ embedding.T, axis=-1)

    x = mt.named_computation(embed, name="embed")(params["embedding"], tokens)
    x, cache = mt.scan(block, x, (params["blocks"], cache), name="blocks")  # the cache has an axis for the layers, too
    return mt.named_computation(head, name="head")(params["head"], params["norm"], x)[:, None], cache


def empty():
    """A cache of keys and values for a group."""
    return tuple(jnp.zeros((2, LAYERS, BATCH, LENGTH, KV_HEADS, HEAD)))


def generate(read, step, params, caches, prompts):
    """All that is written, and the seconds that it took."""
    state = [read(params, cache, prompt, 0) for cache, prompt in zip(caches, prompts, strict=True)]
    written = [[tokens] for tokens, _ in state]
    jax.block_until_ready(state)
    started = time.perf_counter()
    for position in range(PROMPT, LENGTH - 1):
        for group, (tokens, cache) in enumerate(state):  # nothing waits here: the stages work on different groups
            state[group] = step(params, cache, tokens, position)
            written[group].append(state[group][0])
    jax.block_until_ready(state)
    seconds = time.perf_counter() - started
    return [np.concatenate([np.asarray(t) for t in tokens], axis=1) for tokens in written], seconds


def main():
    params = init(jax.random.key(0))
    params["head"] = params["embedding"]  # tied; each end of the pipeline has a copy, so that none is sent in a step
    prompts = list(jax.random.randint(jax.random.key(1), (GROUPS, BATCH, PROMPT), 0, VOCABULARY))

    plain = jax.jit(write, donate_argnums=1)
    arguments = (params, empty(), prompts[0])
    read, step = (plain.lower(*arguments[:2], tokens, 0).compile() for tokens in (prompts[0], prompts[0][:, :1]))
    expected, alone = generate(read, step, params, [empty() for _ in prompts], prompts)

    jitted = mt.jit(write, config, donate_argnums=1)
    read, step = (jitted.lower(*arguments[:2], tokens, 0).compile() for tokens in (prompts[0], prompts[0][:, :1]))
    (params,) = mt.place(step, params)  # one copy serves both programs
    caches = [mt.create(empty, read, argnums=1) for _ in prompts]  # each layer's part is made on the layer's mesh
    found, together = generate(read, step, params, caches, prompts)
    np.testing.assert_array_equal(found, expected)
    count = GROUPS * BATCH * (LENGTH - 1 - PROMPT)
    print(f"{count / together:.0f} tokens a second over two meshes, {count / alone:.0f} on one")

    # The cache is written where it is: its memory is that of the cache that was given.
    def memory(cache):
        return [shard.data.unsafe_buffer_pointer() for part in cache for shard in part.addressable_shards]

    cache = mt.create(empty, read, argnums=1)
    before = memory(cache)
    _, cache = step(params, cache, prompts[0][:, :1], 0)
    assert memory(cache) == before
    for part in cache:
        assert [shard.device.id for shard in part.addressable_shards] == [0, 1]
    # What moves in a step: the activations of one token a sequence.
    causes = step.residence().causes
    print("transfers and bytes of a step:", causes)
    assert causes.keys() <= {"activations", "small"} and causes["activations"][0] == 1


if __name__ == "__main__":
    main()
