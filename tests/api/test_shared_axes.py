"""Meshes that share the names of their axes and differ in size: an axis means that of the mesh where a value is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from mpmd_trace.api.lowered import placement_warnings
from pipelines import accumulate, assert_same, layer, mesh, transfers
from util import nightly, normal

WIDTH, ROWS = 8, 16


TWO, FOUR = mesh(0, (2,), "data"), mesh(2, (4,), "data")
LAST = mesh(6, (2,), "data")
SQUARE = mesh(2, (2, 2), "data", "model")


def at(where: Any, *spec: Any) -> NamedSharding:
    return NamedSharding(where, P(*spec))


def constrained(where: Any, *spec: Any) -> Any:
    return lambda w, x: jax.lax.with_sharding_constraint(layer(w, x), at(where, *spec))


def loss(*layers: Any) -> Any:
    """A computation `f<i>` for each layer, the last one with the loss."""

    def value(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, one in enumerate(layers[:-1]):
            x = named_computation(one, name=f"f{i}")(ws[i], x)
        return named_computation(lambda w, x: jnp.mean(layers[-1](w, x) ** 2), name=f"f{len(layers) - 1}")(ws[-1], x)

    return value


def config(*meshes: Any, **options: Any) -> mpmd_trace.config.Config:
    return mpmd_trace.make_config(
        {f"m{i}": m for i, m in enumerate(meshes)}, {f"f{i}": f"m{i}" for i in range(len(meshes))}, **options
    )


def weights(count: int = 2) -> list[jax.Array]:
    return [0.5 * normal(i, WIDTH, WIDTH) for i in range(count)]


def batch(*shape: int) -> jax.Array:
    return normal(9, *(shape or (ROWS,)), WIDTH)


def run(where: mpmd_trace.config.Config, *layers: Any, **options: Any) -> mpmd_trace.stages.Compiled:
    """Loss and gradients compiled, after they were compared with those of one device."""
    args = weights(len(layers)), batch()
    compiled = mpmd_trace.jit(jax.value_and_grad(loss(*layers)), where, **options).lower(*args).compile()
    expected = jax.jit(jax.value_and_grad(loss(*[layer for _ in layers])))(*args)
    assert_same(compiled(*args), expected, rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("other", [FOUR, SQUARE], ids=["larger", "more"])
def test_what_arrives_whole_is_told(other: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the computation there says how it wants its activations."""
    monkeypatch.setattr(placement_warnings, "__defaults__", ((), 64))
    where, batch_at = config(TWO, other), (None, at(TWO, "data"))
    with pytest.warns(mpmd_trace.MpmdWarning, match=r"arrive unsharded on a mesh of another shape") as told:
        compiled = run(where, layer, layer, in_shardings=batch_at)
    assert (f"m0 {SPLIT}", f"m1 {WHOLE}") in transfers(compiled)
    ((text, place),) = ((str(w.message), w.filename) for w in told)
    assert "tensor<16x8xf32> of f0 (512 bytes on each device in a step) from m0 to m1, split over 'data' on m0" in text
    assert place == __file__
    compiled = run(where, layer, constrained(other, "data"), in_shardings=batch_at)
    assert (f"m0 {SPLIT}", f"m1 {SPLIT}") in transfers(compiled)


SPLIT, WHOLE = 'f32[16,8]{{"data"}, {}}', "f32[16,8]"


def test_constraints_on_both_sides() -> None:
    """Two parts on the first mesh, four on the second one."""
    compiled = run(config(TWO, FOUR), constrained(TWO, "data"), constrained(FOUR, "data"))
    assert transfers(compiled)[0] == (f"m0 {SPLIT}", f"m1 {SPLIT}")
    places = compiled.function_named_shardings
    assert places.inputs[0][1] == at(TWO, "data")
    assert {s.mesh for s in jax.tree.leaves(places.outputs)} == {TWO, FOUR}, "the meshes of the user"


