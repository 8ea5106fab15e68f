"""Whatever passes of `jit` hand on is in the text: printed and read between all of them, the program is the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.passes.manager import PassRun
from pipelines import accumulate, batch, config, layer, loss, topology, weights

MICROBATCHES = 4
Step = tuple[Any, tuple[Any, ...], dict[str, Any]]


def training() -> Step:
    """Adam with clipping over microbatches, weights donated, in bfloat16 where they are used."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def small(ws: Any, x: jax.Array) -> jax.Array:
        return loss([w.astype(jnp.bfloat16) for w in ws], x.astype(jnp.bfloat16)).astype(jnp.float32)

    def step(ws: Any, state: Any, xs: jax.Array) -> Any:
        value, grads = accumulate(ws, xs, jax.value_and_grad(small))
        updates, state = optimizer.update(grads, state, ws)
        return optax.apply_updates(ws, updates), state, value

    ws = weights()
    return step, (ws, optimizer.init(ws), batch(MICROBATCHES)), {"donate_argnums": (0, 1)}


def sharded() -> Step:
    """Gradients over microbatches whose rows are sharded."""
    mesh = next(iter(topology().values()))
    shardings = (None, NamedSharding(mesh, PartitionSpec(None, "x")))
    return accumulate, (weights(), batch(MICROBATCHES)), {"in_shardings": shardings}


def forward() -> Step:
    """Forwards alone, of weights that nobody needs any more."""

    def step(ws: Any, xs: jax.Array) -> Any:
        def one(x: jax.Array) -> jax.Array:
            for i, w in enumerate(ws):
                x = mpmd_trace.named_computation(layer, name=f"f{i}")(w, x)
            return x

        return [mpmd_trace.call(one, call_counter=i)(xs[i]) for i in range(MICROBATCHES)]

    return step, (weights(), batch(MICROBATCHES)), {"donate_argnums": (0,)}


def read_again(run: PassRun, module: Module) -> None:
    """Put what the text says in the place of the module."""
    again = parse_generic(module.to_generic(debug_info=True))
    module.op, module.resources = again.op, again.resources


@pytest.mark.parametrize(("program", "schedule"), [(training, "1F1B"), (sharded, "zb-h1"), (forward, "GPipe")])
def test_the_program_is_the_same(program: Any, schedule: str) -> None:
    step, args, more = program()
    jitted = mpmd_trace.jit(step, config(pipeline_schedule=schedule), **more)
    straight = jitted.lower(*args, hooks=[lambda run, module: None]).partitioned.module
    assert straight.to_generic() == jitted.lower(*args, hooks=[read_again]).partitioned.module.to_generic()
