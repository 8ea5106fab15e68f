"""Arrays with another layout in memory than the usual one, against `jax.jit` of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from mpmd_trace.equinox import place
from pipelines import WIDTH, assert_same, batch, config, layer, topology, weights

MESHES = topology()
ROWS, COLUMNS = Layout((0, 1)), Layout((1, 0))


def at(mesh: str, *spec: str | None, layout: Any = COLUMNS, kind: str | None = None) -> Format:
    return Format(layout, NamedSharding(MESHES[mesh], PartitionSpec(*spec), memory_kind=kind))


def step(ws: Any, x: jax.Array) -> Any:
    h = named_computation(layer, name="f0")(ws[0], x)
    h = named_computation(layer, name="f1")(ws[1], h)
    return h, ws[0], x * 1, ws[1] + h


def lay_out(ws: Any, *spec: str | None) -> list[jax.Array]:
    return [jax.device_put(w, at(mesh, *spec)) for w, mesh in zip(ws, MESHES, strict=True)]


def orders(tree: Any) -> list[tuple[int, ...]]:
    return [x.format.layout.major_to_minor for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x")], ids=["whole", "rows", "columns"])
def test_arrays_are_read_as_they_are_laid_out(spec: tuple[str | None, ...]) -> None:
    """As under `jax.jit` a program is compiled for the layout; the other program stays."""
    jitted = mpmd_trace.jit(step, config(topology=MESHES))
    expected = jax.jit(step)(weights(), batch())
    assert_same(jitted(weights(), batch()), expected)
    found = jitted(lay_out(weights(), *spec), batch())
    assert_same(found, expected)
    assert orders(found) == [(0, 1)] * 4
    assert_same(jitted(weights(), batch()), expected)
    compiled = jitted.lower(lay_out(weights(), *spec), batch()).compile()
    assert compiled.input_formats[0][0] == [w.format for w in lay_out(weights(), *spec)]


def test_a_compiled_program_says_which_layout_it_wants() -> None:
    compiled = mpmd_trace.jit(step, config(topology=MESHES)).lower(weights(), batch()).compile()
    laid_out, expected = lay_out(weights()), jax.jit(step)(weights(), batch())
    with pytest.raises(MpmdError, match=r"layout \(1, 0\) \(major to minor\) in memory, .* wants \(0, 1\)") as error:
        compiled(laid_out, batch())
    assert len(error.value.diagnostics) == 2 and "move it with compiled.place(*args)" in str(error.value)
    args, kwargs = compiled.place(laid_out, batch())
    assert_same(compiled(*args, **kwargs), expected)
    assert_same(compiled(*place(compiled, laid_out, batch())), expected)


@pytest.mark.parametrize("wanted", ["m0 m1", "m1 m0"], ids=["where it is", "elsewhere"])
@pytest.mark.parametrize("kind", [None, "pinned_host"])
def test_formats_of_arguments_and_results(wanted: str, kind: str | None) -> None:
    first, second = wanted.split()
    jitted = mpmd_trace.jit(
        step,
        config(topology=MESHES),
        in_shardings=([at(first, kind=kind), None], at("m0", layout=ROWS)),
        out_shardings=(at(second, "x", kind=kind), at(first, kind=kind), None, at(second, layout=Layout.AUTO)),
    )
    expected = jax.jit(step)(weights(), batch())
    found = jitted(weights(), batch())
    assert_same(found, expected)
    assert orders(found) == [(1, 0), (1, 0), (0, 1), (0, 1)]
    compiled = jitted.lower(weights(), batch()).compile()
    assert [f.layout.major_to_minor for f in jax.tree.leaves(compiled.input_formats)] == [(1, 0), (0, 1), (0, 1)]
    assert list(compiled.output_formats) == [x.format for x in found]
    # The text says it, too.
    text = jitted.lower(weights(), batch()).as_text()
    again = mpmd_trace.compiler.run_module(text, MESHES, [*weights(), batch()])
    assert_same(tuple(again), expected)
    assert orders(again) == orders(found)


@pytest.mark.parametrize("donate", [(), (0,), (0, 1)], ids=str)
def test_a_state_keeps_its_layout(donate: tuple[int, ...]) -> None:
    def update(ws: Any, x: jax.Array) -> Any:
        h, *_ = step(ws, x)
        return [w + jnp.sum(h) for w in ws], x

    formats = [at("m0"), at("m1", "x")]
    jitted = mpmd_trace.jit(
        update,
        config(topology=MESHES),
        in_shardings=(formats, None),
        out_shardings=(formats, None),
        donate_argnums=donate,
    )
    plain = jax.jit(update)
    ours, theirs, x = weights(), weights(), batch()
    for _ in range(3):
        given = ours
        ours, x = jitted(ours, x)
        theirs, _ = plain(theirs, batch())
        assert_same(ours, theirs, atol=1e-5)  # the sum, of both devices, is much larger than some weights
        assert all(w.is_deleted() == bool(donate) for w in given)
    assert orders(ours) == [(1, 0)] * 2
    assert len(jitted.lower(ours, x).compile().program.plan.transfers) == 2  # activations and the sum alone


def test_constants() -> None:
    large = jax.device_put(np.arange(90000.0, dtype=np.float32).reshape(300, 300), at("m0", "x"))
    small = jax.device_put(batch(), at("m0"))

    def fn(w: jax.Array, x: jax.Array) -> Any:
        return named_computation(layer, name="f0")(w, x) + small + large[:WIDTH, 7:11], large

    def plain(w: jax.Array, x: jax.Array) -> Any:
        whole = np.asarray(large)
        return layer(w, x) + np.asarray(small) + whole[:WIDTH, 7:11], whole

    found = mpmd_trace.jit(fn, config({"f0": "m0"}, topology=MESHES))(weights()[0], batch())
    assert_same(found, jax.jit(plain)(weights()[0], batch()))


def _refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MpmdError) as error:
        make()
    assert message in str(error.value)


def test_formats_that_do_not_fit() -> None:
    where = config(topology=MESHES)
    flat, twice = at("m0", layout=Layout((0,))), at("m0", layout=Layout((0, 0)))
    _refused(
        lambda: mpmd_trace.jit(step, where, in_shardings=([flat, None], twice))(weights(), batch()),
        "in_shardings of ws[0]: Layout(major_to_minor=(0,), tiling=None, sub_byte_element_size_in_bits=0) is for 1 "
        "dimensions, the array has 2.",
    )
    _refused(
        lambda: mpmd_trace.jit(step, where, in_shardings=(None, twice))(weights(), batch()),
        "does not list each dimension of the array once",
    )
    _refused(
        lambda: mpmd_trace.jit(step, where, in_shardings=([at("m0"), None], None))(
            [jax.device_put(weights()[0], at("m0", layout=ROWS)), weights()[1]], batch()
        ),
        "has the layout (0, 1) (major to minor) in memory, and the program wants (1, 0) (major to minor)",
    )

    def random(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (2,))

    _refused(
        lambda: mpmd_trace.jit(random, config({}), in_shardings=(at("m0", layout=Layout(())),))(jax.random.key(0)),
        "a typed PRNG key has no layout",
    )


def test_three_dimensions_on_a_mesh_of_two_axes() -> None:
    devices = np.array(jax.devices()).reshape(2, 2, 2)
    meshes = {f"m{i}": Mesh(devices[i], ("x", "y")) for i in range(2)}
    x = np.arange(64.0, dtype=np.float32).reshape(4, 4, 4)

    def fn(x: jax.Array) -> Any:
        h = named_computation(lambda x: jnp.einsum("abc,cbd->adb", x, x), name="f0")(x)
        return named_computation(lambda h: h - h.T, name="f1")(h), x

    jitted = mpmd_trace.jit(fn, config(topology=meshes))
    for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1)):
        sharding = NamedSharding(meshes["m0"], PartitionSpec("y", None, "x"))
        assert_same(jitted(jax.device_put(x, Format(Layout(order), sharding))), jax.jit(fn)(x))
