"""Steps that are written for meshes with Explicit axes: `reshard`, `out_sharding`, shardings in types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.frontend.explicit_axes import without_explicit_axes
from pipelines import assert_same

Params = list[dict[str, jax.Array]]
SHAPE, AXES = (2, 2), ("data", "model")
EXPLICIT = (AxisType.Explicit,) * 2


def mesh(number: int, types: tuple[AxisType, ...] = EXPLICIT, shape: tuple[int, ...] = SHAPE) -> Any:
    devices = jax.devices()[4 * number :][: int(np.prod(shape))]
    return jax.make_mesh(shape, AXES, types, devices=devices)


def config(types: tuple[AxisType, ...] = EXPLICIT, names: str = "ab", schedule: str | None = None) -> Any:
    meshes = {"m0": mesh(0, types), "m1": mesh(1, types)}
    return mpmd_trace.make_config(meshes, dict(zip(names, meshes, strict=False)), pipeline_schedule=schedule)


def mlp(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = jax.sharding.reshard(x, P("data", None))
    hidden = jnp.tanh(jnp.dot(x, p["up"]))
    return jnp.dot(hidden, p["down"], out_sharding=P("data", None))


def loss(ps: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    for p, name in zip(ps, "ab", strict=True):
        x = mpmd_trace.named_computation(mlp, name=name)(p, x)
    return jnp.mean((x - y) ** 2)


def step(ps: Params, x: jax.Array, y: jax.Array) -> Any:
    value, gradients = mpmd_trace.value_and_grad(loss, microbatches=4)(ps, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, ps, gradients), value


Put = Callable[[Any, Any, int], Any]


def arguments(put: Put) -> tuple[Params, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)

    def array(shape: tuple[int, ...], spec: Any, stage: int) -> Any:
        return put(rng.normal(size=shape).astype(np.float32), spec, stage)

    ps = [{"up": array((8, 16), P(None, "model"), i), "down": array((16, 8), P("model"), i)} for i in range(2)]
    return ps, array((16, 8), P("data"), 0), array((16, 8), P("data"), 1)


def on_stages(x: Any, spec: Any, stage: int) -> Any:
    return jax.device_put(x, NamedSharding(mesh(stage), spec))


def expected(step: Callable[..., Any]) -> Any:
    """What `jax.jit` gives on one mesh."""
    with jax.set_mesh(mesh(0)):
        return jax.jit(step)(*arguments(lambda x, spec, _: jax.device_put(x, NamedSharding(mesh(0), spec))))


@pytest.mark.parametrize("put", [on_stages, lambda x, *_: x], ids=["placed", "numpy"])
def test_a_training_step(put: Put) -> None:
    assert_same(mpmd_trace.jit(step, config(schedule="1F1B"))(*arguments(put)), expected(step))


def test_types_and_results_are_sharded() -> None:
    seen = []

    def typed(ps: Params, x: jax.Array, y: jax.Array) -> Any:
        result = step(ps, x, y)
        seen.append([jax.typeof(v).sharding.spec for v in (x, *jax.tree.leaves(result))])
        seen.append(jax.sharding.get_abstract_mesh())
        return result

    results = jax.tree.leaves(mpmd_trace.jit(typed, config())(*arguments(on_stages)))
    specs, abstract = seen
    wanted = [P("data", None), *[P("model", None), P(None, "model")] * 2, P()]
    assert specs == wanted
    assert abstract == mesh(0).abstract_mesh
    places = [mesh(0), mesh(0), mesh(1), mesh(1), mesh(1)]
    for array, spec, place in zip(results, wanted[1:], places, strict=True):
        assert array.sharding.is_equivalent_to(NamedSharding(place, spec), array.ndim)


def test_named_computations_contain_the_constraints() -> None:
    text = mpmd_trace.jit(step, config()).trace(*arguments(on_stages)).traced.mlir_text(debug_info=False)
    body = text[text.index('mpmd.named_computation<"a">') :]
    body = body[: body.index("mpmd.return")]
    wanted = ['{"data"}, {}', '{"data"}, {"model"}', '{"data"}, {}']
    assert re.findall(r"sdy.sharding_constraint %\w+ <@mesh, \[(.*)\]>", body) == wanted
    assert text.count("sdy.mesh @mesh") == text.count("sdy.mesh @") == 1


@pytest.mark.parametrize("given", ["set_mesh", "use_abstract_mesh"])
def test_the_mesh_of_the_context_may_be_that_of_the_stages(given: str) -> None:
    around = jax.set_mesh(mesh(1)) if given == "set_mesh" else jax.sharding.use_abstract_mesh(mesh(1).abstract_mesh)
    with around:
        results = mpmd_trace.jit(step, config())(*arguments(on_stages))
    assert_same(results, expected(step))


def test_in_shardings_shard_types() -> None:
    seen = []

    def typed(ps: Params, x: jax.Array, y: jax.Array) -> Any:
        seen.append(jax.typeof(x).sharding.spec)
        return step(ps, x, y)

    jitted = mpmd_trace.jit(typed, config(), in_shardings=(None, NamedSharding(mesh(0), P("data")), None))
    _ = jitted.trace(*arguments(lambda x, *_: x))
    assert seen == [P("data", None)]


@pytest.mark.parametrize("types", [(AxisType.Explicit, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)])
def test_auto_and_explicit_axes_of_one_mesh(types: tuple[AxisType, ...]) -> None:
    axis = AXES[types.index(AxisType.Explicit)]

    def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        x = jax.sharding.reshard(x, P(axis, None))
        return jnp.dot(jnp.tanh(jnp.dot(x, p["up"])), p["down"], out_sharding=P(axis, None))

    def gradient(ps: Params, x: jax.Array, y: jax.Array) -> Any:
        def loss(ps: Params) -> jax.Array:
            h = mpmd_trace.named_computation(layer, name="a")(ps[0], x)
            h = mpmd_trace.named_computation(layer, name="b")(ps[1], h)
            return jnp.mean((h - y) ** 2)

        return jax.value_and_grad(loss)(ps)

    args = arguments(lambda x, *_: x)
    with jax.set_mesh(mesh(0, types)):
        wanted = jax.jit(gradient)(*args)
    assert_same(mpmd_trace.jit(gradient, config(types))(*args), wanted)


def numbers_and_result(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[list[Any], Any]:
    """Arrays of these shapes, and what `jax.jit` gives for them on one mesh."""
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(np.float32) / 4 for shape in shapes]
    with jax.set_mesh(mesh(0)):
        return args, jax.jit(fn)(*args)


def layered(ps: Any, x: jax.Array) -> jax.Array:
    """Layers in a scan, recomputed; a conditional, a manual and an automatic part."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(jnp.dot(h, w, out_sharding=P("data", "model"))), None

    h, _ = jax.lax.scan(jax.checkpoint(layer), jax.sharding.reshard(x, P("data", "model")), ps)
    h = jax.lax.cond(jnp.sum(h) > 0, lambda h: 2 * h, lambda h: h - 1, h)
    spread = jax.shard_map(lambda h: h * jax.lax.psum(jnp.sum(h), AXES), in_specs=P(*AXES), out_specs=P(*AXES))
    return jax.sharding.auto_axes(lambda h: h + h[::-1], out_sharding=P("data"))(spread(h))


