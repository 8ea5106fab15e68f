"""Every public function that takes arrays takes every kind of array that a program returns."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace as mt
from pipelines import assert_same, topology

WIDTH = 4


def block(x: Any, own: Any) -> Any:
    return jnp.tanh(x @ own["w"]) + own["rows"].sum() + jax.random.uniform(own["keys"]), None


def step(state: Any, x: Any) -> Any:
    y, _ = mt.scan(block, x, state["layers"], name="blocks")
    layers = {"w": state["layers"]["w"] * 0.5, "keys": state["layers"]["keys"], "rows": state["layers"]["rows"]}
    key = jax.random.fold_in(state["key"], 1)
    return {
        "layers": layers,
        "host": state["host"] + 1,
        "key": key,
        "empty": state["empty"],
        "count": state["count"] + 1,
    }, y.sum()


#: Layers, and the meshes that have them: one array over both meshes, pieces of other sizes, two of one mesh.
CUTS = {
    "equal": (4, ["m0", "m1"]),
    "unequal": (3, {"blocks[0:1]": "m0", "blocks[1:3]": "m1"}),
    "in turns": (4, ["m0", "m1", "m0", "m1"]),
}


def state_of(layers: int) -> Any:
    generator = np.random.default_rng(0)
    return {
        "layers": {
            "w": generator.normal(size=(layers, WIDTH, WIDTH)).astype(np.float32),
            "keys": jax.random.split(jax.random.key(1), layers),
            "rows": np.zeros((layers, 0, 2), np.float32),
        },
        "host": np.ones((WIDTH, WIDTH), np.float32),
        "key": jax.random.key(2),
        "empty": np.zeros((0, 3), np.float32),
        "count": np.int32(0),
    }


X = np.ones((2, WIDTH), np.float32)


@functools.cache
def compiled(cut: str, donated: bool = False) -> mt.stages.Compiled:
    layers, names = CUTS[cut]
    config = mt.make_config(topology(), names if isinstance(names, dict) else {"blocks": names}, placement="cut")
    host = NamedSharding(topology()["m1"], PartitionSpec(), memory_kind="pinned_host")
    kept = {"layers": None, "host": host, "key": None, "empty": None, "count": None}
    jitted = mt.jit(
        step, config, in_shardings=(kept, None), out_shardings=(kept, None), donate_argnums=0 if donated else ()
    )
    return jitted.lower(state_of(layers), X).compile()


@pytest.fixture(params=CUTS)
def program(request: pytest.FixtureRequest) -> mt.stages.Compiled:
    return compiled(request.param)


@pytest.fixture
def state(program: mt.stages.Compiled) -> Any:
    """What a step returns, of every kind; layers as the program takes them, keys too."""
    given = state_of(program.function_types.inputs[0][0]["layers"]["w"].shape[0])
    result, _ = program(given, X)
    assert result["host"].sharding.memory_kind == "pinned_host"
    placed = mt.place(program, result)[0]
    whole, _ = program.place(given, X)
    result["layers"]["keys"] = whole[0]["layers"]["keys"]
    assert jax.tree.structure(placed) == jax.tree.structure(given)
    return result


def expected(program: mt.stages.Compiled) -> Any:
    given = state_of(program.function_types.inputs[0][0]["layers"]["w"].shape[0])
    return jax.jit(step)(given, X)


def test_the_kinds(program: mt.stages.Compiled, state: Any) -> None:
    for name in ("w", "keys"):
        assert isinstance(state["layers"][name], mt.stages.Pieces) == (program is not compiled("equal"))
    assert_same(state, expected(program)[0])


def test_fetch_gives_arrays_of_numpy(program: mt.stages.Compiled, state: Any) -> None:
    found = mt.fetch(state)
    for x in jax.tree.leaves(found):
        assert isinstance(x, np.ndarray) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        assert not isinstance(x, mt.stages.Pieces)
    assert_same(found, expected(program)[0])
    assert_same(program(found, X), program(state, X))


def test_numpy_and_jax_read_them(program: mt.stages.Compiled, state: Any) -> None:
    jax.block_until_ready(state)
    assert_same(jax.tree.map(jnp.asarray, state), expected(program)[0])
    assert_same(jax.tree.map(jnp.copy, state), expected(program)[0])
    assert_same(jax.device_get(state), expected(program)[0])
    with pytest.raises((TypeError, ValueError)):
        np.asarray(state["layers"]["keys"])


def test_calls_take_them(program: mt.stages.Compiled, state: Any) -> None:
    wanted = jax.jit(step)(*expected(program)[:1], X)
    assert_same(program(state, X), wanted)
    assert_same(program.measure(state, X)[0], wanted)
    assert_same(program(*mt.place(program, state), X), wanted)
    (args, _) = program.place(state, X)
    assert_same(program(*args), wanted)
    for other in ("equal", "in turns"):  # cut elsewhere
        if state["layers"]["w"].shape == (4, WIDTH, WIDTH):
            assert_same(compiled(other)(state, X), wanted)


@pytest.mark.parametrize("like", ["program", "results", "types", "other program"])
def test_saved_and_restored(tmp_path: Path, program: mt.stages.Compiled, state: Any, like: str) -> None:
    mt.save(tmp_path / "saved", state)
    targets = {
        "program": program,
        "results": state,
        "types": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state_of(len(state["layers"]["w"]))),
        "other program": compiled("in turns" if program is compiled("equal") else "equal"),
    }
    if like == "types":
        spec = NamedSharding(topology()["m0"], PartitionSpec())
        targets["types"] = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spec), targets["types"]
        )
    if like == "other program" and state["layers"]["w"].shape[0] != 4:
        with pytest.raises(mt.MpmdError, match=r"layers\.w is stored as float32\[3, 4, 4\]"):
            mt.restore(tmp_path / "saved", targets[like])
        return
    found = mt.restore(tmp_path / "saved", targets[like])
    assert_same(found, expected(program)[0])
    if like != "types":
        run = targets[like] if like == "other program" else program
        assert_same(run(found, X), jax.jit(step)(expected(program)[0], X))


def test_types_are_told(program: mt.stages.Compiled, state: Any) -> None:
    for described in (mt.abstract(program), program.out_info[0], program.function_types.outputs[0]):
        for spec, x in zip(jax.tree.leaves(described), jax.tree.leaves(state), strict=True):
            assert (spec.shape, spec.dtype) == (x.shape, x.dtype)
    assert program.out_info[0]["host"].sharding.memory_kind == "pinned_host"
    assert program.placement_report().meshes
    assert repr(program) and str(program.output_formats)


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    for cut in CUTS:
        donating = compiled(cut, donated=True)
        given = mt.place(donating, state_of(CUTS[cut][0]))[0]
        first, _ = donating(given, X)
        second, _ = donating(first, X)
        assert_same(mt.fetch(second), jax.jit(step)(expected(compiled(cut))[0], X)[0])
        assert first["layers"]["w"].is_deleted()
        for use in (mt.fetch, lambda x, to=donating: mt.place(to, x), lambda x: mt.save(tmp_path / "saved", x)):
            with pytest.raises(mt.MpmdError, match=r"7 arrays were donated .*: \S*\['count'\], "):
                use(first)
        with pytest.raises(mt.MpmdError, match="donated to an earlier call, or deleted"):
            donating(first, X)
