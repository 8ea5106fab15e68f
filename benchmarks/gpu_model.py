"""A decoder language model in Equinox, for the checks on GPUs; all meshes share the first device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

import mpmd_trace as mt


class Size(NamedTuple):
    width: int
    heads: int
    context: int
    vocabulary: int
    microbatches: int
    rows: int
    layers: int


TINY = Size(64, 4, 32, 64, 4, 2, 4)
SIZES = {
    "tiny": TINY,
    "small": Size(512, 8, 256, 1024, 8, 2, 8),
    "middle": Size(1024, 8, 512, 1024, 8, 4, 4),
    "big": Size(2048, 16, 1024, 8192, 8, 4, 8),
}


class Block(eqx.Module):
    before: eqx.nn.RMSNorm
    between: eqx.nn.RMSNorm
    qkv: jax.Array
    out: jax.Array
    up: jax.Array
    gate: jax.Array
    down: jax.Array
    heads: int = eqx.field(static=True)
    attention: str = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def __init__(self, size: Size, key: jax.Array, attention: str, dtype: Any) -> None:
        d, keys = size.width, jax.random.split(key, 5)
        shapes = ((d, 3 * d), (d, d), (d, 4 * d), (d, 4 * d), (4 * d, d))
        made = [jax.random.normal(k, shape) * shape[0] ** -0.5 for k, shape in zip(keys, shapes, strict=True)]
        self.qkv, self.out, self.up, self.gate, self.down = made
        self.before, self.between = eqx.nn.RMSNorm(d), eqx.nn.RMSNorm(d)
        self.heads, self.attention, self.dtype = size.heads, attention, dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        rows, context, width = x.shape
        h = jax.vmap(jax.vmap(self.before))(x).astype(self.dtype)
        heads = (h @ self.qkv.astype(self.dtype)).reshape(rows, context, 3 * self.heads, width // self.heads)
        q, k, v = jnp.split(heads, 3, axis=2)
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.attention)
        x = x + a.reshape(rows, context, width) @ self.out.astype(self.dtype)
        h = jax.vmap(jax.vmap(self.between))(x).astype(self.dtype)
        up = jax.nn.silu(h @ self.gate.astype(self.dtype)) * (h @ self.up.astype(self.dtype))
        return x + up @ self.down.astype(self.dtype)


class Model(eqx.Module):
    embedding: jax.Array
    blocks: list[Block]
    head: jax.Array

    def __init__(self, size: Size, key: jax.Array, attention: str, dtype: Any) -> None:
        keys = jax.random.split(key, size.layers + 2)
        self.embedding = jax.random.normal(keys[0], (size.vocabulary, size.width)) * 0.02
        self.head = jax.random.normal(keys[1], (size.width, size.vocabulary)) * size.width**-0.5
        self.blocks = [Block(size, key, attention, dtype) for key in keys[2:]]


class Case(NamedTuple):
    """A training step, how it is placed, and its arguments: parameters, optimizer state and batch."""

    step: Callable[..., Any]
    config: mt.config.Config
    args: tuple[Any, Any, Any]


def make(size: Size, meshes: int, *, attention: str = "xla", dtype: Any = jnp.bfloat16, **options: Any) -> Case:
    """Return the step of a model on so many meshes, which all are the first device."""
    optimizer = optax.adamw(1e-5)
    model = eqx.filter_jit(Model)(size, jax.random.key(0), attention, dtype)
    parameters, static = eqx.partition(model, eqx.is_array)

    def loss(parameters: Any, tokens: jax.Array) -> jax.Array:
        m = eqx.combine(parameters, static)
        x = mt.named_computation(lambda e, t: e[t].astype(dtype), name="embedding")(m.embedding, tokens)
        for i, block in enumerate(m.blocks):
            x = mt.named_computation(lambda b, x: b(x), name=f"block{i}")(block, x)
        last = mt.named_computation(lambda o, x: (x @ o.astype(dtype)).astype(jnp.float32), name="head")
        losses = optax.softmax_cross_entropy_with_integer_labels(last(m.head, x)[:, :-1], tokens[:, 1:])
        return losses.mean() / size.microbatches

    def step(parameters: Any, state: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters))
        value, grads = mt.enumerated_for(
            lambda i, total, x: jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(parameters, x)), start, batch
        )
        updates, state = optimizer.update(grads, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    where = {f"block{i}": f"m{i * meshes // size.layers}" for i in range(size.layers)}
    where |= {"embedding": "m0", "head": f"m{meshes - 1}"}
    topology = {f"m{i}": Mesh(np.array(jax.devices()[:1]), ("data",)) for i in range(meshes)}
    config = mt.make_config(topology, where, **options)
    shape = (size.microbatches, size.rows, size.context)
    batch = np.random.default_rng(0).integers(0, size.vocabulary, shape).astype(np.int32)
    return Case(step, config, (parameters, jax.jit(optimizer.init)(parameters), batch))


def program() -> mt.Program:
    """Return the smallest model in float32 on four meshes, for `mpmd-trace run`."""
    case = make(TINY, 4, dtype=jnp.float32, pipeline_schedule="1F1B")

    def step(parameters: Any, state: Any, batch: jax.Array) -> Any:
        with jax.default_matmul_precision("highest"):
            return case.step(parameters, state, batch)

    return mt.Program(step, case.args, case.config)


def timed(step: Callable[..., Any], args: tuple[Any, Any, Any], steps: int = 5) -> dict[str, float]:
    """Return the seconds of the first step, the milliseconds of a step and of a call until it returns, and the loss."""
    parameters, state, batch = (*jax.tree.map(jnp.copy, args[:2]), jnp.asarray(args[2]))

    def run(count: int) -> float:
        nonlocal parameters, state, loss
        start = time.perf_counter()
        for _ in range(count):
            parameters, state, loss = step(parameters, state, batch)
        called = time.perf_counter() - start
        jax.block_until_ready((parameters, state, loss))
        seconds.append((time.perf_counter() - start) / count)
        return called / count

    loss: Any = None
    seconds: list[float] = []
    run(1)
    first = seconds.pop()
    run(2)
    seconds.clear()
    for _ in range(3):
        run(steps)
    calls = sorted(run(1) for _ in range(5))
    return {
        "first step s": round(first, 2),
        "step ms": round(1e3 * sorted(seconds[:3])[1], 2),
        "call ms": round(1e3 * calls[2], 2),
        "loss": float(loss),
    }
