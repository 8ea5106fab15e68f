"""Zero-bubble schedules divide backwards of layers that are loops, conditionals or `shard_map`s."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace.ir.flops import flops
from pipelines import assert_same, loss_of, topology
from util import nightly, normal

WIDTH, ROWS, LAYERS, MESHES, MICROBATCHES = 16, 32, 2, 3, 5
Weights = dict[str, jax.Array]


def layer(w: Weights, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"]


def sharded(w: Weights, x: jax.Array) -> jax.Array:
    def part(w: Weights, x: jax.Array) -> jax.Array:
        return x + lax.psum(jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"], "x")

    specs = {"up": P(None, "x"), "down": P("x", None), "bias": P("x")}
    return jax.shard_map(part, in_specs=(specs, P()), out_specs=P())(w, x)


def stage(kind: str, weights: Any, x: jax.Array) -> jax.Array:
    """The layers of a stage: stacked for the scan, else a list."""
    if kind == "scan":
        return lax.scan(lambda x, w: (layer(w, x), None), x, weights)[0]
    if kind == "nested":
        return lax.scan(lambda x, w: (stage("scan", jax.tree.map(lambda a: a[None], w), x), None), x, weights)[0]
    for w in weights:
        if kind == "map":
            x = lax.map(functools.partial(layer, w), x.reshape(2, ROWS // 2, WIDTH)).reshape(x.shape)
        elif kind == "cond":
            x = lax.cond(x[0, 0] > 0, layer, lambda w, x: 2 * layer(w, x), w, x)
        elif kind == "shard_map":
            x = sharded(w, x)
        else:
            x = layer(w, x)
    return x


def loss(kind: str, weights: Any, x: jax.Array) -> jax.Array:
    if kind == "mt.scan":
        x, _ = mpmd_trace.scan(lambda x, w: (layer(w, x), None), x, weights, name="blocks")
        return jnp.mean(x**2)
    return loss_of(functools.partial(stage, kind), "stage")(weights, x)


def weights_of(kind: str) -> Any:
    shapes = {"up": (WIDTH, WIDTH), "down": (WIDTH, WIDTH), "bias": (WIDTH,)}
    layers = [{n: 0.2 * normal(i, *shape) for n, shape in shapes.items()} for i in range(MESHES * LAYERS)]
    stages = [layers[i * LAYERS : (i + 1) * LAYERS] for i in range(MESHES)]

    def stacked(several: list[Weights]) -> Weights:
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *several)

    if kind == "mt.scan":
        return stacked(layers)
    return [stacked(own) for own in stages] if kind in ("scan", "nested") else stages


def lower(kind: str, schedule: str = "zb-h1") -> tuple[mpmd_trace.stages.Lowered, Any, Any, Any]:
    def step(weights: Any, xs: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(functools.partial(loss, kind), microbatches=MICROBATCHES)(weights, xs)

    meshes = topology(MESHES, size=2 if kind == "shard_map" else 1)
    names = {"blocks": list(meshes)} if kind == "mt.scan" else {f"stage{i}": f"m{i}" for i in range(MESHES)}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule=schedule)
    args = weights_of(kind), normal(9, MICROBATCHES * ROWS, WIDTH)
    around = jax.set_mesh(meshes["m0"]) if kind == "shard_map" else contextlib.nullcontext()
    with around:
        return mpmd_trace.jit(step, config).lower(*args), step, args, around


def middle_backwards(lowered: mpmd_trace.stages.Lowered) -> list[float]:
    """The operations of the backward programs of the middle mesh."""
    module = lowered.partitioned.module
    calls = [op for op in module.main.body if op.name == "mpmd.fragment_call" and op.mesh == "m1"]
    callees = dict.fromkeys(
        op.callee for op in calls if "(1)" in str(op.attr("origin")) or ", 1>" in str(op.attr("origin"))
    )
    functions = {f.sym_name: f for f in module.functions}
    return [flops(functions[name].regions[0], module) for name in callees]


@functools.cache
def unrolled() -> list[float]:
    return middle_backwards(lower("unrolled")[0])


@pytest.mark.parametrize("kind", ["scan", "mt.scan", "nested", "cond", "shard_map"])
def test_both_halves_are_those_of_the_unrolled_layers(kind: str) -> None:
    lowered, *_ = lower(kind)
    assert middle_backwards(lowered) == pytest.approx(unrolled(), rel=0.05)


@pytest.mark.parametrize("kind", ["mt.scan", nightly("map"), "shard_map"])
def test_numbers_are_those_of_jit_and_no_gradient_waits(kind: str) -> None:
    lowered, step, args, _ = lower(kind, "zb-h2")
    compiled = lowered.compile()
    for memory in compiled.placement_report().meshes:
        assert memory.gradients <= memory.parameters
    around = jax.set_mesh(topology(MESHES, size=2)["m0"]) if kind == "shard_map" else contextlib.nullcontext()
    found = compiled(*args)
    with around:
        assert_same(found, jax.jit(step)(*args))


def test_activations_stay_sharded_along_axes_that_are_not_manual() -> None:
    def part(w: Weights, x: jax.Array) -> jax.Array:
        return x + lax.psum(jnp.tanh(x @ w["up"]) @ w["down"], "x")

    specs = {"up": P(None, "x"), "down": P("x", None)}
    layer = jax.shard_map(part, in_specs=(specs, P()), out_specs=P(), axis_names={"x"})

    def step(weights: list[Weights], xs: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(loss_of(layer, "stage"), microbatches=MICROBATCHES)(weights, xs)

    devices = np.array(jax.devices()[:8]).reshape(2, 2, 2)
    meshes = {f"m{i}": Mesh(own, ("x", "y"), axis_types=(AxisType.Auto,) * 2) for i, own in enumerate(devices)}
    config = mpmd_trace.make_config(meshes, {"stage0": "m0", "stage1": "m1"}, pipeline_schedule="zb-h1")
    weights = [{name: 0.2 * normal(i, WIDTH, WIDTH) for name in specs} for i in range(2)]
    xs = normal(2, MICROBATCHES * ROWS, WIDTH)
    places = [{n: NamedSharding(mesh, spec) for n, spec in specs.items()} for mesh in meshes.values()]
    batch = NamedSharding(meshes["m0"], P("y", None))
    with jax.set_mesh(meshes["m0"]):
        lowered = mpmd_trace.jit(step, config, in_shardings=(places, batch)).lower(weights, xs)
        expected = jax.jit(step)(weights, xs)
    compiled = lowered.compile()
    gathers = {mesh: kinds["all-gather"].runs for mesh, kinds in compiled.collectives().items()}
    assert gathers == {"m0": 1, "m1": 0}  # of the batch, once, before it is divided into microbatches
    assert_same(compiled(weights, xs), expected)


@jax.custom_vjp
def solved(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def _solve_back(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    w, x = saved

    def body(state: Any) -> Any:
        dw, dx = state
        return dw + x.T @ dx, 0.5 * dx @ w.T

    return lax.while_loop(lambda state: jnp.sum(state[1] ** 2) > 1e-8, body, (jnp.zeros_like(w), dy))


solved.defvjp(lambda w, x: (solved(w, x), (w, x)), _solve_back)


def test_a_loop_without_a_known_end_is_named_and_nothing_waits_for_it() -> None:
    def step(weights: list[jax.Array], xs: jax.Array) -> Any:
        return mpmd_trace.value_and_grad(loss_of(solved, "stage"), microbatches=MICROBATCHES)(weights, xs)

    names = {f"stage{i}": f"m{i}" for i in range(MESHES)}
    config = mpmd_trace.make_config(topology(MESHES, size=1), names, pipeline_schedule="zb-h1")
    weights = [0.1 * jnp.eye(WIDTH) for _ in range(MESHES)]
    xs = normal(2, MICROBATCHES * ROWS, WIDTH)
    with pytest.warns(mpmd_trace.MpmdWarning, match="this loop .* how often it runs is not known in advance") as said:
        lowered = mpmd_trace.jit(step, config).lower(weights, xs)
        assert len(middle_backwards(lowered)) == 1
    (warning,) = said
    assert warning.filename == __file__
