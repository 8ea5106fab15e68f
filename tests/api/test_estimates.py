"""What lowered programs say of costs and memory, on meshes without devices and against what XLA says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import mpmd_trace as mt
from pipelines import loss_of, summed_gradients, topology

WIDTH = 32


def _layer(weights: Any, x: jax.Array) -> jax.Array:
    q, k, v = (x @ weights[n] for n in "qkv")
    attention = jax.nn.softmax(q @ k.mT / 8.0)
    x = x + attention @ v
    return x + jax.nn.silu(x @ weights["up"]) @ weights["down"]


def _step(weights: Any, batch: jax.Array) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, summed_gradients(loss_of(_layer), weights, batch))


def _lowered(kind: str, devices: int, sharded: bool = False) -> mt.stages.Lowered:
    meshes: dict[str, Any] = dict.fromkeys(("m0", "m1"), AbstractMesh((devices,), ("x",)))
    if kind == "real":
        meshes = topology(2, devices)
    config = mt.make_config(meshes, {f"f{i}": f"m{i // 2}" for i in range(4)}, pipeline_schedule="1F1B")
    shapes = dict.fromkeys("qkv", (WIDTH, WIDTH)) | {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    weights = [{n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()} for _ in range(4)]
    shardings = None
    if sharded:
        along = {"up": PartitionSpec(None, "x"), "down": PartitionSpec("x", None)}
        mesh = meshes["m0"]
        layer = {n: NamedSharding(mesh, along.get(n, PartitionSpec())) for n in shapes}
        shardings = ([layer, layer, dict.fromkeys(shapes), dict.fromkeys(shapes)], None)
    jitted = mt.jit(_step, config, in_shardings=shardings, donate_argnums=0)
    return jitted.lower(weights, jax.ShapeDtypeStruct((4, 8, 16, WIDTH), jnp.float32))


@pytest.mark.parametrize("devices", [1, 2])
def test_estimates_are_near_what_xla_says(devices: int) -> None:
    lowered = _lowered("real", devices)
    compiled = lowered.compile()
    estimate, told = lowered.cost_analysis(), compiled.cost_analysis()
    assert estimate.keys() == told.keys() and estimate["programs"].keys() == told["programs"].keys()
    assert estimate["flops"] == pytest.approx(told["flops"], rel=0.05)
    assert 0.4 < estimate["bytes accessed"] / told["bytes accessed"] < 1.5
    assert estimate["bytes transferred"] == told["bytes transferred"] > 0
    for mesh, memory in compiled.memory_analysis().items():
        found = lowered.memory_analysis()[mesh]
        assert (found.arguments, found.results) == (memory.arguments, memory.results)
        assert found.peak == pytest.approx(memory.peak, rel=0.2)
        assert 1 / 3 < found.temporary / memory.temporary < 3


@pytest.mark.parametrize("devices", [1, 8])
def test_abstract_meshes_give_plan_costs_and_memory(devices: int) -> None:
    lowered = _lowered("abstract", devices)
    assert lowered.as_text("plan").startswith("plan jit__step: 2 meshes")
    assert lowered.cost_analysis()["flops"] > 0
    assert all(memory.peak > memory.arguments > 0 for memory in lowered.memory_analysis().values())
    with pytest.raises(mt.MpmdError, match=r"cost_analysis.. and memory_analysis.. for estimates"):
        lowered.compile()


def test_they_are_those_of_meshes_with_devices() -> None:
    real, abstract = (_lowered(kind, 2) for kind in ("real", "abstract"))
    assert real.memory_analysis() == abstract.memory_analysis()
    assert real.cost_analysis() == abstract.cost_analysis()


def test_shardings_divide_work_and_memory() -> None:
    whole, divided = _lowered("real", 4), _lowered("real", 4, sharded=True)
    assert divided.memory_analysis()["m0"].arguments < whole.memory_analysis()["m0"].arguments
    work = [one.cost_analysis()["programs"] for one in (whole, divided)]
    first = [next(c["flops"] for name, c in one.items() if "fwd" in name and "on m0" in name) for one in work]
    assert first[1] < 0.8 * first[0]
    told = divided.compile()
    assert divided.memory_analysis()["m0"].peak == pytest.approx(told.memory_analysis()["m0"].peak, rel=0.3)


def test_ops_of_chlo_are_divided_by_shardings() -> None:
    meshes = {n: AbstractMesh((2,), ("x",)) for n in ("m0", "m1")}

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        y = mt.named_computation(lambda w, x: jax.lax.erf(x @ w), name="first")(w, x)
        return mt.named_computation(lambda w, y: y @ w, name="second")(w, y)

    rows = NamedSharding(meshes["m0"], PartitionSpec("x"))
    config = mt.make_config(meshes, {"first": "m0", "second": "m1"})
    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((WIDTH, WIDTH), (64, WIDTH)))
    costs = mt.jit(step, config, in_shardings=(None, rows)).lower(w, x).cost_analysis()
    first = next(c for name, c in costs["programs"].items() if "on m0" in name)
    assert first["flops"] == pytest.approx(64 * WIDTH * WIDTH * 2 / 2, rel=0.2)


def test_what_shard_map_computes_is_counted() -> None:
    meshes, width = topology(2, 2), 64
    rows = PartitionSpec("x")

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        up, down = weights
        return jnp.tanh(jax.nn.relu(x @ up) @ down)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for one, (name, mesh) in zip(weights, meshes.items(), strict=True):
            mapped = jax.shard_map(layer, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)
            x = mt.named_computation(mapped, name=name)(one, x)
        return (x**2).mean()

    config = mt.make_config(meshes, {name: name for name in meshes}, pipeline_schedule="1F1B")
    pair = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 2
    batch = jax.ShapeDtypeStruct((4 * 512, width), jnp.float32)
    step = mt.value_and_grad(loss, microbatches=4)
    lowered = mt.jit(step, config, in_shardings=(None, NamedSharding(meshes["m0"], rows))).lower([pair, pair], batch)
    compiled = lowered.compile()
    assert lowered.cost_analysis()["flops"] == pytest.approx(compiled.cost_analysis()["flops"], rel=0.1)
    for mesh, memory in compiled.memory_analysis().items():
        found = lowered.memory_analysis()[mesh]
        assert found.peak == pytest.approx(memory.peak, rel=0.3)