@pytest.mark.parametrize("where", [TWO, FOUR, TWO.abstract_mesh])
def test_of_the_mesh_of_a_constraint_only_the_names_of_axes_count(where: Any) -> None:
    compiled = run(config(TWO, FOUR), constrained(where, "data"), constrained(where, "data"))
    assert transfers(compiled)[0] == (f"m0 {SPLIT}", f"m1 {SPLIT}")


def test_meshes_that_are_alike_may_be_sharded_differently() -> None:
    """A transfer between meshes of the same axes reshards as one between others does."""

    def skipping(first: Any, last: Any) -> Any:
        def value(ws: list[jax.Array], x: jax.Array) -> jax.Array:
            h = named_computation(first, name="f0")(ws[0], x)
            other = named_computation(layer, name="f1")(ws[1], x)
            return named_computation(lambda w, h, o: jnp.mean(last(w, h) + o), name="f2")(ws[2], h, other)

        return jax.value_and_grad(value)

    def columns(w: jax.Array, x: jax.Array) -> jax.Array:
        return layer(w, jax.lax.with_sharding_constraint(x, at(LAST, None, "data")))

    args = weights(3), batch()
    fn = skipping(constrained(TWO, "data"), columns)
    compiled = mpmd_trace.jit(fn, config(TWO, FOUR, LAST)).lower(*args).compile()
    assert_same(compiled(*args), jax.jit(skipping(layer, layer))(*args), rtol=1e-4, atol=1e-5)
    assert (f"m0 {SPLIT}", 'm2 f32[16,8]{{}, {"data"}}') in transfers(compiled)


@pytest.mark.parametrize("schedule", ["1F1B", nightly("zb-h1")])
def test_training(schedule: str, tmp_path: Path) -> None:
    """Data parallel on two devices, data and tensor parallel on four; the state goes round, and to a file and back."""

    def step(ws: list[jax.Array], xs: jax.Array) -> Any:
        value, grads = accumulate(ws, xs, jax.value_and_grad(loss(layer, layer)))
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

    ws, xs = weights(), batch(4, ROWS)
    shardings = ([None, at(SQUARE, None, "model")], at(TWO, None, "data"))
    jitted = mpmd_trace.jit(
        step,
        config(TWO, SQUARE, pipeline_schedule=schedule),
        in_shardings=shardings,
        out_shardings=([None, at(SQUARE, None, "model")], None),
    )
    compiled = jitted.lower(ws, xs).compile()
    assert compiled.function_named_shardings.inputs[0] == ([at(TWO), at(SQUARE, None, "model")], at(TWO, None, "data"))
    expected, found = ws, ws
    for _ in range(3):
        expected, value = jax.jit(step)(expected, xs)
        found, loss_value = jitted(found, xs)
        assert_same((found, loss_value), (expected, value), rtol=1e-4, atol=1e-5)
    assert found[1].sharding == at(SQUARE, None, "model") and found[0].sharding.mesh == TWO
    (placed,) = mpmd_trace.place(compiled, ws)
    assert [w.sharding for w in placed] == compiled.function_named_shardings.inputs[0][0]
    made = mpmd_trace.create(weights, compiled)
    assert [w.sharding for w in made] == [w.sharding for w in placed]
    mpmd_trace.save(tmp_path / "state", found)
    restored = mpmd_trace.restore(tmp_path / "state", compiled)
    assert_same(restored, found)
    assert [w.sharding for w in restored] == [w.sharding for w in placed]
    assert_same(compiled(made, compiled.place(ws, xs)[0][1]), jax.jit(step)(ws, xs), rtol=1e-4, atol=1e-5)


def test_committed_arrays_keep_their_shardings() -> None:
    ws, x = weights(), jax.device_put(batch(), at(TWO, "data"))
    ws[1] = jax.device_put(ws[1], at(FOUR, "data"))
    fn = jax.value_and_grad(loss(layer, layer))
    compiled = mpmd_trace.jit(fn, config(TWO, FOUR)).lower(ws, x).compile()
    assert compiled.function_named_shardings.inputs[0][1] == at(TWO, "data")
    assert compiled.function_named_shardings.inputs[0][0][1] == at(FOUR, "data")
    assert_same(compiled(ws, x), jax.jit(fn)(weights(), batch()), rtol=1e-4, atol=1e-5)


