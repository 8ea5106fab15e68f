"""`memory_analysis` against what XLA reports, donation, and values that wait in host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdWarning, named_computation, named_tensor
from mpmd_trace.backend.plan import Run
from pipelines import accumulate, assert_same, batch, check, config, layer, topology, weights

ONE = topology(2, size=1)


def update(ws: Any, x: jax.Array) -> Any:
    value, grads = accumulate(ws, x)
    return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value


def compiled(fn: Any, *args: Any, schedule: str = "1F1B", **options: Any) -> mpmd_trace.stages.Compiled:
    where = config(topology=ONE, pipeline_schedule=schedule)
    return mpmd_trace.jit(fn, where, **options).lower(*args).compile()


def by_hand(step: mpmd_trace.stages.Compiled, mesh: str) -> int:
    """The peak on a mesh from the sizes that XLA reports for each executable.

    What is alive while a program runs: its own arguments, results and scratch memory as XLA counts them, and
    the values that others will want.
    """
    plan, executables = step.program.plan, step.program.runtime.executables
    last: dict[int, int] = {}
    for at, instruction in enumerate(plan.instructions):
        if hasattr(instruction, "inputs"):
            last.update(dict.fromkeys(instruction.inputs, at))
    last.update(dict.fromkeys([*plan.results, *(a for a in plan.arguments if a not in plan.donated)], 10**9))
    born = dict.fromkeys(plan.arguments, -1)
    peak = 0
    for at, instruction in enumerate(plan.instructions):
        if not isinstance(instruction, Run):
            born.update(dict.fromkeys(getattr(instruction, "outputs", ()), at))
            continue
        born.update(dict.fromkeys(instruction.outputs, at))
        if instruction.mesh != mesh:
            continue
        own = {*instruction.inputs, *instruction.outputs}
        others = [s for s, t in born.items() if t <= at <= last.get(s, -1) and s not in own]
        stats = executables[instruction.program].compiled.memory_analysis()
        held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        held += stats.temp_size_in_bytes
        peak = max(peak, held + sum(plan.slots[s].bytes for s in others if plan.slots[s].mesh == mesh))
    return peak


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_peak_is_what_xla_reports(schedule: str) -> None:
    step = compiled(update, weights(), batch(4, rows=64), schedule=schedule)
    analysis = step.memory_analysis()
    for mesh in ("m0", "m1"):
        assert analysis[mesh].peak == pytest.approx(by_hand(step, mesh), rel=0.15), mesh


def test_sizes_of_one_program_are_those_of_xla() -> None:
    """On one mesh the step is one program, of which XLA reports everything."""
    fn = named_computation(lambda w, x: jnp.tanh(x @ w) @ w.T, name="all")
    where = mpmd_trace.make_config({"m0": ONE["m0"]}, {"all": "m0"})
    args = jnp.ones((32, 64)), jnp.ones((128, 32))
    step = mpmd_trace.jit(fn, where).lower(*args).compile()
    ours = step.memory_analysis()["m0"]
    theirs = jax.jit(fn).lower(*args).compile().memory_analysis()
    assert theirs is not None
    assert ours.arguments == theirs.argument_size_in_bytes
    assert ours.results == theirs.output_size_in_bytes
    assert ours.temporary == theirs.temp_size_in_bytes
    assert ours.peak == ours.arguments + ours.results + ours.temporary


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int4, jnp.float4_e2m1fn, jnp.float8_e4m3fn, jnp.complex64])
def test_elements_take_what_they_do_in_xla(dtype: Any) -> None:
    """XLA gives a bool a byte, and packs other elements that are smaller."""
    fn = named_computation(lambda x: x[::-1], name="all")
    where = mpmd_trace.make_config({"m0": ONE["m0"]}, {"all": "m0"})
    x = jax.ShapeDtypeStruct((1024,), dtype)
    step = mpmd_trace.jit(fn, where).lower(x).compile()
    plan, theirs = step.program.plan, jax.jit(fn).lower(x).compile().memory_analysis()
    assert theirs is not None
    assert plan.slots[plan.arguments[0]].bytes == theirs.argument_size_in_bytes


def test_schedules_differ_in_memory() -> None:
    """On the last mesh 1F1B holds one microbatch, GPipe all of them."""
    args = weights(), batch(8, rows=64)
    peaks = {
        name: compiled(accumulate, *args, schedule=name).memory_analysis()["m1"].peak for name in ("GPipe", "1F1B")
    }
    activation = 64 * 4 * 4
    assert peaks["GPipe"] - peaks["1F1B"] >= 4 * activation


def test_donation_saves_memory() -> None:
    def double(ws: Any) -> Any:
        return [named_computation(lambda w: 2 * w, name=f"f{i}")(w) for i, w in enumerate(ws)]

    kept = compiled(double, weights()).memory_analysis()
    given = compiled(double, weights(), donate_argnums=(0,)).memory_analysis()
    weight = weights()[0].nbytes
    assert {m: a.peak for m, a in kept.items()} == {"m0": 2 * weight, "m1": 2 * weight}
    assert {m: a.peak for m, a in given.items()} == {"m0": weight, "m1": weight}


# Values in the memory of the host.


HOST = [NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host") for mesh in ONE.values()]
KINDS = ["m0#pinned_host", "m1#pinned_host"]


def two(ws: Any, x: jax.Array) -> jax.Array:
    h = named_computation(layer, name="f0")(ws[0], x)
    h = named_tensor(h, name="waiting")
    return named_computation(lambda w, h: jnp.sum(layer(w, h)), name="f1")(ws[1], h)


def test_a_named_tensor() -> None:
    where = config({"f0": "m0", "f1": "m1", "waiting": "m0#pinned_host"}, topology=ONE)
    jitted = check(two, weights(), batch(), config=where)
    plan = jitted.lower(weights(), batch()).compile().program.plan
    kinds = {plan.slots[s].memory_kind for i in plan.transfers for s in (*i.inputs, *i.outputs)}
    assert "pinned_host" in kinds


def test_a_named_tensor_that_comes_straight_back() -> None:
    where = config({"f0": "m0", "f1": "m0", "waiting": "m0#pinned_host"}, topology=ONE)
    with pytest.warns(MpmdWarning, match="'waiting' is assigned to m0#pinned_host and stays") as found:
        assert "pinned_host" not in mpmd_trace.jit(two, where).lower(weights(), batch()).as_text("plan")
    assert f"{found[0].filename}:{found[0].lineno}" == where.where


def test_an_argument_and_a_result() -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        return two(ws, x), [2 * w for w in ws]

    where = config(
        topology=ONE,
        input_mesh_assignment=(["m0#pinned_host", "m1"], None),
        output_mesh_assignment=(None, ["m0#pinned_host", "m1"]),
    )
    args = weights(), batch()
    done = mpmd_trace.jit(step, where).lower(*args).compile()
    found = done(*args)
    assert_same(found, jax.jit(step)(*args))
    assert found[1][0].sharding.memory_kind == "pinned_host"
    assert done.function_named_shardings.inputs[0][0][0].memory_kind == "pinned_host"
    # Once more with what it gave, as a training loop does.
    assert_same(done(found[1], args[1]), jax.jit(step)(jax.device_get(found[1]), args[1]))


def test_a_state_that_leaves_in_another_memory() -> None:
    """It is moved to where the assignment wants it, by one program for all later steps."""
    where = config(topology=ONE, input_mesh_assignment=(["m0#pinned_host", "m1"], None))
    jitted = mpmd_trace.jit(update, where)
    found, expected = weights(), weights()
    for _ in range(3):
        found, expected = jitted(found, batch(2))[0], jax.jit(update)(expected, batch(2))[0]
        assert_same(found, expected)
        assert found[0].sharding.memory_kind == "device"
    outside = jax.device_put(found[0], NamedSharding(ONE["m0"], PartitionSpec(), memory_kind="pinned_host"))
    assert_same(jitted([outside, found[1]], batch(2)), jax.jit(update)(jax.device_get(found), batch(2)))


def test_arguments_of_a_loop() -> None:
    """The calls get them from the device, moved there once."""
    both = {"input_mesh_assignment": (KINDS, None), "output_mesh_assignment": (KINDS, None)}
    where = config(topology=ONE, pipeline_schedule="1F1B", **both)
    done = mpmd_trace.jit(update, where).lower(weights(), batch(4)).compile()
    found = done(weights(), batch(4))
    assert_same(found, jax.jit(update)(weights(), batch(4)))
    assert [w.sharding.memory_kind for w in found[0]] == ["pinned_host"] * 2
    assert_same(done(found[0], batch(4)), jax.jit(update)(jax.device_get(found[0]), batch(4)))
    plan = done.program.plan
    up = [s for t in plan.transfers for s in t.inputs if plan.slots[s].memory_kind == "pinned_host"]
    assert sorted(up) == [0, 1]


@pytest.mark.parametrize("moved", [False, True], ids=["", "moved"])
def test_shardings_with_a_memory(moved: bool) -> None:
    """With and without the `device_put`s that a program for accelerators needs."""
    device = [sharding.with_memory_kind("device") for sharding in HOST]

    def step(ws: Any, x: jax.Array) -> Any:
        ws = jax.device_put(ws, device) if moved else ws
        new, value = update(ws, x)
        return (jax.device_put(new, HOST) if moved else new), value

    jitted = mpmd_trace.jit(step, config(topology=ONE), in_shardings=(HOST, None), out_shardings=(HOST, None))
    found = jitted(weights(), batch(2))
    assert_same(found, jax.jit(update)(weights(), batch(2)))
    assert [w.sharding.memory_kind for w in found[0]] == ["pinned_host"] * 2
    assert_same(jitted(found[0], batch(2)), jax.jit(update)(jax.device_get(found[0]), batch(2)))


def test_a_result_that_the_program_puts_there() -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        return jax.device_put(x * 2, jax.memory.Space.Host), two(ws, x)

    found = mpmd_trace.jit(step, config(topology=ONE))(weights(), batch())
    assert_same(found, (2 * batch(), two(weights(), batch())))
    assert found[0].sharding.memory_kind == "pinned_host"


IN_MESH = {"input_mesh_assignment": (KINDS, None, None)}
IN_SHARDINGS = {"in_shardings": (HOST, None, None)}
#: Options of the configuration and of `jit` that put the first argument there.
SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "array": ({}, {}),
    "in_shardings": ({}, IN_SHARDINGS),
    "donated": ({}, {**IN_SHARDINGS, "donate_argnums": 0}),
    "in_mesh": (IN_MESH, {}),
    "in_and_out_mesh": ({**IN_MESH, "output_mesh_assignment": (None, KINDS)}, {}),
    "same_mesh": ({**IN_MESH, "output_mesh_assignment": (None, mpmd_trace.MeshOfInput(0))}, {}),
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_an_argument_that_is_returned(said: str, used: bool) -> None:
    """It stays where it is, whoever put it there; programs that use it get it as ever."""

    def step(ws: Any, x: jax.Array, others: Any) -> Any:
        return two(ws if used else others, x), ws

    ws, others = weights(), [2 * w for w in weights()]
    expected = jax.jit(step)(ws, batch(), others)
    where, options = SAID[said]
    if said == "array":
        ws = jax.device_put(ws, HOST)
    jitted = mpmd_trace.jit(step, config(topology=ONE, **where), **options)
    found = jitted(ws, batch(), others)
    assert_same(found, expected)
    assert [w.sharding.memory_kind for w in found[1]] == ["pinned_host"] * 2
    assert_same(jitted(found[1], batch(), others), expected)


@pytest.mark.parametrize("kinds", ["hd", "dh", "hh", "h-"])
@pytest.mark.parametrize("given", [None, "m1", "m1#pinned_host", "m0#pinned_host"])
def test_uses_in_several_memories(kinds: str, given: str | None) -> None:
    def step(ws: Any, x: jax.Array, u: jax.Array) -> Any:
        t = named_tensor(u, name="t")
        s = u if kinds[1] == "-" else named_tensor(u, name="s")
        return two(ws, x) + t * s, t, s, u

    memories = {"h": "m1#pinned_host", "d": "m1"}
    names = {"f0": "m0", "f1": "m1", "t": memories[kinds[0]], "s": memories.get(kinds[1], "")}
    if kinds[1] == "-":
        del names["s"]
    where = config(names, topology=ONE, input_mesh_assignment=(None, None, given))
    args = weights(), batch(), batch()
    found = mpmd_trace.jit(step, where)(*args)
    assert_same(found, jax.jit(step)(*args))
    wanted = ["pinned_host" if kind == "h" else "device" for kind in kinds]
    wanted[1] = found[2].sharding.memory_kind if kinds[1] == "-" else wanted[1]
    assert [found[1].sharding.memory_kind, found[2].sharding.memory_kind] == wanted


def test_a_value_sent_from_host_to_host() -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        t = named_tensor(named_computation(layer, name="f0")(ws[0], x), name="t")
        return named_tensor(t, name="s"), two(ws, x)

    names = {"f0": "m0", "f1": "m1", "waiting": "m0", "t": "m0#pinned_host", "s": "m1#pinned_host"}
    found = check(step, weights(), batch(), config=config(names, topology=ONE))(weights(), batch())
    assert found[0].sharding.memory_kind == "pinned_host"


def test_results_of_calls() -> None:
    def step(ws: Any, x: jax.Array) -> Any:
        return mpmd_trace.call(two, 0)(ws, x), x * 2

    where = config(topology=ONE, output_mesh_assignment=("m1#pinned_host", "m0#pinned_host"))
    found = check(step, weights(), batch(), config=where)(weights(), batch())
    assert [x.sharding.memory_kind for x in found] == ["pinned_host", "pinned_host"]