@pytest.mark.parametrize("inside", [True, False], ids=["named", "around names"])
def test_gradients_through_scans_conditionals_and_other_axes(inside: bool) -> None:
    def gradient(ps: Any, x: jax.Array) -> Any:
        def loss(ps: Any) -> jax.Array:
            first = mpmd_trace.named_computation(layered, name="a") if inside else layered
            h = first(ps, x)
            h = mpmd_trace.named_computation(lambda h: jnp.sin(jax.sharding.reshard(h, P("model"))), name="b")(h)
            return jnp.sum(h)

        return jax.value_and_grad(loss)(ps)

    args, wanted = numbers_and_result(gradient, (3, 8, 8), (8, 8))
    assert_same(mpmd_trace.jit(gradient, config(names="ab" if inside else "b"))(*args), wanted)


def test_layers_of_a_scan_on_both_meshes() -> None:
    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.dot(h, w, out_sharding=P("data", "model"))), None

        h = jax.sharding.reshard(x, P("data", "model"))
        return jnp.mean(mpmd_trace.scan(layer, h, ws, name="blocks")[0] ** 2)

    def update(ws: jax.Array, x: jax.Array) -> Any:
        value, gradients = mpmd_trace.value_and_grad(loss, microbatches=2)(ws, x)
        return ws - gradients, value

    meshes = {"m0": mesh(0), "m1": mesh(1)}
    cfg = mpmd_trace.make_config(meshes, {"blocks[0:2]": "m0", "blocks[2:4]": "m1"})
    args, wanted = numbers_and_result(update, (4, 8, 8), (8, 8))
    results = mpmd_trace.jit(update, cfg)(*args)
    assert_same(jax.tree.map(mpmd_trace.fetch, results), wanted)


