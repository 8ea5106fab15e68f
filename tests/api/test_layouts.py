"""Layouts by list: how many layers each stage has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt
from pipelines import assert_same
from util import normal

WIDTH = 4


def topology(count: int) -> dict[str, Mesh]:
    return {f"m{i}": Mesh(jax.devices()[:1], "x") for i in range(count)}


def block(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ w), None


def stacked(ws: dict[str, Any], x: jax.Array) -> jax.Array:
    x = mt.named_computation(lambda w, x: x @ w, name="embedding")(ws["embedding"], x)
    x, _ = mt.scan(block, x, ws["blocks"], name="blocks")
    return mt.named_computation(lambda w, x: jnp.mean((x @ w) ** 2), name="loss")(ws["head"], x)


def unrolled(ws: dict[str, Any], x: jax.Array) -> jax.Array:
    x = mt.named_computation(lambda w, x: x @ w, name="embedding")(ws["embedding"], x)
    for i in range(ws["blocks"].shape[0]):
        x = mt.named_computation(lambda w, x: block(x, w)[0], name=f"block{i}")(ws["blocks"][i], x)
    return mt.named_computation(lambda w, x: jnp.mean((x @ w) ** 2), name="loss")(ws["head"], x)


def weights(layers: int) -> dict[str, jax.Array]:
    shape = WIDTH, WIDTH
    return {"embedding": normal(0, *shape), "blocks": normal(1, layers, *shape), "head": normal(2, *shape)}


def check(loss: Any, layers: int, meshes: int, counts: list[int], schedule: str) -> mt.config.Config:
    def step(ws: Any, batch: jax.Array) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=4)(ws, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

    ws, batch = weights(layers), normal(3, 8, WIDTH)
    config = mt.make_config(topology(meshes), counts, pipeline_schedule=schedule)
    lowered = mt.jit(step, config).lower(ws, batch)
    assert_same(mt.fetch(lowered.compile()(ws, batch)), jax.jit(step)(ws, batch))
    return lowered.config


def test_layers_of_a_scan_are_divided_as_listed() -> None:
    config = check(stacked, 6, 3, [3, 4, 1], "1F1B")
    assert config.name_to_mesh_assignment == {"embedding": "m0", "blocks[0:2]": "m0", "blocks[2:6]": "m1", "loss": "m2"}


def test_embedding_and_loss_can_be_stages_of_their_own() -> None:
    config = check(unrolled, 2, 3, [1, 2, 1], "zb-h1")
    assert config.name_to_mesh_assignment == {"embedding": "m0", "block0": "m1", "block1": "m1", "loss": "m2"}


@pytest.mark.parametrize("schedule", ["1F1B", "zb-h1", "GPipe"])
def test_a_mesh_may_have_no_layers(schedule: str) -> None:
    config = check(unrolled, 2, 3, [3, 0, 1], schedule)
    assert "m1" not in config.name_to_mesh_assignment.values()


@pytest.mark.parametrize(
    ("schedule", "meshes"), [("interleaved-1f1b", ["m0", "m1", "m0", "m1"]), ("zb-v", ["m0", "m1", "m1", "m0"])]
)
def test_more_numbers_than_meshes_are_rounds(schedule: str, meshes: list[str]) -> None:
    config = check(stacked, 5, 2, [2, 2, 1, 2], schedule)
    assigned = dict(zip(config.name_to_stage_assignment.values(), config.name_to_mesh_assignment.values(), strict=True))
    assert [assigned[s] for s in range(4)] == meshes
    assert config.name_to_stage_assignment["blocks[3:4]"] == 2


@pytest.mark.parametrize("counts", [[np.int64(2), np.int32(3)], np.array([2, 3]), jnp.array([2, 3]), (2, 3)])
def test_numbers_may_be_those_of_arrays(counts: Any) -> None:
    config = mt.make_config(topology(2), counts, pipeline_schedule="1F1B")
    assert config.layers_per_stage == (2, 3)
    assert all(type(n) is int for n in config.layers_per_stage)


def test_a_mesh_that_was_given_no_layers_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    config = mt.make_config(topology(3), [3, 0, 1])
    mt.jit(unrolled, config).lower(weights(2), jnp.ones((2, WIDTH))).compile()
    assert "nothing to do" not in caplog.text


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([2, 3, 3], r"\[2, 3, 3\] has numbers of layers for 3 stages, and there are 2 meshes \(m0, m1\)"),
        ([2, -1], "they are 0 or more, and one is above 0"),
        ([0, 0], "they are 0 or more, and one is above 0"),
        ([1.5, 2], "As a list it has whole numbers"),
        (np.array([1.5, 2]), "As a list it has whole numbers"),
        ([True, 2], "As a list it has whole numbers"),
        (np.ones((2, 2), int), "name_to_mesh_assignment has the key"),
        (b"ab", "name_to_mesh_assignment maps names to values"),
        ([2, 0, 1, 1], "leaves stage 1 empty. Only with one stage per mesh may one be empty"),
    ],
)
def test_lists_that_cannot_be(counts: list[Any], message: str) -> None:
    with pytest.raises(mt.MpmdError, match=message):
        mt.make_config(topology(2), counts, pipeline_schedule="1F1B")


def test_a_list_for_another_number_of_layers_names_them() -> None:
    config = mt.make_config(topology(2), [3, 4], pipeline_schedule="1F1B")
    grad = mt.jit(lambda ws, x: jax.grad(stacked)(ws, x), config)
    with pytest.raises(
        mt.MpmdError, match=r"places 7 layers, and the program has 8: 'embedding', 'blocks' \(6 layers\)"
    ):
        grad.lower(weights(6), jnp.ones((2, WIDTH)))


def test_it_says_what_was_listed() -> None:
    config = mt.make_config(topology(2), [3, 4, 1, 2], pipeline_schedule="interleaved-1f1b")
    assert "[3, 4, 1, 2]" in repr(config)
    assert "3 + 1 layers" in str(config.table)
