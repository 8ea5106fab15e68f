"""A transformer under every schedule, generation and offloading, over processes; each of them runs this script.

    mpmd-trace launch -n 4 --devices 8 tests/processes/grid.py [--size 2] [--deal blocks] [NAME ...]

Stages are on as many meshes as the schedule has, of `--size` devices each, dealt out to the processes in turns, in
blocks of neighbors, or unevenly (process 0 has all but the last ones).  The results are those of the same meshes in
process 0 alone, bit for bit, and those of `jax.jit` but for rounding.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from together import close, same, values

import mpmd_trace as mt
from mpmd_trace import schedules
from mpmd_trace.equinox import name_layers

MESHES, MICROBATCHES, ROWS, LENGTH, WIDTH, VOCABULARY = 4, 8, 2, 6, 8, 11
#: They go back through the microbatches from the last one; so must the program that adds up.
REVERSED = ("looped-bfs", "circular-with-reversed-backward")
#: Each half of the microbatches has its own names.
TWO_CHAINS = ("dualpipe",)
EXPECTED: dict[object, Any] = {}


class Block(eqx.Module):
    """Attention and a feed-forward network, each behind a norm."""

    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        def one(x: jax.Array) -> jax.Array:
            y = jax.vmap(self.norms[0])(x)
            x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((LENGTH, LENGTH), bool)))
            y = jax.vmap(self.norms[1])(x)
            return x + jax.vmap(lambda y: self.down(jax.nn.gelu(self.up(y))))(y)

        return jax.vmap(one)(x)


#: The process of each mesh, for its number, the number of meshes and that of processes.
DEALS: dict[str, Callable[[int, int, int], int]] = {
    "turns": lambda i, meshes, processes: i % processes,
    "blocks": lambda i, meshes, processes: i * processes // meshes,
    "unevenly": lambda i, meshes, processes: max(0, i - meshes + processes),
}
DEAL = "turns"


def topology(meshes: int, size: int, here: bool) -> dict[str, Mesh]:
    """The meshes, dealt out to the processes, or all of them here."""
    processes, local = jax.process_count(), iter(jax.local_devices())
    free = [iter(jax.local_devices(process_index=p)) for p in range(processes)]
    found = {}
    for i in range(meshes):
        owner = free[DEALS[DEAL](i, meshes, processes)]
        theirs = [next(owner) for _ in range(size)]
        found[f"m{i}"] = Mesh(np.array([next(local) for _ in theirs] if here else theirs), ("data",))
    return found


def compare(
    step: Callable[..., Any],
    args: Any,
    made: Callable[[dict[str, Mesh]], mt.stages.Jitted],
    meshes: int,
    size: int,
    steps: int = 2,
    key: object = None,
) -> None:
    """Call the step on its own first result: everywhere, in process 0 alone, and with `jax.jit`.

    Programs with the same key have the same results but for rounding: `jax.jit` computes those once.
    """

    def several(fn: Callable[..., Any]) -> Any:
        state, *rest = args
        for _ in range(steps):
            state, out = fn(state, *rest)
        return state, out

    found = mt.fetch(several(made(topology(meshes, size, False))))
    if jax.process_index() == 0:
        same(found, values(several(made(topology(meshes, size, True)))))
        key = key or step
        if key not in EXPECTED:
            with jax.default_device(jax.local_devices()[0]):
                EXPECTED[key] = values(several(jax.jit(step)))
        close(found, EXPECTED[key])


def trained(name: str, size: int) -> None:
    """Two steps of gradient descent under a schedule."""
    schedule = schedules.get_schedule(name, MESHES, MICROBATCHES, guard=False)
    chains = ("down_", "up_") if name in TWO_CHAINS else ("",)
    keys = jax.random.split(jax.random.key(0), schedule.stages // len(chains))
    parameters, static = eqx.partition([Block(k) for k in keys], eqx.is_array)
    parameters = jax.tree.map(np.asarray, parameters)
    batch = np.random.default_rng(1).normal(size=(MICROBATCHES, ROWS * size, LENGTH, WIDTH)).astype(np.float32)

    def loss(chain: str, parameters: Any, x: jax.Array) -> jax.Array:
        for block in name_layers(eqx.combine(parameters, static), lambda m: m, name=lambda n: f"{chain}{n}"):
            x = block(x)
        return jnp.mean(x**2)

    def step(parameters: Any, batch: Any) -> Any:
        totals: dict[str, Any] = {}
        for i in reversed(range(MICROBATCHES)) if name in REVERSED else range(MICROBATCHES):
            chain = chains[i * len(chains) // MICROBATCHES]
            found = mt.call(jax.value_and_grad(functools.partial(loss, chain)), call_counter=i)(parameters, batch[i])
            totals[chain] = jax.tree.map(jnp.add, totals[chain], found) if chain in totals else found
        value, grads = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), totals.values())
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, grads), value

    layers = [f"{chain}{number}" for chain in chains for number in range(len(static))]
    places = schedule.placement.mesh_of
    if len(chains) == 2:  # the stages of the second chain are in the order of the model, too
        half = schedule.stages // 2
        assert schedule.model_stage == (*range(half), *range(half))
    names = {layer: (f"m{places[stage]}", stage) for stage, layer in enumerate(layers)}

    def made(meshes: dict[str, Mesh]) -> mt.stages.Jitted:
        config = mt.make_config(meshes, names, pipeline_schedule=name)
        rows = NamedSharding(meshes[f"m{places[0]}"], PartitionSpec(None, "data"))
        shardings = (None, rows) if size > 1 and len(chains) == 1 else None
        return mt.jit(step, config, in_shardings=shardings, donate_argnums=0 if size == 1 else ())

    compare(step, (parameters, batch), made, schedule.meshes, size, key=(len(keys), size))


def generated(size: int) -> None:
    """Tokens one after the other; each mesh keeps and writes the keys of its own layers."""
    keys = jax.random.split(jax.random.key(0), MESHES + 1)
    weights = [np.asarray(jax.random.normal(k, (WIDTH, WIDTH))) for k in keys[1:]]
    table = np.asarray(jax.random.normal(keys[0], (VOCABULARY, WIDTH)))

    def layer(w: Any, cache: Any, x: Any, at: Any) -> Any:
        cache = jax.lax.dynamic_update_slice_in_dim(cache, (x @ w)[:, None], at, axis=1)
        visible = jnp.arange(LENGTH) <= at
        scores = jnp.where(visible, jnp.einsum("bd,bld->bl", x, cache), -jnp.inf)
        return jnp.tanh(x + jnp.einsum("bl,bld->bd", jax.nn.softmax(scores), cache)), cache

    def step(state: Any, weights: Any, table: Any) -> Any:
        token, at, caches = state
        x = mt.named_computation(lambda t, i: t[i], name="embed")(table, token)
        written = []
        for i, (w, cache) in enumerate(zip(weights, caches, strict=True)):
            x, cache = mt.named_computation(layer, name=f"layer{i}")(w, cache, x, at)
            written.append(cache)
        token = mt.named_computation(lambda t, x: jnp.argmax(x @ t.T, -1), name="head")(table, x).astype(jnp.int32)
        return (token, at + 1, written), token

    caches = [np.zeros((ROWS, LENGTH, WIDTH), np.float32) for _ in weights]
    state = np.zeros(ROWS, np.int32), np.int32(0), caches
    names = {"embed": "m0", **{f"layer{i}": f"m{i}" for i in range(MESHES)}, "head": f"m{MESHES - 1}"}

    def made(meshes: dict[str, Mesh]) -> mt.stages.Jitted:
        config = mt.make_config(meshes, names, output_mesh_assignment=(("m0", None, None), None))
        return mt.jit(step, config, donate_argnums=0)

    compare(step, (state, weights, table), made, MESHES, size, steps=LENGTH)


def fitted(size: int) -> None:
    """What forwards leave is in host memory until the backward, or made again."""
    keys = jax.random.split(jax.random.key(0), MESHES)
    weights = [np.asarray(0.3 * jax.random.normal(k, (2 * WIDTH, 2 * WIDTH))) for k in keys]
    batch = np.asarray(jax.random.normal(jax.random.key(1), (MICROBATCHES * 64, 2 * WIDTH)))

    def loss(weights: Any, x: Any) -> Any:
        for i, w in enumerate(weights):
            x = mt.named_computation(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w), name=f"layer{i}")(w, x)
        return jnp.mean(x**2)

    def step(weights: Any, batch: Any) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=MICROBATCHES)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    names = {f"layer{i}": f"m{i}" for i in range(MESHES)}

    def peak(**options: Any) -> int:
        """The most bytes on a device that the step needs with these options; its results are compared."""

        def made(meshes: dict[str, Mesh]) -> mt.stages.Jitted:
            return mt.jit(step, mt.make_config(meshes, names, pipeline_schedule="1F1B", **options))

        compare(step, (weights, batch), made, MESHES, size)
        compiled = made(topology(MESHES, size, False)).lower(weights, batch).compile()
        return max(compiled.program.peaks.values())

    most = peak()
    assert peak(offload="auto", device_memory=most - 1) < most
    assert peak(remat="auto", device_memory=most - 1) < most


def does_not_grow(size: int) -> None:
    """Two hundred steps leave nothing behind."""
    keys = jax.random.split(jax.random.key(0), MESHES)
    weights = [np.asarray(0.05 * jax.random.normal(k, (256, 256))) for k in keys]
    batch = np.asarray(jax.random.normal(jax.random.key(1), (4 * 512, 256)))  # an activation is 512 KiB

    def loss(weights: Any, x: Any) -> Any:
        for i, w in enumerate(weights):
            x = mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{i}")(w, x)
        return jnp.mean(x**2)

    def step(weights: Any, batch: Any) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=4)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    config = mt.make_config(
        topology(MESHES, size, False), {f"layer{i}": f"m{i}" for i in range(MESHES)}, pipeline_schedule="1F1B"
    )
    jitted, before = mt.jit(step, config, donate_argnums=0), 0
    for number in range(230):
        weights, _ = jitted(weights, batch)
        if number == 30:
            before = resident()
    grown = resident() - before
    print(f"{grown / 2**20:.0f} MiB more after 200 steps", flush=True)
    assert grown < 60 << 20, grown


def resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run those that are named, or all."""
    global DEAL
    mt.initialize()
    names = [n for n in schedules.schedule_names() if not schedules.find_entry(n).forward_only]
    others = {"generation": generated, "fit": fitted, "growth": does_not_grow}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*names, *others], help=", ".join([*names, *others]))
    parser.add_argument("--size", type=int, default=1, help="devices of a mesh")
    parser.add_argument("--deal", choices=list(DEALS), default=DEAL, help="which process has which mesh")
    wanted = parser.parse_args()
    DEAL = wanted.deal
    for name in wanted.names:
        others[name](wanted.size) if name in others else trained(name, wanted.size)
        print("equal", name, flush=True)


if __name__ == "__main__":
    sys.exit(main())
