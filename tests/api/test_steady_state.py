"""Steps with many microbatches: the passes see few of them, and the program is that of all."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import mpmd_trace
from growth.knobs import KNOBS, ROWS, WIDTH, Setup, Sized
from mpmd_trace import MpmdError, MpmdWarning
from mpmd_trace.api.partitioned import PartitionedProgram
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.gradients import value_and_grad
from mpmd_trace.passes.partition import partition, partition_as
from mpmd_trace.schedules import Schedule, find_entry, from_orders, get_schedule, schedule_names
from pipelines import assert_same, topology

REPEATED = "mpmd-repeat-steady-state"


def lowered(sized: Sized) -> PartitionedProgram:
    step, config, arguments = sized
    return mpmd_trace.jit(step, config).trace(*arguments).lower(lowering_platforms=("cpu",))


def is_repeated(program: PartitionedProgram) -> bool:
    return any(run.name == REPEATED and run.changed for run in program.partitioned.runs)


def check(program: PartitionedProgram) -> None:
    """The program and its plan are those of all microbatches."""
    whole = partition_as(program.traced.module, program.request)
    assert REPEATED not in {run.name for run in whole.runs if run.changed}
    assert program.partitioned.as_text() == whole.as_text()
    plan, wanted = (make_plan(one.module).instructions for one in (program.partitioned, whole))
    assert list(map(str, plan)) == list(map(str, wanted))
    messages, expected = ([one.message for one in found.diagnostics] for found in (program.partitioned, whole))
    assert messages == expected


def staged(setup: Setup, flow: str) -> Sized:
    """The setup with the stages of a mesh in a loop, or there and back."""
    step, _, (_, *arguments) = setup.sized()
    count = range(setup.meshes)
    places = [
        i
        for chunk in range(setup.layers // setup.meshes)
        for i in (count[::-1] if flow == "v" and chunk % 2 else count)
    ]
    meshes = {f"m{i}": AbstractMesh((1,), ("data",)) for i in count}
    names = {f"layer{i}": (f"m{place}", i) for i, place in enumerate(places)}
    config = mpmd_trace.make_config(meshes, names, **dict(setup.options))
    return step, config, ([setup.leaves() for _ in places], *arguments)


#: Of schedules, how many meshes and stages on each of them.
SCHEDULES = {
    "1f1b": (4, 1),
    "eager-1f1b": (3, 1),
    "zb-h1": (3, 1),
    "zb-h2": (2, 1),
    "zb-h2-half-latency": (2, 1),
    "interleaved-1f1b": (3, 2),
    "kimi-k2": (2, 2),
    "interleaved-zero-bubble": (4, 2),
    "zb-v": (2, 2),
    "v-half": (2, 2),
    "v-min": (3, 2),
    "dualpipe-v": (2, 2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    meshes, chunks = SCHEDULES[name]
    setup = Setup(
        layers=meshes * chunks, meshes=meshes, microbatches=15 * meshes, options=(("pipeline_schedule", name),)
    )
    program = lowered(staged(setup, find_entry(name).flow))
    assert is_repeated(program)
    check(program)


#: Of programs that grow in one way, those in which passes do something else.
FEATURES = (
    "depth of weights in a microbatch",
    "depth of a mask",
    "microbatches without a schedule",
    "metrics",
    "draws between layers",
)


@pytest.mark.parametrize("name", FEATURES)
def test_feature(name: str) -> None:
    setup = dataclasses.replace(KNOBS[name](3), microbatches=50)
    program = lowered(setup.sized())
    assert is_repeated(program)
    check(program)


@pytest.mark.parametrize("options", [{"remat": "auto"}, {"offload": "auto"}, {"overlap": "pairs"}], ids=str)
def test_what_has_to_see_all_microbatches(options: dict[str, Any]) -> None:
    """What is recomputed, kept on the host or overlapped, and what messages say of it, is that of a whole step."""
    setup = dataclasses.replace(
        KNOBS["stages of a mesh, recomputed"](2),
        microbatches=40,
        options=tuple({"pipeline_schedule": "interleaved-1f1b", "device_memory": 1000, **options}.items()),
    )
    program = lowered(setup.sized())
    assert not is_repeated(program)
    assert bool(program.partitioned.diagnostics) == ("overlap" not in options)
    check(program)


@pytest.mark.parametrize("option", ["remat", "offload"])
def test_what_fits_memory_without_a_limit(option: str) -> None:
    setup = Setup(microbatches=40, options=(("pipeline_schedule", "1F1B"), (option, "auto")))
    program = lowered(setup.sized())
    assert is_repeated(program)
    check(program)


@pytest.mark.parametrize(
    ("name", "limit", "repeats"),
    [
        ("it does not fit", 1500, False),
        ("something is recomputed", 2000, True),
        ("it fits with the indices of few microbatches alone", 1980, True),
        ("it fits", 2500, True),
    ],
)
def test_what_is_recomputed(name: str, limit: int, repeats: bool) -> None:
    """What fits does not depend on how many microbatches there are, but what would come closest does."""
    options = (("pipeline_schedule", "1F1B"), ("remat", "auto"), ("device_memory", limit))
    setup = dataclasses.replace(KNOBS["unrolled ops in a layer"](4), microbatches=40, options=options)
    program = lowered(setup.sized())
    assert is_repeated(program) == repeats
    recomputed = any("is recomputed" in one.message for one in program.partitioned.diagnostics)
    assert recomputed == (name != "it fits")
    check(program)


def test_what_pays_for_all_microbatches_alone() -> None:
    """A weight is prepared once per step, which saves less than a program costs in the microbatches that passes see."""
    width = 64

    def step(weights: list[Any], batch: jax.Array) -> Any:
        def loss(weights: list[Any], x: jax.Array) -> jax.Array:
            for n, w in enumerate(weights):
                x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{n}")(jnp.sin(w), x)
            return jnp.mean(x**2)

        return value_and_grad(loss, microbatches=40)(weights, batch)

    meshes = {name: AbstractMesh((1,), ("data",)) for name in "ab"}
    config = mpmd_trace.make_config(meshes, {"layer0": "a", "layer1": "b"}, pipeline_schedule="1F1B")
    program = lowered((step, config, ([jnp.ones((width, width))] * 2, jnp.ones((40 * ROWS, width)))))
    assert is_repeated(program)
    assert any("is computed once per step" in one.message for one in program.partitioned.diagnostics)
    check(program)


def test_what_pays_for_few_microbatches_alone() -> None:
    """The first stage would run the program of the second, twice, if it did so as often as passes see."""
    setup = dataclasses.replace(KNOBS["unrolled ops in a layer"](100), layers=4, meshes=3, microbatches=40)
    program = lowered(setup.sized())
    assert is_repeated(program)
    check(program)


def test_a_warning_comes_once() -> None:
    """Sums of gradients do not allow backwards in another order than that of the microbatches."""
    rows: list[list[str]] = [[], []]
    for mesh, i in itertools.product((0, 1), range(0, 40, 2)):
        rows[mesh] += [f"{mesh}F{i}", f"{mesh}F{i + 1}", f"{mesh}B{i + 1}", f"{mesh}B{i}"]
    setup = Setup(microbatches=40, options=(("pipeline_schedule", from_orders(rows)),))
    with pytest.warns(MpmdWarning, match="cannot be followed exactly") as warned:
        program = lowered(setup.sized())
    assert len(warned) == 1
    assert is_repeated(program)
    check(program)


def test_a_warning_of_a_microbatch_near_the_end() -> None:
    """It has the number of all microbatches."""
    rows = [[str(step) for step in row] for row in get_schedule("1f1b", 2, 40).orders]
    a, b = rows[1].index("1B36"), rows[1].index("1B37")
    rows[1][a], rows[1][b] = rows[1][b], rows[1][a]
    a, b = rows[1].index("1F36"), rows[1].index("1F37")
    rows[1][a], rows[1][b] = rows[1][b], rows[1][a]
    with pytest.warns(MpmdWarning, match=r"of microbatch 37 on 'm1' before"):
        program = lowered(Setup(microbatches=40, options=(("pipeline_schedule", from_orders(rows)),)).sized())
        check(program)


@pytest.mark.parametrize("name", ["gpipe-but-1f1b-for-last-mesh", "zb-h2-full-latency"])
def test_schedules_that_repeat_nothing_or_late(name: str) -> None:
    program = lowered(Setup(layers=3, meshes=3, microbatches=40, options=(("pipeline_schedule", name),)).sized())
    assert not is_repeated(program)
    check(program)


@pytest.mark.parametrize(("name", "meshes", "chunks"), [("zb-h1", 2, None), ("interleaved-1f1b", 3, 2)])
def test_a_schedule_that_was_made_before(name: str, meshes: int, chunks: int | None) -> None:
    made = get_schedule(name, meshes, 15 * meshes, chunks=chunks)
    setup = Setup(
        layers=meshes * (chunks or 1), meshes=meshes, microbatches=15 * meshes, options=(("pipeline_schedule", made),)
    )
    program = lowered(staged(setup, find_entry(name).flow))
    assert is_repeated(program)
    check(program)


#: All forwards of a stage run before its backwards, blocks do not begin at once, or the end repeats something else.
WITHOUT_PERIODS = {
    "gpipe",
    "gpipe-but-1f1b-for-last-mesh",
    "looped-bfs",
    "circular",
    "circular-with-reversed-backward",
    "dualpipe",
    "parallel-pipelines-with-wrap-around",
    "zb-auto",
}


@pytest.mark.parametrize("name", schedule_names())
def test_schedule_without_microbatches(name: str) -> None:
    """What is left is the schedule of the other microbatches."""
    entry = find_entry(name)
    chunks = {"chunks": 2} if "chunks" in entry.options else {}
    few, many = (get_schedule(name, 2, count, **chunks) for count in (20, 44))
    left = many.without(24)
    assert left == (None if name in WITHOUT_PERIODS else few)


def one_more_from(microbatch: int, microbatches: int) -> Schedule:
    """1F1B of two meshes, which keep one activation more from a microbatch on."""
    rows = []
    for mesh in range(2):
        row, forwards = [], iter(range(microbatches))
        for i in range(microbatches):
            count = 2 - mesh if i == 0 else 1
            row += [f"{mesh}F{n}" for n in itertools.islice(forwards, count + (i == microbatch))]
            row.append(f"{mesh}B{i}")
        rows.append(row)
    return from_orders(rows)


@pytest.mark.parametrize(("microbatch", "repeats"), [(0, True), (2, True), (7, False), (30, False), (46, True)])
def test_a_schedule_that_changes(microbatch: int, repeats: bool) -> None:
    """It must be clear which of two parts of a schedule has the microbatches that are left out."""
    schedule = one_more_from(microbatch, 48)
    program = lowered(Setup(microbatches=48, options=(("pipeline_schedule", schedule),)).sized())
    assert is_repeated(program) == repeats
    check(program)


def test_numbers() -> None:
    """Each microbatch has its own rows, index and random numbers."""

    def loss(weights: list[Any], x: jax.Array, i: jax.Array) -> jax.Array:
        for n, w in enumerate(weights):
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{n}")(w, x)
            x = x + jax.random.uniform(jax.random.fold_in(jax.random.key(n), i), x.shape)
        return jnp.sum(x**2) * (3 * i + 1).astype(x.dtype)

    def step(weights: list[Any], batch: jax.Array) -> Any:
        def body(i: jax.Array, total: Any, x: jax.Array) -> Any:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(weights, x, i))

        return mpmd_trace.enumerated_for(body, (0.0, jax.tree.map(jnp.zeros_like, weights)), batch)

    random = np.random.default_rng(0)
    weights = [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]
    batch = random.normal(size=(40, ROWS, WIDTH)).astype(np.float32)
    meshes = dict(zip("ab", topology(size=1).values(), strict=True))
    config = mpmd_trace.make_config(meshes, {"layer0": "a", "layer1": "b"}, pipeline_schedule="1F1B")
    jitted = mpmd_trace.jit(step, config)
    assert is_repeated(jitted.lower(weights, batch))
    assert_same(jitted(weights, batch), jax.jit(step)(weights, batch), rtol=1e-5, atol=1e-5)


#: What a microbatch reads besides its rows: whether it is alike for later microbatches with few of them.
INDICES: dict[str, tuple[Callable[[jax.Array], jax.Array], bool]] = {
    "other numbers": (lambda i: 100 + 3 * i, True),
    "other numbers, forwards and backwards": (lambda i: (100 + i).astype(float) * (1000 - i), True),
    "the same numbers soon": (lambda i: 2 + i, True),
    "the same numbers late": (lambda i: 30 + i, False),
    "the same numbers backwards": (lambda i: 39 - i, False),
    "every third of the same numbers": (lambda i: 3 * i + 1, False),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name: str) -> None:
    """What slices rows and what is computed of the index are results of one fragment, which gives no number twice."""
    number, repeats = INDICES[name]

    def step(w: jax.Array, batch: jax.Array) -> jax.Array:
        def body(i: jax.Array, total: jax.Array, x: jax.Array) -> jax.Array:
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name="first")(w, x)
            x = x * number(i).astype(x.dtype)
            return total + mpmd_trace.named_computation(lambda w, x: jnp.sum(x @ w), name="second")(w, x)

        return mpmd_trace.enumerated_for(body, jnp.zeros(()), batch)

    meshes = {name: AbstractMesh((1,), ("data",)) for name in "ab"}
    config = mpmd_trace.make_config(meshes, {"first": "a", "second": "b"}, pipeline_schedule="1F1B")
    program = lowered((step, config, (jnp.ones((WIDTH, WIDTH)), jnp.ones((40, ROWS, WIDTH)))))
    assert is_repeated(program) == repeats
    check(program)


def stacking(auxiliary: str, microbatches: int = 40) -> tuple[Any, Any, Any]:
    """A step that stacks losses and auxiliary values, and what becomes of these."""
    made = AUXILIARY[auxiliary]

    def loss(weights: list[Any], x: jax.Array) -> Any:
        activations = []
        for n, w in enumerate(weights):
            x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{n}")(w, x)
            activations.append(x)
        return jnp.mean(x**2), made[0](activations)

    def step(weights: list[Any], batch: jax.Array) -> Any:
        gradient = value_and_grad(loss, microbatches=microbatches, has_aux=True, aux="stack")
        (value, aux), gradients = gradient(weights, batch)
        return value, made[1](aux), gradients

    random = np.random.default_rng(0)
    weights = [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]
    return step, weights, random.normal(size=(ROWS * microbatches, WIDTH)).astype(np.float32)


#: What is stacked, of the activations of a microbatch, and what is read of the stack.
AUXILIARY: dict[str, tuple[Any, Any]] = {
    "a vector": (lambda a: jnp.sum(a[-1], 0), lambda x: x),
    "of the first layer": (lambda a: jnp.sum(a[0], 0), lambda x: x),
    "of both layers": (lambda a: [jnp.max(x, 0) for x in a], lambda x: x),
    "sorted": (lambda a: jnp.max(a[-1]), jnp.sort),
    "the last loss": (lambda a: jnp.mean(a[-1] ** 2), lambda x: x[-1]),
    "a certain one": (lambda a: jnp.max(a[-1]), lambda x: x[21]),
    "one near the end, and all": (lambda a: jnp.max(a[-1]), lambda x: (x[-2], jnp.sum(x))),
    "some, and all": (lambda a: jnp.max(a[-1]), lambda x: (x[5], x[9:30], jnp.sum(x))),
}
#: Of these, those in which a certain microbatch is read, or the values are stacked twice.
NOT_REPEATED = ("the last loss", "a certain one", "one near the end, and all", "some, and all")


@pytest.mark.parametrize("name", AUXILIARY)
def test_stacks(name: str) -> None:
    step, *arguments = stacking(name)
    meshes = dict(zip("ab", topology(size=1).values(), strict=True))
    config = mpmd_trace.make_config(meshes, {"layer0": "a", "layer1": "b"}, pipeline_schedule="1F1B")
    jitted = mpmd_trace.jit(step, config)
    program = jitted.lower(*arguments)
    assert is_repeated(program) == (name not in NOT_REPEATED)
    if name != "of both layers":  # a program is large enough to be divided only if it stacks many values
        check(program)
    assert_same(jitted(*arguments), jax.jit(step)(*arguments), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("limit", "repeats"), [(160_000, False), (230_000, True)])
def test_stacks_that_take_memory(limit: int, repeats: bool) -> None:
    """Whether there is room for what is computed once per step depends on the stack of all microbatches."""
    width, count = 64, 60

    def step(weights: list[Any], batch: jax.Array) -> Any:
        def loss(weights: list[Any], x: jax.Array) -> Any:
            for n, w in enumerate(weights):
                x = mpmd_trace.named_computation(lambda w, x: jnp.tanh(x @ w), name=f"layer{n}")(jnp.sin(w), x)
            return jnp.mean(x**2), jnp.tile(jnp.sum(x, 0), 8)

        return value_and_grad(loss, microbatches=count, has_aux=True, aux="stack")(weights, batch)

    meshes = {name: AbstractMesh((1,), ("data",)) for name in "ab"}
    names = {"layer0": "a", "layer1": "b"}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule="1F1B", device_memory=limit)
    program = lowered((step, config, ([jnp.ones((width, width))] * 2, jnp.ones((count * ROWS, width)))))
    assert is_repeated(program) == repeats
    check(program)


def test_a_text_without_some_microbatches() -> None:
    """They are missing in the text itself, so there is nothing else to try."""
    text = """func.func @main(%a: tensor<f32>) -> tensor<f32> attributes {mpmd.omitted_iterations = 1 : ui32} {
      %0 = mpmd.named_computation<"f"> (%a) (%b: tensor<f32>) {
        %1 = stablehlo.negate %b : tensor<f32>
        mpmd.return %1 : tensor<f32>
      } : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }"""
    with pytest.raises(MpmdError, match="'f' is not assigned"):
        partition(text, "step", [("a", [("x", 1)])], {}, [None], [None])
