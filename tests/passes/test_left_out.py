"""`mpmd_trace.jit` leaves out passes that have nothing to do in a program, and only those."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from mpmd_trace.passes import pipelines
from pipelines import summed_gradients

MESHES = {name: AbstractMesh((2,), ("x",)) for name in ("a", "b")}
ROWS = NamedSharding(MESHES["a"], PartitionSpec(None, "x"))


def lowered(assignment: dict[str, Any], nested: bool, sharding: NamedSharding | None, **options: Any) -> Any:
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        product = mt.named_computation(jnp.dot, name="product") if nested else jnp.dot
        return jnp.tanh(product(x, w))

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(weights):
            x = mt.named_computation(layer, name=f"f{i}")(w, x)
            x = mt.named_tensor(x, name="kept") if "kept" in assignment and i == 0 else x
        return jnp.mean(x**2)

    def step(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, summed_gradients(loss, weights, batch))

    config = mt.make_config(MESHES, assignment, pipeline_schedule="1F1B")
    weights, batch = [jax.ShapeDtypeStruct((8, 8), "float32")] * 2, jax.ShapeDtypeStruct((4, 8, 8), "float32")
    return mt.jit(step, config, in_shardings=(None, sharding)).lower(weights, batch, **options)


PLACES, STAGES = {"f0": "a", "f1": "b"}, {"f0": "a/0", "f1": "b/1"}
CASES = {
    "plain": (PLACES, False, None, set()),
    "nested": (PLACES, True, None, {"mpmd-inline-nested-user-exposed-ops"}),
    "stages": (STAGES, False, None, {"mpmd-merge-parts-of-stages"}),
    "shardings": (PLACES, False, ROWS, {"mpmd-prefer-rows", "mpmd-enforce-user-shardings"}),
    "host": ({**PLACES, "kept": "a#pinned_host"}, False, None, {"mpmd-delay-transfers-from-cpu"}),
}
CONDITIONAL = {"mpmd-map-input-output-to-mesh"}.union(*(run for *_, run in CASES.values()))


@pytest.mark.parametrize("case", CASES)
def test_passes_are_left_out_that_would_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *program, conditional = CASES[case]
    ran: list[str] = []
    short = lowered(*program, hooks=[lambda run, _: ran.append(run.spec.partition("{")[0])])
    text = short.as_text("mpmd")
    assert CONDITIONAL.intersection(ran) == conditional
    monkeypatch.setattr(pipelines, "contents", lambda module, asked: frozenset(asked))
    assert lowered(*program).as_text("mpmd") == text
