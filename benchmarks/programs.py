"""Training steps as MLIR text, for benchmarks of the compiler alone."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.frontend.trace import trace

WIDTH, ROWS, SEQUENCES = 16, 8, 2


def block(p: dict[str, Any], x: jax.Array) -> jax.Array:
    """A small transformer block with one attention head, about 54 StableHLO ops; `x` is (rows, width)."""
    y = x - x.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * p["scale"]
    q, k, v = y @ p["q"], y @ p["k"], y @ p["v"]
    weights = jax.nn.softmax(q @ k.T * 0.25)
    x = x + weights @ v @ p["o"]
    return x + jnp.tanh(x @ p["up"]) @ p["down"]


def parameters(stages: int) -> list[dict[str, jax.ShapeDtypeStruct]]:
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    one = dict.fromkeys(("q", "k", "v", "o", "up", "down"), square)
    return [{**one, "scale": jax.ShapeDtypeStruct((WIDTH,), jnp.float32)} for _ in range(stages)]


@functools.cache
def training_step(stages: int, microbatches: int, sharded: str | None = None) -> str:
    """`stages` x `microbatches` of `block`, each microbatch one call, gradients accumulated, then SGD.

    `sharded` over the axis of the meshes: `"batch"`, of which each microbatch has two sequences; or the `"rows"` of one
    sequence, which attention compares with each other, so that Shardy has to decide what to gather.
    """
    layer = jax.vmap(block, (None, 0)) if sharded == "batch" else block

    def loss(ps: list[Any], x: jax.Array) -> jax.Array:
        for s, p in enumerate(ps):
            x = mt.named_computation(layer, name=f"s{s}")(p, x)
        return (x * x).mean()

    def step(ps: list[Any], batch: jax.Array) -> Any:
        grads = None
        for m in range(microbatches):
            found = mt.call(jax.grad(loss), call_counter=m)(ps, batch[m])
            grads = found if grads is None else jax.tree.map(jnp.add, grads, found)
        return jax.tree.map(lambda p, g: p - 0.1 * g, ps, grads)

    sequences = (SEQUENCES,) if sharded == "batch" else ()
    batch = jax.ShapeDtypeStruct((microbatches, *sequences, ROWS, WIDTH), jnp.float32)
    if sharded is None:
        return trace(step, parameters(stages), batch).mlir_text(debug_info=False)
    mesh = AbstractMesh((2,), ("x",))
    rows = NamedSharding(mesh, PartitionSpec(None, "x"))
    traced = trace(step, parameters(stages), batch, in_shardings=(None, rows), meshes=(mesh,))
    return traced.mlir_text(debug_info=False)


def arguments(stages: int, microbatches: int) -> dict[str, Any]:
    """Arguments of `mpmd_trace.compiler.partition` for `training_step`: one stage per mesh of two devices."""
    return {
        "func_name": "step",
        "named_meshes": [(f"m{s}", [("x", 2)]) for s in range(stages)],
        "assignment": {f"s{s}": f"m{s}" for s in range(stages)},
        "input_meshes": [None] * (7 * stages + 1),
        "output_meshes": [None] * (7 * stages),
        "donate_argnums": [],
        "partitioning_options": {"mpmd_infer_transfers": True, "mpmd_pipeline_schedule": "1F1B"},
    }
