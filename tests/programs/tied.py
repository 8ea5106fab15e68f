"""A model whose first and last layer share a table, on two meshes of two devices; and one that only infers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import call, enumerated_for, named_computation

MICROBATCHES, ROWS, WIDTH, WORDS, LAYERS = 4, 4, 8, 32, 4
Parameters = dict[str, Any]


def logits(p: Parameters, tokens: jax.Array) -> jax.Array:
    x = named_computation(lambda table, t: table[t], name="embed")(p["table"], tokens)
    for i, w in enumerate(p["layers"]):
        x = named_computation(lambda w, x: x + jnp.tanh(x @ w[0]) @ w[1], name=f"layer_{i}")(w, x)
    return named_computation(lambda table, x: x @ table.T, name="head")(p["table"], x)


def loss(p: Parameters, tokens: jax.Array) -> jax.Array:
    return jnp.mean((logits(p, tokens) - jax.nn.one_hot(tokens, WORDS)) ** 2)


def train(p: Parameters, batch: jax.Array) -> Any:
    def microbatch(i: Any, total: Any, tokens: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(p, tokens))

    grads = enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, p), batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


def infer(p: Parameters, batch: jax.Array) -> list[jax.Array]:
    return [call(logits, i)(p, batch[i]) for i in range(MICROBATCHES)]


def program(fn: Any = train, stages: int = 2) -> mpmd_trace.Program:
    """`stages` 4: two per mesh, in a loop."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    meshes = {f"m{i}": Mesh(devices[i], ("data",)) for i in range(2)}
    names = ["embed", *(f"layer_{i}" for i in range(LAYERS)), "head"]
    where: dict[str, Any] = {name: f"m{2 * i // len(names)}" for i, name in enumerate(names)}
    if stages == 4:
        number = [0, 0, 1, 2, 3, 3]
        where = {name: (f"m{s % 2}", s) for name, s in zip(names, number, strict=True)}
    config = mpmd_trace.make_config(
        meshes,
        where,
        pipeline_schedule="GPipe" if stages == 2 else "looped-bfs",
        partitioning_options={"mpmd_infer_transfers": True},
    )
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return 0.1 * jnp.asarray(random.normal(size=shape), jnp.float32)

    p = {
        "table": normal(WORDS, WIDTH),
        "layers": [(normal(WIDTH, 4 * WIDTH), normal(4 * WIDTH, WIDTH)) for _ in range(LAYERS)],
    }
    batch = jnp.asarray(random.integers(0, WORDS, (MICROBATCHES, ROWS)), jnp.int32)
    spread = NamedSharding(meshes["m0"], PartitionSpec(None, "data"))
    return mpmd_trace.Program(fn, (p, batch), config, in_shardings=(None, spread), name="tied")


def inference() -> mpmd_trace.Program:
    return program(infer)


def inference_in_a_loop() -> mpmd_trace.Program:
    return program(infer, stages=4)
