"""Meshes of the same devices share them: nothing is copied between them, and a device has the memory of all of them."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace as mt
from mpmd_trace import MpmdError, named_computation
from mpmd_trace.frontend.errors import FrontendError
from pipelines import assert_same, batch, config, layer, loss, summed_values, topology, weights
from programs import tied, tiny, uneven
from util import nightly

DEVICES = jax.devices()


def on_one_device(count: int) -> dict[str, Mesh]:
    return {f"m{i}": Mesh(np.array(DEVICES[:1]), ("x",)) for i in range(count)}


def shared(given: mt.config.Config, schedule: Any = "as it is") -> mt.config.Config:
    """The configuration with all meshes on the devices of the first."""
    devices = next(iter(given.topology.values())).devices
    meshes = {n: Mesh(devices.reshape(m.devices.shape), m.axis_names) for n, m in given.topology.items()}
    changed = dataclasses.replace(given, topology=MappingProxyType(meshes))
    return changed if schedule == "as it is" else dataclasses.replace(changed, pipeline_schedule=schedule)


def step(ws: Any, x: jax.Array) -> Any:
    value, grads = summed_values(loss, ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def jitted(layers: int = 4, meshes: int = 4, fn: Any = step, where: Any = None, **options: Any) -> Any:
    names = {f"f{i}": f"m{i * meshes // layers}" for i in range(layers)}
    found = config(names, topology=where or on_one_device(meshes), **{"pipeline_schedule": "1F1B", **options})
    return mt.jit(fn, found, donate_argnums=0)


def buffers(tree: Any) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for x in jax.tree.leaves(tree) for shard in x.addressable_shards]


@pytest.mark.parametrize("schedule", [None, "1F1B", "zb-h1", "interleaved-1f1b"])
def test_a_training_loop_on_one_device_has_the_numbers_of_jit(schedule: str | None) -> None:
    meshes = 2 if schedule == "interleaved-1f1b" else 4
    names = {f"f{i}": f"m{i % meshes}" for i in range(4)}
    run = mt.jit(step, config(names, topology=on_one_device(meshes), pipeline_schedule=schedule), donate_argnums=0)
    ours, theirs, x = weights(4), weights(4), batch(8)
    for _ in range(3):
        before = ours
        ours, value = run(ours, x)
        theirs, expected = jax.jit(step)(theirs, x)
        assert_same((ours, value), (theirs, expected))
        assert all(w.is_deleted() for w in before) and not x.is_deleted()
    assert not run.lower(ours, x).compile().program.plan.transfers


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (tiny.program, "zb-h1"),
        (tied.program, "as it is"),
        nightly(tied.program, None),
        nightly(uneven.program, "GPipe"),
    ],
)
def test_programs_of_several_devices_a_mesh(make: Any, schedule: str | None) -> None:
    program = make()
    program = dataclasses.replace(program, config=shared(program.config, schedule))
    compiled = program.jitted().lower(*program.args).compile()
    found = compiled(*mt.place(compiled, *jax.tree.map(jnp.array, program.args)))
    assert_same(found, jax.jit(program.fn)(*program.args), rtol=2e-4, atol=1e-5)


def apart(a: jax.Array, b: jax.Array) -> Any:
    return named_computation(layer, name="f0")(a, a), named_computation(layer, name="f1")(b, b)


def test_results_have_buffers_of_their_own() -> None:
    """A value, and an argument, that are returned on two meshes may be donated one by one."""

    def fn(w: jax.Array, x: jax.Array) -> Any:
        h = named_computation(layer, name="f0")(w, x)
        y = named_computation(lambda w, h: h @ w, name="f1")(w, h)
        return (w, w), (h, h), y

    outputs = (("m0", "m1"), ("m0", "m1"), "m1")
    found = config(topology=on_one_device(2), output_mesh_assignment=outputs, input_mesh_assignment=("m0", "m0"))
    run, w, x = mt.jit(fn, found), weights()[0], batch()
    results = run(w, x)
    assert_same(results, fn(w, x))
    (_, moved), hidden, y = results
    assert len(set(buffers((moved, hidden[0], hidden[1], y)))) == 4
    assert buffers(moved) != buffers(w)
    again = mt.jit(apart, config(topology=on_one_device(2)), donate_argnums=0)
    expected = layer(np.asarray(hidden[0]), np.asarray(hidden[0]))
    assert_same(again(*hidden), (expected, expected))
    assert hidden[0].is_deleted() and not hidden[1].is_deleted()


def test_an_argument_that_two_meshes_read_is_donated_after_both() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        h = named_computation(layer, name="f0")(w, x)
        return named_computation(lambda w, h: w + jnp.sum(h), name="f1")(w, h)

    for donated in ((), (0,)):
        run = mt.jit(fn, config(topology=on_one_device(2)), donate_argnums=donated)
        w = weights()[0]
        expected = fn(w, batch())
        assert_same(run(w, batch()), expected)
        assert w.is_deleted() == bool(donated)
        if not donated:
            assert_same(run(w, batch()), expected)


def test_one_array_for_two_donated_arguments_is_refused() -> None:
    run = mt.jit(apart, config(topology=on_one_device(2)), donate_argnums=(0,))
    w = jax.device_put(weights()[0], NamedSharding(on_one_device(1)["m0"], P()))
    alias = jax.device_put(w, w.sharding)
    with pytest.raises(MpmdError, match=r"is donated; pass a copy"):
        run(w, alias)


def test_equal_programs_are_one_executable() -> None:
    executables = jitted().lower(weights(4), batch(8)).compile().program.runtime.executables
    assert len({id(one.compiled) for one in executables}) == len({one.compiled_as for one in executables})
    inner = [one for one in executables if one.spec.mesh in ("m1", "m2")]
    assert len({id(one.compiled) for one in inner}) == len(inner) / 2


def test_a_device_has_the_memory_of_all_meshes() -> None:
    args = weights(4), batch(8, rows=64)
    apart = jitted(where=topology(4, size=1)).lower(*args)
    together = jitted().lower(*args)
    for before, after in (
        (apart.memory_analysis(), together.memory_analysis()),
        (apart.compile().memory_analysis(), together.compile().memory_analysis()),
    ):
        (peak,) = {one.peak for one in after.values()}
        assert max(one.peak for one in before.values()) < peak <= sum(one.peak for one in before.values())
        assert sum(one.arguments for one in after.values()) <= peak
        assert {m: one.arguments for m, one in after.items()} == {m: one.arguments for m, one in before.items()}
    held = together.placement_report()
    assert held.sharing == (("m0", "m1", "m2", "m3"),)
    parts = ("parameters", "state", "arguments", "gradients", "activations", "hoisted")
    assert sum(getattr(one, part) for one in held.meshes for part in parts) == held.meshes[0].peak


def test_the_peak_is_what_arrays_take() -> None:
    """Of a plan whose programs need no scratch memory: the arrays that are alive while it runs, each once."""
    compiled = jitted().lower(weights(4), batch(8, rows=64)).compile()
    plan, runtime = compiled.program.plan, compiled.program.runtime
    flat = jax.tree.leaves(mt.place(compiled, weights(4), batch(8, rows=64)))
    slots: list[Any] = [*flat, *[None] * (len(plan.slots) - len(flat))]
    most = 0
    calls = iter(runtime.calls)
    for instruction in plan.instructions:
        if not hasattr(instruction, "inputs"):
            for slot in instruction.slots:
                slots[slot] = None
            continue
        outputs = next(calls)([slots[s] for s in instruction.inputs])
        for slot, value in zip(instruction.outputs, outputs, strict=True):
            slots[slot] = value
        alive = {buffers(x)[0]: x.nbytes for x in slots if x is not None and not x.is_deleted()}
        most = max(most, sum(alive.values()))
    assert most <= plan.live_bytes()["m0"]
    assert plan.live_bytes()["m0"] <= 1.2 * most


def test_activations_of_all_meshes_are_made_to_fit_together() -> None:
    args = weights(4), batch(8, rows=256)
    (peak,) = {one.peak for one in jitted().lower(*args).compile().memory_analysis().values()}
    limit = int(0.85 * peak)
    run = jitted(device_memory=limit, remat="auto")
    compiled = run.lower(*args).compile()
    assert max(one.peak for one in compiled.memory_analysis().values()) <= limit
    expected = jax.jit(step)(*args)
    assert_same(compiled(*mt.place(compiled, *args)), expected)


def test_a_measured_step_has_each_program_on_its_mesh() -> None:
    program = tiny.sharing()
    compiled = program.jitted().lower(*program.args).compile()
    flat = jax.tree.leaves(mt.place(compiled, *program.args))
    results, timeline = compiled.program.measure(*flat)
    assert_same(jax.tree.unflatten(jax.tree.structure(compiled(*program.args)), results), compiled(*program.args))
    assert [entry.lane for entry in timeline.entries] == [run.mesh for run in compiled.program.plan.runs]


def test_a_saved_program_runs_on_devices_apart_and_together(tmp_path: Any) -> None:
    args = weights(4), batch(8)
    expected = jax.jit(step)(*args)
    apart, together = topology(4, size=1), on_one_device(4)
    for made in (apart, together):
        jitted(where=made).lower(*args).compile().save(tmp_path / "step")
        for there in (None, apart, together):
            loaded = mt.load(tmp_path / "step", there)
            assert_same(loaded(*mt.place(loaded, *jax.tree.map(jnp.copy, args))), expected)
            assert bool(loaded.program.plan.transfers) == ((there or made) is apart)
    pairs = {"m0": apart["m0"], "m1": apart["m0"], "m2": apart["m1"], "m3": apart["m1"]}
    all_of_them, some = (len(mt.load(tmp_path / "step", m).program.plan.transfers) for m in (apart, pairs))
    assert 0 < some < all_of_them / 2


def test_a_saved_program_does_not_run_on_meshes_that_overlap(tmp_path: Any) -> None:
    program = tiny.program()
    program.jitted().lower(*program.args).compile().save(tmp_path / "step")
    meshes = {name: Mesh(np.array(DEVICES[i : i + 2]), ("x",)) for i, name in enumerate(("m0", "m1"))}
    with pytest.raises(MpmdError, match="the meshes 'm0' and 'm1' overlap"):
        mt.load(tmp_path / "step", meshes)


def test_meshes_of_other_axes_share_devices_too() -> None:
    devices = np.array(DEVICES[:4])
    meshes = {"m0": Mesh(devices, ("x",)), "m1": Mesh(devices.reshape(2, 2), ("a", "b"))}
    put = NamedSharding(meshes["m0"], P("x")), NamedSharding(meshes["m1"], P("a", "b"))
    run = mt.jit(step, config(topology=meshes, pipeline_schedule="1F1B"), in_shardings=([None, put[1]], None))
    args = weights(2), batch(4, rows=8)
    assert_same(run(*args), jax.jit(step)(*args))


def test_meshes_share_all_devices_or_none() -> None:
    def wrong(*meshes: list[int]) -> str:
        with pytest.raises(FrontendError) as error:
            config(topology={f"m{i}": Mesh(np.array([DEVICES[n] for n in m]), ("x",)) for i, m in enumerate(meshes)})
        return str(error.value)

    text = wrong([0, 1], [1, 2])
    assert f"the meshes 'm0' and 'm1' overlap: both have {DEVICES[1]}." in text
    assert "both the same ones in the same order" in text
    assert "both have the same devices, in different orders" in wrong([0, 1], [1, 0])
    assert "'m0' and 'm2' overlap" in wrong([0, 1], [0, 1], [0])
