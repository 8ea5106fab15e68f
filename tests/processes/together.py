"""What several processes do together; each of them runs this script, and says what it has checked.

Every program runs over the meshes of all processes, over meshes of the same shapes in this process alone, and with
plain `jax.jit`: the first two must be equal bit for bit.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax._src import distributed
from jax.sharding import NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
import together_files  # noqa: F401 (its checks)
from comparing import (
    ACROSS,
    CHECKS,
    IN_TURNS,
    ONE_EACH,
    SECOND_ALONE,
    STAGES,
    UNEQUAL,
    WIDTH,
    Places,
    batch,
    check,
    close,
    forward,
    layer,
    run,
    same,
    topology,
    train,
    values,
    weights,
)

import mpmd_trace as mt
import shared_work
from mpmd_trace.backend import load
from mpmd_trace.backend.distribution.job import current

#: Host arrays are repeated on purpose; a test of its own reads the warning.
REPEATED = ".* of host arrays come again"


@check
def schedules() -> None:
    for schedule in ("1F1B", "zb-h1"):  # and GPipe below
        jitted = run(train, (weights(2), batch()), STAGES, pipeline_schedule=schedule)
        if schedule == "1F1B":
            (compiled,) = (c for found in jitted._compiled.values() for c in found)
            assert abs(compiled.step_stats().bubble - 1 / 4) < 0.1  # what other processes run counts


@check
def stages_in_turns() -> None:
    jitted = run(train, (weights(4), batch()), IN_TURNS, pipeline_schedule="1F1B", jit={"donate_argnums": 0})
    (compiled,) = (c for found in jitted._compiled.values() for c in found)
    mine = [e.spec.mesh for e in compiled.program.runtime.own_executables]
    assert set(mine) == ({"m0", "m2"} if jax.process_index() == 0 else {"m1", "m3"})  # nothing else is compiled
    assert set(compiled.memory_analysis()) == set(mine)


@check
def several_meshes_of_a_process() -> None:
    """Copies between its own meshes are neighbors in its part, whatever others do in between."""

    def loss(ws: Any, x: Any) -> Any:
        return jnp.mean(forward(ws, x) ** 2)

    def step(ws: Any, batch: Any) -> Any:
        value, grads = mt.value_and_grad(loss, microbatches=4)(ws, batch)
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value

    rows = np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32)
    for owners, schedule in (((0, 1, 0, 1), "1F1B"), ((0, 0, 1, 1), "GPipe"), ((1, 0, 0, 0), "1F1B")):
        places = {f"m{i}": [(p, owners[:i].count(p))] for i, p in enumerate(owners)}
        run(step, (weights(4), rows), places, pipeline_schedule=schedule)


@check
def meshes_that_share_devices() -> None:
    """Of one process each, and with devices of both."""
    first, second, both = [(0, 0)], [(1, 0)], [(0, 0), (1, 0)]
    dealt = (((first, first, second, second), "1F1B"), ((first, second, first, second), None), ((both,) * 4, "1F1B"))
    for places, schedule in dealt:
        meshes = {f"m{i}": place for i, place in enumerate(places)}
        run(train, (weights(4), batch()), meshes, pipeline_schedule=schedule, jit={"donate_argnums": 0})


@check
def meshes_over_two_processes() -> None:
    spec = NamedSharding(topology(ACROSS, False)["m0"], PartitionSpec(None, "x"))
    here = NamedSharding(topology(ACROSS, True)["m0"], PartitionSpec(None, "x"))
    results = []
    for sharding, local in ((spec, False), (here, True)):
        made = mt.make_config(topology(ACROSS, local), {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
        jitted = mt.jit(train, made, in_shardings=(None, sharding))
        found = jitted(weights(2), batch())
        results.append(values(found) if local else mt.fetch(found))
    same(*results)


@check
def a_process_without_a_mesh() -> None:
    run(train, (weights(2), batch()), SECOND_ALONE)


@check
def all_decide_alike_what_fits() -> None:
    """What XLA needs is known to the process that compiles it; another program for that is one in all of them."""

    def step(ws: Any, batch: Any) -> Any:
        def loss(ws: Any, x: Any) -> Any:
            for i, w in enumerate(ws):
                x = mt.named_computation(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w), name=f"f{i}")(w, x)
            return jnp.mean(x**2)

        value, grads = mt.value_and_grad(loss, microbatches=4)(ws, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value

    def compiled(places: Places, **options: Any) -> mt.stages.Compiled:
        made = mt.make_config(topology(places, False), {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B", **options)
        return mt.jit(step, made).lower(weights(2), rows).compile()

    rows = np.random.default_rng(1).normal(size=(4 * 64, WIDTH)).astype(np.float32)
    whole = compiled(ONE_EACH)
    most = max(whole.program.peaks.values())
    for places in (ONE_EACH, SECOND_ALONE):  # a process without a mesh has nothing to say
        fitted = compiled(places, remat="auto", device_memory=most - 1)
        assert fitted.lowered.attempts or places is not ONE_EACH, "XLA needs more than was known"
        assert max(fitted.program.peaks.values()) < most
        close(mt.fetch(fitted(weights(2), rows)), mt.fetch(whole(weights(2), rows)))


@check
def forward_only() -> None:
    run(lambda x, ws: (forward(ws, x), jnp.sum(x)), (batch()[0], weights(2)), UNEQUAL, plain=True)


def kinds() -> dict[str, Any]:
    generator = np.random.default_rng(2)
    found = {
        str(dtype): generator.integers(0, 2, size=(4, 6)).astype(dtype)
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.int8, jnp.uint16, jnp.int4, bool, jnp.complex64)
    }
    found["scalar"] = np.float32(3)
    found["empty"] = np.zeros((4, 0), np.float32)
    found["key"] = jax.random.key(7)
    return found


@check
def all_types() -> None:
    def there_and_back(xs: dict[str, Any], y: Any) -> tuple[dict[str, Any], Any]:
        first = mt.named_computation(lambda xs: jax.tree.map(lambda x: x if x.ndim == 0 else x[::-1], xs), name="f0")
        second = mt.named_computation(lambda xs: jax.tree.map(lambda x: x if x.ndim == 0 else x[::-1], xs), name="f1")
        third = mt.named_computation(lambda xs: jax.tree.map(lambda x: x.reshape(x.shape), xs), name="f2")
        return third(second(first(xs))), y + 1

    names = {"f0": "m0", "f1": "m1", "f2": "m0"}
    for places in (STAGES, UNEQUAL):
        run(there_and_back, (kinds(), np.float32(1)), places, names=names, plain=False)


@check
def shardings_that_differ() -> None:
    """A value is cut along rows on one mesh, and along columns, or not at all, on the other one."""

    def step(x: Any, y: Any) -> tuple[Any, Any]:
        a = mt.named_computation(lambda x: x * 2, name="f0")(x)
        b = mt.named_computation(lambda a, y: a + y, name="f1")(a, y)
        return b, jnp.sum(b)

    x, y = (np.arange(32, dtype=np.float32).reshape(4, 8) + i for i in range(2))
    for places in (STAGES, {"m0": [(0, 0), (1, 1)], "m1": [(1, 0), (0, 1)]}, UNEQUAL):
        results = []
        for here in (False, True):
            meshes = topology(places, here)
            made = mt.make_config(meshes, {"f0": "m0", "f1": "m1"})
            rows = NamedSharding(meshes["m0"], PartitionSpec("x"))
            columns = NamedSharding(meshes["m1"], PartitionSpec(None, "x"))
            jitted = mt.jit(step, made, in_shardings=(rows, columns), out_shardings=(columns, None))
            found = jitted(x, y)
            assert found[0].sharding.is_equivalent_to(columns, 2)
            results.append(values(found) if here else mt.fetch(found))
        same(*results)
        close(results[0], jax.tree.map(np.asarray, step(x, y)))


@check
def arguments_of_all_kinds() -> None:
    """Arrays of each process's own part, global ones, and results that are wanted on another mesh."""

    def step(x: Any, w: Any) -> tuple[Any, Any]:
        a = mt.named_computation(layer, name="f0")(w, x)
        return mt.named_computation(lambda a: a * 2, name="f1")(a), w

    made = mt.make_config(topology(ACROSS, False), {"f0": "m0", "f1": "m1"})
    rows = NamedSharding(made.topology["m0"], PartitionSpec("x"))
    jitted = mt.jit(step, made, in_shardings=(rows, None))
    x, w = batch()[0], weights(1)[0]
    compiled = jitted.lower(jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype)).compile()
    wanted = compiled.function_named_shardings.inputs[0][0]
    half = x[2 * jax.process_index() :][:2]  # the part of this process
    given = jax.make_array_from_process_local_data(wanted, half, x.shape)
    first = mt.fetch(jitted(given, w))
    same(first, mt.fetch(jitted(x, w)))
    same(first, mt.fetch(compiled(*compiled.place(x, w)[0])))
    back, _ = jitted(x, w)
    assert back.sharding.device_set == set(made.topology["m1"].devices.flat)
    same(mt.fetch(jitted(back, w)), mt.fetch(jitted(mt.fetch(back), w)))  # moved by the library