def test_stages_of_unequal_shape_are_an_error() -> None:
    meshes = {"m0": mesh(0), "m1": mesh(1, shape=(1, 2))}
    cfg = mpmd_trace.make_config(meshes, {"a": "m0", "b": "m1"})
    with pytest.raises(MpmdError, match=r"step uses shardings of Explicit axes .*Give all meshes the same axes"):
        mpmd_trace.jit(step, cfg).trace(*arguments(lambda x, *_: x))


def test_a_function_that_is_not_written_for_explicit_axes_is_traced_without() -> None:
    def plain(w: jax.Array, x: jax.Array) -> jax.Array:
        return mpmd_trace.named_computation(lambda w, x: jnp.dot(x, w), name="a")(w, x)

    w, x = (on_stages(np.ones((8, 8), np.float32), spec, 0) for spec in (P("model"), P(None, "model")))
    with pytest.warns(MpmdWarning, match=r"Explicit axes, for which plain is not written \(Contracting dimensions"):
        result = mpmd_trace.jit(plain, config(names="a"))(w, x)
    assert_same(result, np.full((8, 8), 8, np.float32))


def test_an_error_in_shardings_is_that_of_jax() -> None:
    def wrong(x: jax.Array) -> jax.Array:
        return mpmd_trace.named_computation(lambda x: jax.sharding.reshard(x, P("date")), name="a")(x)

    with pytest.raises(Exception, match="date") as expected, jax.set_mesh(mesh(0)):
        jax.jit(wrong)(np.ones((8, 8), np.float32))
    with pytest.raises(type(expected.value), match="date"):
        mpmd_trace.jit(wrong, config(names="a"))(np.ones((8, 8), np.float32))


def test_explicit_axes_are_seen_wherever_they_are() -> None:
    abstract = mesh(0).abstract_mesh
    x = jnp.ones((4, 4))

    def inside(x: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(abstract):
            return jnp.sin(x)

    def constrained(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh(0, (AxisType.Auto,) * 2), P("data")))

    manual = jax.shard_map(jnp.sin, mesh=mesh(0), in_specs=P(None, None), out_specs=P(None, None))
    placed = jax.device_put(x, NamedSharding(mesh(0), P("data")))
    looped = [lambda f=f, x=x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0] for f in (jnp.sin, inside)]
    plain = [jax.make_jaxpr(f)(*args) for f, *args in [(jnp.sin, x), (constrained, x), (looped[0],)]]
    explicit = [
        jax.make_jaxpr(f)(*args) for f, *args in [(jnp.sin, placed), (manual, x), (lambda: placed,), (looped[1],)]
    ]
    assert [without_explicit_axes(one) is one for one in plain] == [True] * len(plain)
    assert [without_explicit_axes(one) is one for one in explicit] == [False] * len(explicit)
