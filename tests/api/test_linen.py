"""Flax Linen: submodules that are named from outside, over several meshes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import mpmd_trace as mt
from mpmd_trace.linen import name_layers
from pipelines import assert_same, topology


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return x + nn.Dropout(0.3, deterministic=not train)(jnp.tanh(y))


class Model(nn.Module):
    def setup(self) -> None:
        self.embed = nn.Embed(5, 4)
        self.blocks = [Block() for _ in range(2)]

    def __call__(self, tokens: jax.Array, train: bool = True) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, train)
        return self.embed.attend(x)


class State(TrainState):
    batch_stats: Any


def step(state: State, tokens: jax.Array, key: jax.Array) -> tuple[State, jax.Array]:
    def loss(params: Any) -> tuple[jax.Array, Any]:
        logits, new = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats}, tokens, rngs={"dropout": key}, mutable=["batch_stats"]
        )
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(), new["batch_stats"]

    (value, batch_stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), value


def config() -> mt.config.Config:
    return mt.make_config(topology(size=1), {"blocks_0": "m0", "blocks_1": "m1"})


TOKENS = jnp.arange(6).reshape(2, 3) % 5


@functools.cache
def variables() -> Any:
    return Model().init(jax.random.key(0), TOKENS, train=False)


def state(apply: Any, tx: Any) -> State:
    return State.create(apply_fn=apply, params=variables()["params"], tx=tx, batch_stats=variables()["batch_stats"])


def test_a_train_state_trains_as_under_jax_jit_and_every_block_stays_on_its_mesh() -> None:
    tx, apply = optax.adam(1e-2), Model().apply
    ours, theirs = state(name_layers(apply, Block), tx), state(apply, tx)
    run, reference = mt.jit(step, config()), jax.jit(step)
    for i in range(2):
        key = jax.random.key(i)
        (ours, found), (theirs, wanted) = run(ours, TOKENS, key), reference(theirs, TOKENS, key)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert_same(jax.tree.leaves(ours), jax.tree.leaves(theirs), rtol=1e-4)
    for i in (0, 1):
        parts = (ours.params, ours.batch_stats, ours.opt_state[0].mu, ours.opt_state[0].nu)
        held = {d.id for part in parts for x in jax.tree.leaves(part[f"blocks_{i}"]) for d in x.devices()}
        assert held == {i}


def test_names_are_paths_and_no_tracer_stays() -> None:
    seen: list[str] = []

    def remember(name: str) -> str:
        seen.append(name)
        return name

    apply = name_layers(Model().apply, ["blocks_*", "blocks_1.Dense_0"], name=remember)
    plain = Model().apply(variables(), TOKENS, train=False)
    for _ in range(2):  # a tracer that stayed in a scope would be seen by the second call
        np.testing.assert_allclose(apply(variables(), TOKENS, train=False), plain, rtol=1e-6)
    assert seen == ["blocks_0", "blocks_1", "blocks_1_Dense_0"] * 2
    made = name_layers(Model().init, Block)(jax.random.key(0), TOKENS, train=False)
    assert jax.tree.structure(made) == jax.tree.structure(variables()), "init gives the same variables"
    names = mt.compiler.trace(lambda v: apply(v, TOKENS, train=False), variables()).names
    assert list(names) == ["blocks_0", "blocks_1", "blocks_1_Dense_0"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: name_layers(Model().apply, "block_0")(variables(), TOKENS, train=False),
            "there is no 'block_0' in the model, which has blocks_0, blocks_0.BatchNorm_0",
        ),
        (lambda: name_layers(Model(), Block), "takes a function, such as model.apply, not a Model"),
        (lambda: name_layers(Model().apply, [3]), "made of paths and classes, not 3"),
        (lambda: name_layers(Model().apply, Block, name="a,b"), "contains ','"),
    ],
)
def test_wrong_selections_are_errors(call: Any, text: str) -> None:
    with pytest.raises(mt.MpmdError, match=text):
        call()


def test_a_train_state_is_placed_and_saved_with_its_step_number(tmp_path: Path) -> None:
    tx = optax.sgd(1.0)
    fresh = state(Model().apply, tx)
    assert fresh.step == 0 and isinstance(fresh.step, int)
    count = mt.jit(lambda s: s.replace(step=s.step + 1), mt.make_config(config().topology, {})).lower(fresh).compile()
    (placed,) = mt.place(count, fresh)
    counted = count(placed)
    assert int(counted.step) == 1
    # A number in the first step, and an array afterwards: either is saved and restored as either.
    for folder, one in (("fresh", fresh), ("counted", counted)):
        mt.save(tmp_path / folder, one)
        assert int(count(mt.restore(tmp_path / folder, count)).step) == int(one.step) + 1
        for like in (fresh.replace(step=7), counted):
            restored = mt.restore(tmp_path / folder, like)
            assert int(restored.step) == int(one.step)
            assert isinstance(restored.step, int) == (one is fresh and like is not counted)
