"""`mpmd-mark-aliasing-and-donation`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import mpmd_trace


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_updates_copy_no_gradients(donated: tuple[int, ...]) -> None:
    """XLA copies an operand whose place a result takes that is there too early, and pairs what is left."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    config = mpmd_trace.make_config(
        {"a": mesh, "b": Mesh(np.array(jax.devices()[1:2]), ("data",))},
        {"one": "a", "two": "b"},
        pipeline_schedule="1F1B",
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def loss(w: Any, x: jax.Array) -> jax.Array:
        x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name="one")(w[0], x)
        return mpmd_trace.named_computation(lambda w, x: jnp.mean((x @ w) ** 2), name="two")(w[1], x)

    def step(w: Any, state: Any, batch: jax.Array) -> Any:
        def microbatch(i: jax.Array, total: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x))

        grads = mpmd_trace.enumerated_for(microbatch, jax.tree.map(jnp.zeros_like, w), batch)
        updates, state = optimizer.update(grads, state, w)
        return optax.apply_updates(w, updates), state

    rng = np.random.default_rng(0)
    w = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
    args = w, optimizer.init(w), rng.normal(size=(4, 3, 8)).astype(np.float32)
    compiled = mpmd_trace.jit(step, config, donate_argnums=donated).lower(*args).compile()
    updates = [one.as_text() for one in compiled.executables() if "power" in one.as_text()]
    assert len(updates) == 2 and not any("f32[8,8]{1,0} copy(" in text for text in updates)
    for wanted, got in zip(*(jax.tree.leaves(f(*args)) for f in (jax.jit(step), compiled)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