@check
def what_one_process_moves_alone() -> None:
    """Others neither wait for it nor count it: what goes between processes afterwards has the same number in all."""

    def step(x: Any, w: Any) -> Any:
        return mt.named_computation(lambda a: a * 2, name="f1")(mt.named_computation(layer, name="f0")(w, x))

    for places in (SECOND_ALONE, ONE_EACH):
        made = mt.make_config(topology(places, False), {"f0": "m0", "f1": "m1"})
        jitted, x, w = mt.jit(step, made), batch()[0], weights(1)[0]
        back = jitted(x, w)
        assert back.sharding.device_set == set(made.topology["m1"].devices.flat)
        same(mt.fetch(jitted(back, w)), mt.fetch(jitted(mt.fetch(back), w)))


@check
def created_and_placed() -> None:
    made = mt.make_config(topology(STAGES, False), {"f0": "m0", "f1": "m1"})
    structs = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 2
    compiled = mt.jit(train, made).lower(structs, jax.ShapeDtypeStruct((3, 4, WIDTH), jnp.float32)).compile()

    def init(key: jax.Array) -> list[jax.Array]:
        return [jax.random.normal(k, (WIDTH, WIDTH)) for k in jax.random.split(key)]

    state = mt.create(init, compiled, jax.random.key(0))
    assert [len(x.addressable_shards) > 0 for x in state] == [jax.process_index() == i for i in range(2)]
    same(mt.fetch(state), jax.tree.map(np.asarray, init(jax.random.key(0))))
    (placed,) = mt.place(compiled, weights(2))
    assert [x.sharding for x in placed] == [x.sharding for x in state]
    compiled(placed, batch())


