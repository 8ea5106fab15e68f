"""SPMD inside a mesh: every mesh has four devices, and the numbers are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from pipelines import accumulate, assert_same, mesh, transfers
from util import nightly, normal

WIDTH, HIDDEN, ROWS = 8, 16, 16
Layer = Callable[[Any, jax.Array], jax.Array]


M0, M1 = mesh(0, (2, 2), "data", "model"), mesh(4, (2, 2), "data", "model")


def at(where: Mesh | AbstractMesh, *spec: Any) -> NamedSharding:
    return NamedSharding(where, P(*spec))


def mlp(w: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w[0]) @ w[1]


def program(first: Layer = mlp, second: Layer = mlp) -> Callable[..., Any]:
    """Loss and gradients of two layers, the second with the loss."""

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        h = named_computation(first, name="f0")(ws[0], x)
        return named_computation(lambda w, h: jnp.mean(second(w, h) ** 2), name="f1")(ws[1], h)

    return jax.value_and_grad(loss)


def data() -> tuple[Any, jax.Array]:
    ws = [(0.3 * normal(i, WIDTH, HIDDEN), 0.3 * normal(2 + i, HIDDEN, WIDTH)) for i in range(2)]
    return ws, normal(4, ROWS, WIDTH)


def config(m0: Mesh = M0, m1: Mesh = M1, **options: Any) -> mpmd_trace.config.Config:
    return mpmd_trace.make_config({"m0": m0, "m1": m1}, {"f0": "m0", "f1": "m1"}, **options)


def run(
    fn: Callable[..., Any], where: mpmd_trace.config.Config, in_shardings: Any = None, out_shardings: Any = None
) -> mpmd_trace.stages.Compiled:
    """`fn` compiled, after its results were compared with those of one device."""
    args = data()
    jitted = mpmd_trace.jit(fn, where, in_shardings=in_shardings, out_shardings=out_shardings)
    compiled = jitted.lower(*args).compile()
    assert_same(compiled(*args), jax.jit(program())(*args), rtol=1e-4, atol=1e-5)
    return compiled


def specs(compiled: mpmd_trace.stages.Compiled) -> Any:
    """The partition specs of the arguments, and of the results."""
    found = compiled.function_named_shardings
    return tuple(jax.tree.map(lambda s: s.spec, side) for side in (found.inputs[0], found.outputs))


#: An activation with its rows over `data`, and its transfer and that of its gradient.
ROWS_SPLIT = 'f32[16,8]{{"data"}, {}}'
THERE_AND_BACK = [(f"m0 {ROWS_SPLIT}", f"m1 {ROWS_SPLIT}"), (f"m1 {ROWS_SPLIT}", f"m0 {ROWS_SPLIT}")]


def test_data_parallel() -> None:
    compiled = run(program(), config(), (None, at(M0, "data")))
    (_, x), _ = specs(compiled)
    assert x == P("data")
    assert transfers(compiled) == THERE_AND_BACK, "activation and its gradient stay sharded"


TENSOR = [(at(m, None, "model"), at(m, "model", None)) for m in (M0, M1)]


def test_tensor_parallel() -> None:
    compiled = run(program(), config(), (TENSOR, None))
    (ws, _), (_, grads) = specs(compiled)
    assert ws == grads == [(P(None, "model"), P("model"))] * 2


def test_data_and_tensor_parallel() -> None:
    compiled = run(program(), config(), (TENSOR, at(M0, "data")))
    assert transfers(compiled)[0][0] == f"m0 {ROWS_SPLIT}"
    half = sum(w.nbytes for w in jax.tree.leaves(data()[0])) // 2
    assert compiled.memory_analysis()["m1"].arguments == half // 2, "a device has half of its mesh's weights"


def test_fully_sharded() -> None:
    """Weights and gradients in quarters; XLA gathers each weight where it is used."""
    quarters = [(at(m, ("data", "model")), at(m, ("data", "model"))) for m in (M0, M1)]
    compiled = run(program(), config(), (quarters, at(M0, ("data", "model"))), (None, quarters))
    (ws, _), (_, grads) = specs(compiled)
    assert ws == grads == [(P(("data", "model")), P(("data", "model")))] * 2
    text = "".join(e.compiled.as_text() for e in compiled.program.runtime.executables)
    assert "all-gather" in text


def constrained(where: Mesh | AbstractMesh, *spec: Any) -> Layer:
    def layer(w: Any, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ w[0]), at(where, *spec)) @ w[1]

    return layer


@pytest.mark.parametrize("meshes", [(M0, M1), (M0, M0), (M0.abstract_mesh, M0.abstract_mesh)])
def test_constraints_inside(meshes: tuple[Any, Any]) -> None:
    """Only the axes of the mesh of a constraint count: where it runs, the assignment says."""
    first, second = (constrained(m, "data", "model") for m in meshes)
    compiled = run(program(first, second), config())
    (ws, x), _ = specs(compiled)
    assert ws == [(P(None, "model"), P("model"))] * 2 and x == P("data")


def mapped(where: Mesh | AbstractMesh) -> Layer:
    """A tensor-parallel layer written by hand."""

    def local(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.psum(jnp.tanh(x @ up) @ down, "model")

    def layer(w: Any, x: jax.Array) -> jax.Array:
        specs_in = (P(None, "model"), P("model", None), P("data"))
        return jax.shard_map(local, mesh=where, in_specs=specs_in, out_specs=P("data"))(w[0], w[1], x)

    return layer


@pytest.mark.parametrize("meshes", [(M0, M1), (M0, M0), (M0.abstract_mesh, M0.abstract_mesh)])
def test_shard_map(meshes: tuple[Any, Any]) -> None:
    first, second = (mapped(m) for m in meshes)
    compiled = run(program(first, second), config())
    assert transfers(compiled) == THERE_AND_BACK


@pytest.mark.parametrize("inside", [False, True])
def test_device_put(inside: bool) -> None:
    """Of a sharding only the axes count; a device says nothing, as the assignment says where it runs."""

    def put(w: Any, x: jax.Array) -> jax.Array:
        h = jax.device_put(jnp.tanh(x @ w[0]), at(M1, "data", "model"))
        return jax.device_put(h, jax.devices()[5]) @ w[1]

    def repeated(w: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (put(w, h), None), x, None, length=1)[0]

    compiled = run(program(put, repeated if inside else put), config())
    (ws, x), _ = specs(compiled)
    assert ws[0] == (P(None, "model"), P("model")) and x == P("data")


def test_a_shard_map_over_other_axes() -> None:
    other = mesh(0, (4,), "other")
    total = jax.shard_map(lambda x: jax.lax.psum(x, "other"), mesh=other, in_specs=P("other"), out_specs=P())
    fn = program(lambda w, x: mlp(w, jnp.tile(total(x), (4, 1))))
    with pytest.raises(MpmdError, match=r"test_spmd.py:\d+: .* axes \{other: 4\}, which no mesh .* has"):
        mpmd_trace.jit(fn, config())(*data())


def test_shard_map_inside_scan_and_remat() -> None:
    def repeated(w: Any, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, _: (0.5 * x + mapped(M1)(w, x), None))
        return jax.lax.scan(body, x, None, length=2)[0]

    def plain(w: Any, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = 0.5 * x + mlp(w, x)
        return x

    args = data()
    found = mpmd_trace.jit(program(mapped(M0), repeated), config())(*args)
    assert_same(found, jax.jit(program(mlp, plain))(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", ["1F1B", nightly("zb-h1")])
def test_microbatches_that_are_sharded(schedule: str) -> None:
    ws, x = data()
    xs = jnp.stack([x, 2 * x, 3 * x])

    def step(ws: Any, xs: jax.Array) -> Any:
        return accumulate(ws, xs, program())

    jitted = mpmd_trace.jit(step, config(pipeline_schedule=schedule), in_shardings=(TENSOR, at(M0, None, "data")))
    assert_same(jitted(ws, xs), jax.jit(step)(ws, xs), rtol=1e-4, atol=1e-5)


# Meshes of different shapes.

WIDE = mesh(0, (4,), "m0_data")
SQUARE = mesh(4, (2, 2), "m1_data", "m1_model")
SMALL = mesh(4, (2,), "m1_data")


def test_meshes_of_different_shapes() -> None:
    where = config(WIDE, SMALL, partitioning_options={"enable_heterogeneous_meshes": True})
    compiled = run(program(), where, (None, at(WIDE, "m0_data")))
    assert {s.mesh.size for s in jax.tree.leaves(compiled.function_named_shardings.inputs)} == {4, 2}
    assert transfers(compiled)[0] == ('m0 f32[16,8]{{"m0_data"}, {}}', "m1 f32[16,8]")


def test_transfers_reshard() -> None:
    """Four parts on the first mesh, two parts of another dimension on the second one."""
    ws = [(None, None), (at(SQUARE, "m1_model", None), None)]
    where = config(WIDE, SQUARE, partitioning_options={"enable_heterogeneous_meshes": True})
    compiled = run(program(), where, (ws, at(WIDE, "m0_data")))
    assert transfers(compiled)[0] == ('m0 f32[16,8]{{"m0_data"}, {}}', 'm1 f32[16,8]{{}, {"m1_model"}}')
    first = constrained(WIDE, "m0_data")
    second = constrained(SQUARE, "m1_data", "m1_model")
    compiled = run(program(first, second), where)
    assert transfers(compiled)[0] == ('m0 f32[16,8]{{"m0_data"}, {}}', 'm1 f32[16,8]{{"m1_data"}, {}}')


def test_state_on_meshes_of_different_sizes() -> None:
    """A training loop: what a step returns is taken back, also by a program that is compiled for it."""
    where = config(mesh(0, (4,), "data"), mesh(4, (2,), "data"))

    def step(ws: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, program()(ws, x)[1])

    ws, x = data()
    expected = jax.jit(step)(jax.jit(step)(ws, x), x)
    ws = mpmd_trace.jit(step, where)(ws, x)
    assert_same(mpmd_trace.jit(step, where)(ws, x), expected, rtol=1e-4, atol=1e-5)


def test_weights_committed_whole_stay_whole_beside_constraints_in_layers() -> None:
    """A constraint over an axis does not spread to arguments and results that are committed without one."""

    def constrained(where: Mesh) -> Layer:
        return lambda w, x: mlp(w, jax.lax.with_sharding_constraint(x, at(where, None, "model")))

    def step(ws: Any, x: jax.Array) -> Any:
        _, grads = program(constrained(M0), constrained(M1))(ws, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)

    ws, x = data()
    placed = [jax.device_put(w, at(m)) for w, m in zip(ws, (M0, M1), strict=True)]
    jitted = mpmd_trace.jit(step, config(), out_shardings=[(at(M0), at(M0)), (at(M1), at(M1))])
    for _ in range(2):
        placed = jitted(placed, x)
        assert all(w.sharding.is_fully_replicated for w in jax.tree.leaves(placed))
        ws = jax.tree.map(lambda w, g: w - 0.1 * g, ws, program()(ws, x)[1])
        assert_same(placed, ws)
