"""Generation over a pipeline, with requests that come and go: the cache of keys and values stays with its layers, and
is written in place.

    python examples/generate.py

The model is that of `llama.py`.  A batch has a fixed number of slots.  A request takes a slot that is free, where one
program reads its prompt; another program writes the next token of all slots, each at its own position; and a request
that is done leaves its slot to the next one.  Both take the same parameters and the same cache.  A pipeline of two
stages is busy as long as there are two batches: while the second stage works on the one, the first works on the other.
"""

import collections
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from llama import HEAD, KV_HEADS, LAYERS, VOCABULARY, embed, finish, init, norm, project

import mpmd_trace as mt

SLOTS, REQUESTS, PROMPT, LENGTH = 4, 12, 8, 16

devices = np.array(jax.devices())
config = mt.make_config(
    {"m0": Mesh(devices[:1], ("data",)), "m1": Mesh(devices[1:2], ("data",))},
    {"embed": "m0", "blocks": ["m0", "m1"], "head": "m1"},
    output_mesh_assignment=("m0", None),  # a token that is written is where the next step reads it
)


def write(params, cache, tokens, starts, slot, count):
    """The next tokens of the requests in the slots from `slot` on, after reading the first `count` of `tokens` each.

    `tokens` is `(slots, length)`, and `starts` says at which position each row begins.
    """
    rows = tokens.shape[0]
    positions = starts[:, None] + jnp.arange(tokens.shape[1])
    visible = jnp.arange(LENGTH) <= positions[..., None]
    slots = slot + jnp.arange(rows)[:, None]

    def block(x, part):
        layer, (keys, values) = part
        q, k, v = project(x, layer, positions)
        keys, values = keys.at[slots, positions].set(k), values.at[slots, positions].set(v)
        own = [jax.lax.dynamic_slice_in_dim(c, slot, rows) for c in (keys, values)]
        attended = jax.nn.dot_product_attention(q, *own, mask=visible[:, None])
        return finish(x, attended, layer), (keys, values)

    def head(embedding, scale, x, count):
        last = jax.lax.dynamic_slice_in_dim(x, count - 1, 1, axis=1)
        return jnp.argmax(norm(last, scale) @ embedding.T, axis=-1)

    x = mt.named_computation(embed, name="embed")(params["embedding"], tokens)
    x, cache = mt.scan(block, x, (params["blocks"], cache), name="blocks")  # the cache has an axis for the layers, too
    return mt.named_computation(head, name="head")(params["head"], params["norm"], x, count), cache


def empty(slots=SLOTS):
    """A cache of keys and values for a batch."""
    return tuple(jnp.zeros((2, LAYERS, slots, LENGTH, KV_HEADS, HEAD)))


class Batch:
    """Slots, and who is in them."""

    def __init__(self, cache):
        slots = cache[0].shape[1]
        self.cache = cache
        self.tokens = jnp.zeros((slots, 1), int)
        self.starts = np.zeros(slots, int)
        self.requests = [None] * slots


def serve(read, step, params, caches, requests):
    """What is written for each request, `(prompt, how many tokens)`, and the seconds that all of it took."""
    waiting = collections.deque(range(len(requests)))
    written = [[] for _ in requests]
    batches = [Batch(cache) for cache in caches]
    started = time.perf_counter()
    while waiting or any(number is not None for batch in batches for number in batch.requests):
        for batch in batches:  # nothing waits for a result here, so the stages work on different batches
            for slot, number in enumerate(batch.requests):
                if number is None and waiting:
                    batch.requests[slot] = number = waiting.popleft()
                    prompt = requests[number][0]
                    padded = np.pad(prompt, (0, PROMPT - len(prompt)))[None]
                    token, batch.cache = read(params, batch.cache, padded, np.zeros(1, int), slot, len(prompt))
                    batch.tokens = batch.tokens.at[slot].set(token[0])
                    batch.starts[slot] = len(prompt)
                    written[number].append((token, 0))
            batch.tokens, batch.cache = step(params, batch.cache, batch.tokens, batch.starts.copy(), 0, 1)
            for slot, number in enumerate(batch.requests):
                if number is not None:
                    batch.starts[slot] += 1
                    written[number].append((batch.tokens, slot))
                    if len(written[number]) >= requests[number][1]:
                        batch.requests[slot] = None
    jax.block_until_ready([batch.cache for batch in batches])
    seconds = time.perf_counter() - started
    return [[int(np.asarray(tokens)[slot, 0]) for tokens, slot in tokens] for tokens in written], seconds


def programs(jitted, params, cache):
    """That which reads a prompt into a slot, and that which writes the next token of all slots."""
    slots = cache[0].shape[1]
    return [
        jitted.lower(params, cache, jnp.zeros(shape, int), np.zeros(shape[0], int), 0, 1).compile()
        for shape in ((1, PROMPT), (slots, 1))
    ]


def main():
    params = init(jax.random.key(0))
    params["head"] = params["embedding"]  # tied; each end of the pipeline has a copy, so that none is sent in a step
    random = np.random.default_rng(0)
    requests = [
        (random.integers(VOCABULARY, size=random.integers(1, PROMPT + 1)), random.integers(2, LENGTH - PROMPT + 1))
        for _ in range(REQUESTS)
    ]

    # One mesh: a batch with all slots.
    cache = empty(2 * SLOTS)
    expected, alone = serve(*programs(jax.jit(write, donate_argnums=1), params, cache), params, [cache], requests)

    # Two stages: as many slots, in two batches.  Who is with whom in a batch changes no request.
    read, step = programs(mt.jit(write, config, donate_argnums=1), params, empty())
    (params,) = mt.place(step, params)  # one copy serves both programs
    caches = [mt.create(empty, read, argnums=1) for _ in range(2)]  # each layer's part is made on the layer's mesh
    found, together = serve(read, step, params, caches, requests)
    assert found == expected and [len(tokens) for tokens in found] == [count for _, count in requests]
    count = sum(map(len, found))
    print(f"{count / together:.0f} tokens a second over two meshes, {count / alone:.0f} on one")

    # The cache is written where it is: its memory is that of the cache that was given, in both programs.
    def memory(cache):
        return [shard.data.unsafe_buffer_pointer() for part in cache for shard in part.addressable_shards]

    cache = mt.create(empty, read, argnums=1)
    before = memory(cache)
    token, cache = read(params, cache, np.ones((1, PROMPT), int), np.zeros(1, int), 2, 3)
    _, cache = step(params, cache, np.ones((SLOTS, 1), int), np.full(SLOTS, 3), 0, 1)
    assert memory(cache) == before and token.devices() == {devices[0]}
    for part in cache:
        assert [shard.device.id for shard in part.addressable_shards] == [0, 1]
    # What each mesh holds: its end of the model, its layers, and the cache of these.
    half = sum(x.nbytes for x in jax.tree.leaves((params["blocks"], cache))) // 2
    ends = {"m0": params["embedding"].nbytes, "m1": params["head"].nbytes + params["norm"].nbytes}
    for mesh, found in step.memory_analysis().items():
        print(f"{mesh} holds {found.arguments} bytes")
        assert 0 <= found.arguments - (half + ends[mesh]) <= 64  # tokens and positions
    # What moves in a step: the activations of one token a sequence.
    causes = step.placement_report().causes
    print("transfers and bytes of a step:", causes)
    assert causes.keys() <= {"activations", "small"} and causes["activations"][0] == 1


if __name__ == "__main__":
    main()
