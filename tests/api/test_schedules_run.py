"""Every schedule of the library compiles, runs in its own order, and gives what plain `jax.jit` gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace import MpmdError, named_computation, schedules
from mpmd_trace.equinox import name_layers
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.schedules import Action, Schedule
from mpmd_trace.scheduling import AutoSchedule
from pipelines import assert_same, topology
from util import filled, nightly, normal

WIDTH = 4
#: Enough for everything at two meshes: ZB-H2 with full latency wants 4P-3, DualPipe an even number from 2P.
MICROBATCHES = 6
#: Options with which each action of a schedule is a program of its own.
APART = {"mpmd_infer_transfers": True, "mpmd_merge_forward_with_backward": False}
#: They go back through the microbatches from the last one; so must the program that adds up.
REVERSED = ("looped-bfs", "circular-with-reversed-backward")
TWO_CHAINS = ("dualpipe",)
#: The stages of its two chains, which run through the same two blocks.
BOTH_WAYS = {"down_blocks_0": ("m0", 0), "down_blocks_1": ("m1", 1), "up_blocks_0": ("m1", 2), "up_blocks_1": ("m0", 3)}
FORWARD_ONLY = ("parallel-pipelines-with-wrap-around", "forward")
TRAINING = [n for n in schedules.schedule_names() if n not in (*TWO_CHAINS, *FORWARD_ONLY)]

Step = Callable[[Any, list[jax.Array]], Any]


class Block(eqx.Module):
    """A residual layer."""

    linear: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        self.linear = eqx.nn.Linear(WIDTH, WIDTH, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(jax.vmap(self.linear)(x))


class Model(eqx.Module):
    """Blocks one after the other."""

    blocks: list[Block]

    def __init__(self, count: int) -> None:
        self.blocks = [filled(Block, jax.random.key(0)) for _ in range(count)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def training(model: Model, microbatches: int, backwards: bool = False, chains: tuple[str, ...] = ("",)) -> Step:
    """Loss and gradients, added up over the microbatches, from the first or from the last one.

    Each of the chains runs through an equal part of them, under names that begin with its own; their sums are
    added at the end, so that no chain waits for another.
    """
    static = eqx.partition(model, eqx.is_array)[1]

    def loss(named: str, parameters: Any, x: jax.Array) -> jax.Array:
        whole = name_layers(eqx.combine(parameters, static), lambda m: m.blocks, name=lambda n: named + n)
        return jnp.mean(whole(x) ** 2)

    def step(parameters: Any, xs: list[jax.Array]) -> Any:
        totals: dict[str, Any] = {}
        for i in reversed(range(microbatches)) if backwards else range(microbatches):
            chain = chains[i * len(chains) // microbatches]
            fn = jax.value_and_grad(functools.partial(loss, chain))
            found = mpmd_trace.call(fn, call_counter=i)(parameters, xs[i])
            totals[chain] = _add(totals[chain], found) if chain in totals else found
        return functools.reduce(_add, totals.values())

    return step


def data(model: Model, microbatches: int) -> tuple[Any, list[jax.Array]]:
    """Parameters and microbatches; slices of one array would all be cut by the first fragment."""
    xs = normal(1, microbatches, 2, WIDTH)
    return eqx.filter(model, eqx.is_array), list(xs)


def assign(schedule: Schedule, name: str = "blocks_{}") -> dict[str, tuple[str, int]]:
    """Each block is a stage, on the mesh on which the schedule has that stage."""
    return {name.format(s): (f"m{mesh}", s) for s, mesh in enumerate(schedule.placement.mesh_of)}


def lower(
    schedule: Any, meshes: dict[str, Mesh], step: Step, names: Mapping[str, Any], *args: Any, **options: Any
) -> tuple[mpmd_trace.stages.Lowered, list[list[schedules.Step]]]:
    """The lowered step, and what each mesh does of microbatches."""
    actions = FragmentActions()
    config = mpmd_trace.make_config(meshes, names, partitioning_options=APART, pipeline_schedule=schedule, **options)
    lowered = mpmd_trace.jit(step, config).lower(*args, hooks=[actions])
    return lowered, [[step for step in row if step.parts[0].kind != "O"] for row in actions.of_mesh.values()]


def run(
    schedule: Any, placed: Schedule, step: Step, names: Mapping[str, Any], *args: Any, **options: Any
) -> tuple[mpmd_trace.stages.Compiled, list[list[schedules.Step]], Any]:
    """The compiled step, what each mesh does, and the result."""
    lowered, rows = lower(schedule, topology(placed.meshes, size=1), step, names, *args, **options)
    compiled = lowered.compile()
    return compiled, rows, compiled(*args)


def expected(schedule: Schedule, found: list[list[schedules.Step]]) -> list[list[schedules.Step]]:
    """The steps of the schedule, in terms of the fragments that there are.

    Where nothing of a backward is sent to another mesh, there is nothing to split: in the stage without
    inputs (all of it is weight gradient), and at the turn of a V (the gradient stays on the mesh).
    """
    split = {part.stage for row in found for step in row for part in step.parts if part.kind == "W"}

    def fragments(action: Action) -> list[Action]:
        kind = action.kind
        if kind == "B" and action.stage in split:
            return [dataclasses.replace(action, kind=half) for half in ("I", "W")]
        if kind in "FB" or action.stage in split:
            return [action]
        is_whole = kind == ("I" if schedule.graph.feeds[action.stage] else "W")
        return [dataclasses.replace(action, kind="B")] if is_whole else []

    rows: list[list[schedules.Step]] = []
    for order in schedule.orders:
        row: list[schedules.Step] = []
        for step in order:
            parts = list(filter(None, map(fragments, step.parts)))
            block = [action for part in parts for action in part]
            row += [schedules.fused(*block)] if len(parts) > 1 else block
        rows.append(row)
    return rows


@functools.cache
def under_jit(stages: int, microbatches: int, backwards: bool) -> Any:
    model = Model(stages)
    return jax.jit(training(model, microbatches, backwards))(*data(model, microbatches))


def check(name: str, meshes: int, microbatches: int = MICROBATCHES) -> None:
    schedule = schedules.get_schedule(name, meshes, microbatches, guard=False)
    model = Model(schedule.stages)
    step = training(model, microbatches, backwards=name in REVERSED)
    _, found, result = run(name, schedule, step, assign(schedule), *data(model, microbatches))
    assert found == expected(schedule.unfused(), found)
    kinds = [part.kind for row in found for step in row for part in step.parts]
    assert {*kinds} >= ({"F", "I", "W"} if schedule.splits_backward else {"F", "B"})
    # On the first mesh without a split the backward of a microbatch is one fragment.
    assert kinds.count("W") in (
        (0,) if not schedule.splits_backward else range(microbatches, schedule.stages * microbatches)
    )
    assert_same(result, under_jit(schedule.stages, microbatches, name in REVERSED))


@pytest.mark.parametrize("name", TRAINING)
def test_two_meshes(name: str) -> None:
    check(name, 2)


@pytest.mark.parametrize("name", [*map(nightly, ("1f1b", "interleaved-1f1b")), "zb-v"])
def test_four_meshes(name: str) -> None:
    check(name, 4, 8)


def test_all_schedules_are_tested() -> None:
    assert len(TRAINING) == len(schedules.schedule_names()) - len(TWO_CHAINS) - len(FORWARD_ONLY)


def test_two_chains_in_opposite_directions() -> None:
    """DualPipe: the second half of the microbatches goes through the same blocks under other names."""
    schedule = schedules.get_schedule("dualpipe", 2, MICROBATCHES, guard=False)
    assert schedule.placement.mesh_of == (0, 1, 1, 0) and schedule.model_stage == (0, 1, 0, 1)
    model = Model(2)
    step = training(model, MICROBATCHES, chains=("down_", "up_"))
    args = data(model, MICROBATCHES)
    for overlap in (None, "pairs"):
        _, found, result = run("dualpipe", schedule, step, BOTH_WAYS, *args, overlap=overlap)
        assert found == expected(schedule if overlap else schedule.unfused(), found)
        assert any(part.kind == "W" for row in found for step in row for part in step.parts)
        assert_same(result, jax.jit(step)(*args))


def searched(meshes: int, microbatches: int) -> Schedule:
    """A schedule with blocks of two and of three, which hide collectives."""
    costs = schedules.Costs(collectives={"F": 0.5, "I": 0.3, "W": 0.5})
    found = schedules.search(costs, meshes=meshes, microbatches=microbatches, names=["zb-auto"], effort=20_000)
    return found.best.schedule


@pytest.mark.parametrize("name", ["dualpipe-v", "overlapped", "searched", nightly("searched of four meshes")])
def test_blocks_of_the_schedule_are_programs(name: str) -> None:
    meshes, microbatches = (4 if "four" in name else 2, 8 if "searched" in name else MICROBATCHES)
    if name.startswith("searched"):
        schedule = searched(meshes, microbatches)
    elif name == "overlapped":
        costs = schedules.Costs(collectives={"F": 0.3, "I": 0.3, "W": 0.1})
        schedule = schedules.overlapped(schedules.get_schedule("zb-v", meshes, microbatches), costs)
    else:
        schedule = schedules.get_schedule(name, meshes, microbatches)
    model = Model(schedule.stages)
    step, args = training(model, microbatches), data(model, microbatches)
    compiled, found, result = run(schedule, schedule, step, assign(schedule), *args, overlap="pairs")
    assert found == expected(schedule, found)
    assert {len(step.parts) for row in schedule.orders for step in row} == ({1, 2, 3} if "searched" in name else {1, 2})
    actions = sum(len(step.parts) for row in found for step in row)
    apart, _, _ = run(schedule, schedule, step, assign(schedule), *args)
    runs = [len(one.program.plan.runs) for one in (apart, compiled)]
    assert runs[0] - runs[1] == actions - sum(map(len, found))
    assert_same(result, under_jit(schedule.stages, microbatches, False))


def test_parallel_pipelines_with_wrap_around() -> None:
    """Inference on a ring: request k starts on mesh k; every mesh is busy from the first moment."""
    meshes = 3
    schedule = schedules.get_schedule("parallel-pipelines-with-wrap-around", meshes, meshes, guard=False)

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def step(ws: list[jax.Array], xs: jax.Array) -> list[jax.Array]:
        def request(k: int, x: jax.Array) -> jax.Array:
            for j, w in enumerate(ws):
                x = named_computation(layer, name=f"ring_{(k + j) % meshes}")(w, x)
            return x

        return [mpmd_trace.call(functools.partial(request, k), call_counter=k)(xs[k]) for k in range(meshes)]

    names = {f"ring_{i}": (f"m{i}", i) for i in range(meshes)}
    ws = list(normal(0, meshes, WIDTH, WIDTH))
    xs = normal(1, meshes, 2, WIDTH)
    _, found, result = run(schedule.name, schedule, step, names, ws, xs)
    assert [[a.microbatch for a in row] for row in found] == [
        [m for _, _, m in schedule.total_order(i)] for i in range(meshes)
    ]
    assert [row[0].microbatch for row in found] == [0, 1, 2]
    assert_same(result, jax.jit(step)(ws, xs))


@pytest.mark.parametrize(
    ("name", "mesh_of", "rows"),
    [
        ("forward", (0, 1), None),
        ("auto", (0, 1, 0, 1), None),  # one microbatch after the other, as GPipe orders this, would take 16 and not 9
        # What comes back to a mesh goes first, so that it leaves; new microbatches fill the gaps.
        ("forward", (0, 1, 0), ["0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3", "1F0 1F1 1F2 1F3"]),
    ],
)
def test_forward_passes(name: str, mesh_of: tuple[int, ...], rows: list[str] | None) -> None:
    """Inference: stages are wherever the program has them; several microbatches are on their way at once."""
    microbatches = 4
    model = Model(len(mesh_of))
    static = eqx.partition(model, eqx.is_array)[1]

    def step(parameters: Any, xs: list[jax.Array]) -> Any:
        whole = name_layers(eqx.combine(parameters, static), lambda m: m.blocks)
        return mpmd_trace.enumerated_for(lambda i, _, x: ((), whole(x)), (), xs)[1]

    placement = schedules.Placement.of(mesh_of)
    costs = schedules.Costs((1.0,) * len(mesh_of))
    schedule = schedules.forward_passes(placement, microbatches, costs=costs)
    names = {f"blocks_{s}": f"m{mesh}" for s, mesh in enumerate(mesh_of)}
    args = data(model, microbatches)
    compiled, found, result = run(name, schedule, step, names, *args)
    assert compiled.lowered.schedule.name == "forward"
    wanted = [[Action(*action) for action in schedule.total_order(mesh)] for mesh in range(2)]
    assert rows is None or [" ".join(map(str, row)) for row in wanted] == rows
    assert found == wanted
    assert_same(result, jax.jit(step)(*args))


@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_a_schedule_of_forward_passes_refuses_training(name: str) -> None:
    with pytest.raises(MpmdError, match=f"'{name}' is for programs without backward passes, and this one has some"):
        _ = lowered(name, {f"blocks_{s}": f"m{s}" for s in range(2)}, 2).partitioned


def test_a_schedule_of_ones_own() -> None:
    """A `Schedule` object runs as it is, here one read from a table."""
    table = schedules.get_schedule("1f1b", 2, 3).to_csv()
    schedule = schedules.load_csv(table)
    model = Model(2)
    step, args = training(model, 3), data(model, 3)
    compiled, found, result = run(schedule, schedule, step, assign(schedule), *args)
    assert found == expected(schedule, found)
    assert compiled.lowered.schedule.name == schedule.name
    assert_same(result, jax.jit(step)(*args))


def lowered(schedule: Any, names: dict[str, Any], stages: int, meshes: int = 2) -> mpmd_trace.stages.Lowered:
    model = Model(stages)
    return lower(schedule, topology(meshes, size=1), training(model, 4), names, *data(model, 4))[0]


def test_stages_on_other_meshes_than_the_schedule_wants() -> None:
    loop = {f"blocks_{s}": (f"m{s % 2}", s) for s in range(4)}
    with pytest.raises(MpmdError, match=r"'zb-v' has the stages 0, 3 on mesh 'm0', but the program has 0, 2"):
        lowered("zb-v", loop, 4)
    one = {f"blocks_{s}": (f"m{s}", s) for s in range(2)}
    with pytest.raises(MpmdError, match="puts 2 stages on mesh 'm0', but the program has 1 there") as caught:
        lowered("zb-v", one, 2)
    assert "func.func" not in str(caught.value), "the program's type says nothing about it"
    with pytest.raises(MpmdError, match=r"'dualpipe' puts 2 stages on mesh 'm0'.*one there"):
        lowered("dualpipe", {f"blocks_{s}": f"m{s}" for s in range(2)}, 2)
    three = schedules.get_schedule("zb-v", 3, 4, guard=False)
    with pytest.raises(MpmdError, match="has stages on all 3 meshes, but nothing of a microbatch is on 'm2'; assign"):
        lowered(three, loop, 4, meshes=3)
    lowered("interleaved-1f1b", loop, 4)


@pytest.mark.parametrize(
    "schedule", ["1F1B", "zb-h1", "interleaved-1f1b", "auto", AutoSchedule(memory_limit={"m0": 4})], ids=str
)
def test_a_mesh_without_stages_is_no_part_of_the_pipeline(schedule: Any) -> None:
    """Else each stage would keep one more microbatch, as if another one came behind it."""
    stages = 4 if schedule == "interleaved-1f1b" else 2
    names = {f"blocks_{s}": f"m{s % 2}" for s in range(stages)}
    two, three = (lowered(schedule, names, stages, meshes) for meshes in (2, 3))
    head, *plan = two.as_text("plan").splitlines()
    idle_head, *with_idle = three.as_text("plan").splitlines()
    assert idle_head == head.replace("2 meshes", "3 meshes")
    assert [line for line in with_idle if not line.startswith("mesh m2 ")] == plan
    peaks = [one.compile().memory_analysis()["m0"].peak for one in (two, three)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("1f1b", ("m1", "m0")),
        ("zb-h1", ("m0", "m1")),
        ("interleaved-1f1b", ("m1", "m0")),
        ("circular", ("m0", "m1")),
        ("zb-v", ("m1", "m0")),
    ],
)
def test_stages_follow_the_data(name: str, order: tuple[str, ...]) -> None:
    """Neither the order of the topology nor numbers of stages have to be given."""
    schedule = schedules.get_schedule(name, 2, MICROBATCHES, guard=False)
    model, meshes = Model(schedule.stages), topology(2, size=1)
    step, args = training(model, MICROBATCHES), data(model, MICROBATCHES)
    names = {name: mesh for name, (mesh, _) in assign(schedule).items()}
    lowered, found = lower(name, {mesh: meshes[mesh] for mesh in order}, step, names, *args)
    compiled = lowered.compile()
    assert list(compiled.program.plan.meshes) == ["m0", "m1"]
    assert found == expected(schedule, found)
    assert_same(compiled(*args), jax.jit(step)(*args))


def test_stages_against_the_flow() -> None:
    names = {"blocks_0": ("m0", 1), "blocks_1": ("m1", 0)}
    with pytest.raises(MpmdError, match=r"'blocks_1' is of stage 0 and needs what 'blocks_0' of stage 1 computes"):
        lowered("1f1b", names, 2)


@pytest.mark.parametrize("name", ["auto", "zb-auto"])
def test_the_other_engine_refuses_what_it_does_not_know(name: str) -> None:
    config = mpmd_trace.make_config(topology(2, size=1), {"blocks_0": "m0", "blocks_1": "m1"}, pipeline_schedule=name)
    model = Model(2)
    jitted = mpmd_trace.jit(training(model, 2), config, engine="cpp")
    with pytest.raises(MpmdError, match="engine='cpp' knows the reference's schedules only"):
        jitted.lower(*data(model, 2))