def mapped(where: Mesh) -> Any:
    return jax.shard_map(layer, mesh=where, in_specs=(P(), P("data")), out_specs=P("data"))


def test_shard_map() -> None:
    compiled = run(config(TWO, FOUR), mapped(TWO), mapped(FOUR))
    assert transfers(compiled)[0] == (f"m0 {SPLIT}", f"m1 {SPLIT}")
    with pytest.raises(MpmdError) as error:
        run(config(TWO, FOUR), mapped(TWO), mapped(TWO))
    (said,) = {d.message for d in error.value.diagnostics}
    assert said == (
        "a shard_map over a mesh with {data: 2} is used on mesh 'm1', which has {data: 4}. It is made for the sizes "
        "of its axes: give it the mesh 'm1', or assign its name to a mesh with those axes"
    )
    assert "test_shared_axes.py:" in str(error.value)


def test_what_a_mesh_does_not_have() -> None:
    with pytest.raises(MpmdError) as error:
        run(config(TWO, SQUARE), constrained(SQUARE, "model"), layer)
    assert len(error.value.diagnostics) == 1, "once, although the backward pass repeats it"
    assert "test_shared_axes.py" in str(error.value)
    assert (
        "a sharding over 'model' is used on mesh 'm0', which has {data: 2}. Shard over axes of that mesh, or assign "
        "what is sharded to a mesh that has them"
    ) in str(error.value)
    with pytest.raises(MpmdError, match=r'"ws\[0\]": error: a sharding over .model. is used on mesh .m0.'):
        run(config(TWO, SQUARE), layer, layer, in_shardings=([at(SQUARE.abstract_mesh, "model"), None], None))
    with pytest.raises(MpmdError, match=r"the sharding of result\[1\]\[0\] over .model. is used on mesh .m0."):
        run(config(TWO, SQUARE), layer, layer, out_shardings=(None, [at(SQUARE.abstract_mesh, "model"), None]))


def test_what_an_axis_cannot_divide() -> None:
    """Six rows are three for each of two devices; four devices cannot share them."""
    fn = jax.value_and_grad(loss(layer, constrained(TWO, "data")))
    with pytest.raises(MpmdError, match=r"it cannot divide a dimension of size 6 into 4 parts") as error:
        mpmd_trace.jit(fn, config(TWO, FOUR))(weights(), batch(6))
    assert "a sharding by {\"data\"} is used on mesh 'm1', which has {data: 4}" in str(error.value)


def test_what_is_computed_from_results_may_be_passed_back() -> None:
    """It has shardings that are equal to those of results; what was put elsewhere is refused."""
    fn = jax.value_and_grad(loss(layer, layer))
    jitted = mpmd_trace.jit(lambda ws, x: fn(ws, x)[1], config(TWO, FOUR))
    ws = weights()
    # Equal shardings, other objects: what a computation outside of the step may give.
    swapped = [jax.device_put(w, at(m)) for w, m in zip(ws, (FOUR, TWO), strict=True)]
    compiled = jitted.lower(ws, batch()).compile()
    own = jax.device_put(ws[0], at(mesh(2, (4,), "own")))
    with pytest.raises(MpmdError, match=r"argument ws\[0\] is on devices 2, 3, 4, 5, and the program wants it"):
        compiled([own, ws[1]], batch())
    grads = jitted(ws, batch())
    assert not {id(w.sharding) for w in swapped} & {id(g.sharding) for g in grads}
    assert_same(jitted(swapped, batch()), grads)
    outside = [g + 1 for g in reversed(grads)]
    expected = jax.jit(fn)([jnp.asarray(np.asarray(g)) for g in outside], batch())[1]
    assert_same(jitted(outside, batch()), expected, rtol=1e-4, atol=1e-5)