@check
def layers_in_unequal_pieces() -> None:
    """Results that are no array of JAX are fetched and passed back as others are."""

    def step(p: Any, x: Any) -> Any:
        def block(x: Any, own: Any) -> Any:
            return jnp.tanh(x @ own["w"]) + own["empty"].sum() + jax.random.uniform(own["key"]), None

        y, _ = mt.scan(block, x, p, name="blocks")
        return {**p, "w": 0.5 * p["w"]}, jnp.sum(y)

    keys = jax.random.split(jax.random.key(1), 3)
    p = {"w": np.stack(weights(3)), "key": keys, "empty": np.zeros((3, 0, 2), np.float32)}
    names = {"blocks[0:1]": "m0", "blocks[1:3]": "m1"}
    for places in (STAGES, UNEQUAL, SECOND_ALONE):
        run(step, (p, batch()[0]), places, names=names, placement="cut")
    made = mt.make_config(topology(STAGES, False), names, placement="cut")
    compiled = mt.jit(step, made).lower(p, batch()[0]).compile()
    found, value = compiled(*compiled.place(p, batch()[0])[0])
    assert isinstance(found["w"], mt.stages.Pieces)
    same(mt.fetch(compiled(*mt.place(compiled, found), batch()[0])), mt.fetch(compiled(mt.fetch(found), batch()[0])))
    assert mt.fetch(value).shape == ()
    saved = os.environ["FOLDER"] + ".pieces"
    mt.save(saved, found)  # nobody has all of it
    equal = mt.make_config(topology({**STAGES, "m2": [(1, 2)]}, False), {"blocks": ["m0", "m1", "m2"]}, placement="cut")
    other = mt.jit(step, equal).lower(p, batch()[0]).compile()
    for like in (compiled, found, other):
        same(mt.fetch(mt.restore(saved, like)), mt.fetch(found))
    wanted: list[Any] = []
    restore = ocp.Checkpointer.restore
    ocp.Checkpointer.restore = lambda *args, **given: wanted.append(given["item"]) or restore(*args, **given)
    mt.restore(saved, other)
    ocp.Checkpointer.restore = restore
    read = {name for name, one in wanted[0].items() if one is not ocp.PLACEHOLDER and name.endswith("['w']")}
    rows = ["0:1"] if jax.process_index() == 0 else ["1:3"]  # the pieces that it has a layer of
    assert read == {f"rows {one} of axis 0 of ['w']" for one in rows}


