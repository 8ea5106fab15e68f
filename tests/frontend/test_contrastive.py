"""Losses over the whole batch of rows that are embedded in microbatches, against plain `jax.jit`."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import mpmd_trace as mt
from mpmd_trace import MpmdError
from util import normal

WEIGHTS = {name: 0.5 * normal(i, 4, 4) for i, name in enumerate(("a0", "a1", "b0", "b1"))}
PARAMETERS = {**WEIGHTS, "scale": jnp.asarray(0.3)}
A, B = normal(4, 8, 4), normal(5, 8, 4)


def layer(name: str) -> Any:
    return mt.named_computation(lambda w, x: jnp.tanh(x @ w), name=name)


def embed(p: Any, a: jax.Array, b: jax.Array) -> Any:
    a = layer("a1")(p["a1"], layer("a0")(p["a0"], a))
    b = layer("b1")(p["b1"], layer("b0")(p["b0"], b))
    return {"a": a, "b": b}


def clip(p: Any, rows: Any) -> jax.Array:
    similar = rows["a"] @ rows["b"].T * jnp.exp(p["scale"])
    both = jax.nn.log_softmax(similar, 0) + jax.nn.log_softmax(similar, 1)
    return -jnp.mean(jnp.diagonal(both)) / 2


def whole(p: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    return clip(p, embed(p, a, b))


def same(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), got, want)


def test_gradients_are_those_of_the_whole_batch() -> None:
    want = jax.value_and_grad(whole)(PARAMETERS, A, B)
    for microbatches in (2, 8):
        same(mt.gradients.contrastive_value_and_grad(embed, clip, microbatches=microbatches)(PARAMETERS, A, B), want)
    other = mt.value_and_grad(whole, microbatches=2)(PARAMETERS, A, B)
    assert not np.allclose(other[0], want[0]), "which microbatches alone do not give"


@pytest.mark.parametrize(
    "assignment",
    [
        {"a0": "m0", "a1": "m0", "b0": "m1", "b1": "m1"},  # a tower on each mesh
        {"a0": "m0", "a1": "m1", "b0": "m0", "b1": "m1"},  # both over all of them
    ],
)
def test_two_towers_in_a_pipeline(assignment: dict[str, str]) -> None:
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(2)}

    def step(p: Any, a: jax.Array, b: jax.Array) -> Any:
        (value, aux), g = mt.gradients.contrastive_value_and_grad(
            embed, lambda p, r: (clip(p, r), r["a"][0]), microbatches=4, has_aux=True
        )(p, a, b)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, g), value, aux

    def plain(p: Any, a: jax.Array, b: jax.Array) -> Any:
        value, g = jax.value_and_grad(whole)(p, a, b)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, g), value, embed(p, a, b)["a"][0]

    lowered = mt.jit(step, mt.make_config(meshes, assignment, pipeline_schedule="1F1B")).lower(PARAMETERS, A, B)
    got = lowered.compile()(PARAMETERS, A, B)
    same(jax.device_get(got), jax.device_get(jax.jit(plain)(PARAMETERS, A, B)))
    for name, mesh in assignment.items():
        assert got[0][name].devices() == set(meshes[mesh].devices.flat), name


def test_towers_that_end_in_products_follow_1f1b() -> None:
    """Their last layers are linear, so that the second loop over microbatches runs them backward alone."""
    assignment = {"a0": "m0", "a1": "m1", "b0": "m2", "b1": "m3"}
    meshes = {f"m{i}": Mesh(np.array(jax.devices()[i : i + 1]), ("x",)) for i in range(4)}

    def linear(p: Any, a: jax.Array, b: jax.Array) -> Any:
        product = jnp.matmul
        a = mt.named_computation(product, name="a1")(layer("a0")(p["a0"], a), p["a1"])
        return {"a": a, "b": mt.named_computation(product, name="b1")(layer("b0")(p["b0"], b), p["b1"])}

    step = mt.gradients.contrastive_value_and_grad(linear, clip, microbatches=4)
    lowered = mt.jit(step, mt.make_config(meshes, assignment, pipeline_schedule="1F1B")).lower(PARAMETERS, A, B)
    want = jax.value_and_grad(lambda p: clip(p, linear(p, A, B)))(PARAMETERS)
    same(jax.device_get(lowered.compile()(PARAMETERS, A, B)), jax.device_get(want))


def test_narrow_gradients_are_summed_in_the_dtype_that_is_asked_for() -> None:
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMETERS)
    got = mt.gradients.contrastive_value_and_grad(embed, clip, microbatches=2, sum_dtype=jnp.float32)(narrow, A, B)
    assert {x.dtype for x in jax.tree.leaves(got[1])} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"embed": lambda p, a, b: jnp.mean(a, 0)}, "returns an array of shape [4] for 2 rows"),
        ({"embed": 3}, "embed is a function, not 3"),
        ({"microbatches": 3}, "the batch cannot be cut into 3 microbatches"),
        ({"a": A[:4]}, "the arrays of the batch have different numbers of rows: a has 4, b has 8. A microbatch has"),
        ({"microbatches": 0}, "microbatches is a Python int from 1 on, not 0"),
    ],
)
def test_wrong_calls(change: dict[str, Any], text: str) -> None:
    given = {"embed": embed, "loss": clip, "microbatches": 4, "a": A, **change}
    a = given.pop("a")
    with pytest.raises(MpmdError, match=re.escape(text)):
        mt.gradients.contrastive_value_and_grad(**given)(PARAMETERS, a, B)


def test_labels_and_keys_among_the_embeddings() -> None:
    labels, keys = jnp.arange(8) % 3, jax.random.split(jax.random.key(1), 8)

    def labelled(p: Any, a: jax.Array, labels: jax.Array, keys: jax.Array) -> Any:
        return layer("a0")(p["a0"], a), labels, labels > 0, keys, a[:, :0]

    def supervised(p: Any, rows: Any) -> jax.Array:
        a, labels, mask, keys, _ = rows
        noise = jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)
        alike = jnp.where(labels[:, None] == labels, 1.0, -1.0) * mask
        return jnp.mean(alike * (a @ (a + noise).T)) * p["scale"]

    def step(p: Any, *batch: Any) -> Any:
        return mt.gradients.contrastive_value_and_grad(labelled, supervised, microbatches=4)(p, *batch)

    p = {n: PARAMETERS[n] for n in ("a0", "scale")}
    want = jax.value_and_grad(lambda p: supervised(p, labelled(p, A, labels, keys)))(p)
    same(step(p, A, labels, keys), want)
    meshes = {"m0": Mesh(np.array(jax.devices()[:1]), ("x",))}
    same(jax.device_get(mt.jit(step, mt.make_config(meshes, {"a0": "m0"}))(p, A, labels, keys)), jax.device_get(want))