@check
def values_of_other_processes_say_how_to_get_them() -> None:
    made = mt.make_config(topology(STAGES, False), {"f1": "m1"})
    x = mt.jit(lambda w: mt.named_computation(jnp.sum, name="f1")(w), made)(batch()[0])
    value = mt.fetch(x)
    if x.sharding.has_addressable_devices:
        assert float(f"{x:.6f}") == round(float(value), 6) and "fetch" not in repr(x)
        return
    assert "mpmd_trace.fetch(x), called in all processes, gives the value" in f"{x}"
    try:
        float(x)
    except RuntimeError as error:
        assert "mpmd_trace.fetch(x), called in all processes" in "".join(error.__notes__)
    else:
        raise AssertionError("a value from nowhere")


@check
def what_a_forked_child_does_is_not_the_process() -> None:
    jitted = run(train, (weights(2), batch()), STAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of every fork
        child = os.fork()
    if child == 0:
        try:
            raise ValueError("a child's")
        except ValueError as error:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            sys.excepthook(ValueError, error, error.__traceback__)
        distributed.global_state.client = None  # as at the end of a process, which JAX's threads would keep
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    mt.fetch(jitted(weights(2), batch()))


@check
def nobody_starts_before_all_have_compiled() -> None:
    job, me = current(), jax.process_index()
    assert job is not None
    compile_programs, done = load.compile_programs, 0.0

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        time.sleep(0.5 * me)
        found = compile_programs(*arguments, **options)
        done = job.peers.clock()
        return found

    made = mt.make_config(topology(STAGES, False), {"f0": "m0", "f1": "m1"})
    load.compile_programs = slow
    try:
        mt.jit(train, made).lower(weights(2), batch(2)).compile()
    finally:
        load.compile_programs = compile_programs
    began = job.peers.clock()
    ends = [float(found) for found in job.peers.allgather_bytes("test", str(done).encode())]
    assert began > max(ends) - 1e-3


@check
def timelines_are_of_all_processes() -> None:
    """On one clock: nothing starts before what it reads has ended, wherever that was."""
    for places in (STAGES, IN_TURNS, ACROSS, UNEQUAL):
        names = {f"f{i}": name for i, name in enumerate(places)}
        made = mt.make_config(topology(places, False), names, pipeline_schedule="1F1B")
        compiled = mt.jit(train, made).lower(weights(len(places)), batch()).compile()
        result, timeline = compiled.measure(weights(len(places)), batch())
        same(mt.fetch(result), mt.fetch(compiled(weights(len(places)), batch())))
        plan = compiled.program.plan
        work = [i for i in plan.instructions if i in (*plan.runs, *plan.transfers)]
        assert [e.instruction for e in timeline.entries] == list(range(len(work)))
        ended: dict[int, float] = {}
        for entry, instruction in zip(timeline.entries, work, strict=True):
            late = max((ended.get(slot, 0.0) for slot in instruction.inputs), default=0.0)
            assert late <= entry.start <= entry.end <= timeline.seconds
            ended.update(dict.fromkeys(instruction.outputs, entry.end))
        assert all(0 < busy <= 1 for busy in timeline.busy().values())


@check
def large_arrays() -> None:
    """Their memory is lent to others; when a step is measured, the two ends come to them in another order."""
    generator = np.random.default_rng(2)
    large = [(0.1 * generator.normal(size=(128, 128))).astype(np.float32) for _ in range(4)]
    x = generator.normal(size=(2, 4096, 128)).astype(np.float32)
    jitted = run(train, (large, x), IN_TURNS, plain=False, pipeline_schedule="1F1B")
    compiled = jitted.lower(large, x).compile()
    expected = mt.fetch(compiled(large, x))
    for _ in range(3):
        same(mt.fetch(compiled.measure(large, x)[0]), expected)


@check
def memory_does_not_grow() -> None:
    """What was sent and received goes: thirty steps move several times more than may be left over."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    made = mt.make_config(topology(STAGES, False), {"f0": "m0", "f1": "m1"})
    jitted = mt.jit(train, made, donate_argnums=0)
    ws = [np.zeros((64, 64), np.float32)] * 2
    rows = np.zeros((3, 2048, 64), np.float32)  # an activation is 512 KiB, and a step sends three of them
    for number in range(40):
        ws, _ = jitted(ws, rows)
        if number == 9:
            before = resident()
    assert resident() - before < 20 << 20, f"{(resident() - before) >> 20} MiB more after 30 steps"


@check
def errors_of_the_user() -> None:
    """The same mistake in all processes is an error in all of them, after which they can go on."""
    made = mt.make_config(topology(STAGES, False), {"f0": "m0", "f1": "m1"})
    jitted = mt.jit(train, made)
    jitted(weights(2), batch())
    elsewhere = jax.device_put(batch(), jax.local_devices()[3])
    try:
        jitted(weights(2), elsewhere)
    except mt.MpmdError as error:
        assert "argument batch is on device" in str(error)
    else:
        raise AssertionError("an array on a device of no mesh is taken")
    jitted(weights(2), batch())


def tools() -> list[str | None]:
    """The tools that watch what Python does."""
    return [sys.monitoring.get_tool(number) for number in range(6)] if sys.version_info >= (3, 12) else []


TOOLS = tools()


@check
def after_shutdown_a_process_computes_on_its_own_devices() -> None:
    """The last check: there is no job any more."""
    assert [tool for number, tool in enumerate(tools()) if number not in (3, 4)] == TOOLS[:3] + TOOLS[5:]
    mt.shutdown()
    assert tools() == TOOLS and current() is None
    made = mt.make_config(topology(STAGES, True), {"f0": "m0", "f1": "m1"})
    found = values(mt.jit(train, made)(weights(2), batch()))
    with jax.default_device(jax.local_devices()[0]):
        close(found, values(jax.jit(train)(weights(2), batch())))


def main() -> None:
    shared_work.compile_equal_programs_once()
    shared_work.share_contexts()
    mt.initialize()
    logging.getLogger("mpmd_trace").setLevel(logging.ERROR)  # meshes wait for each other without a schedule: so be it
    wanted = sys.argv[1:]
    assert jax.process_count() == 2
    for one in CHECKS:
        if not wanted or one.__name__ in wanted:
            one()
            print("passed", one.__name__, flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", REPEATED, mt.MpmdWarning)
    main()
