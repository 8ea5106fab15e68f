"""What a pipeline with sharded stages does once per step: gathers, casts, sums over devices."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mpmd_trace
import pipelines
from mpmd_trace import MpmdError
from pipelines import assert_same, loss_of, summed_gradients, summed_values
from util import nightly, normal

MICROBATCHES, ROWS, WIDTH = 4, 8, 16
SHARDED_ROWS = P(None, "data")


topology = functools.partial(pipelines.topology, axis="data")


def layer(p: Any, x: jax.Array, dtype: Any, place: NamedSharding) -> jax.Array:
    y = jnp.tanh((x * p["scale"]).astype(dtype) @ p["up"].astype(dtype))
    return jax.lax.with_sharding_constraint(x + (y @ p["down"].astype(dtype)).astype(x.dtype), place)


def training_step(meshes: list[Mesh], dtype: Any = jnp.float32) -> Any:
    """A layer on each of the meshes."""
    places = [NamedSharding(mesh, P("data")) for mesh in meshes]

    def loss(ps: list[Any], x: jax.Array) -> jax.Array:
        for i, p in enumerate(ps):
            x = mpmd_trace.named_computation(lambda p, x, i=i: layer(p, x, dtype, places[i]), name=f"f{i}")(p, x)
        return jnp.mean(x**2)

    def step(ps: list[Any], batch: jax.Array) -> Any:
        value, grads = summed_values(loss, ps, batch)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, ps, grads)

    return step


def arguments(layers: int = 2, rows: int = ROWS) -> Any:
    up, down = 0.3 * normal(0, 2, layers, WIDTH, WIDTH)
    ps = [{"up": up[i], "down": down[i], "scale": jnp.ones(WIDTH)} for i in range(layers)]
    return ps, normal(1, MICROBATCHES, rows, WIDTH)


def compiled(specs: dict[str, P], batch: P = SHARDED_ROWS, **options: Any) -> mpmd_trace.stages.Compiled:
    """Each program is compiled once."""
    return _compiled(tuple(specs.items()), batch, **options)


@functools.cache
def _compiled(
    given: tuple[tuple[str, P], ...],
    batch: P,
    dtype: Any = jnp.float32,
    donate: Any = (),
    rows: int = ROWS,
    layers: int = 2,
    pairs: bool = True,
    **options: Any,
) -> mpmd_trace.stages.Compiled:
    """With more layers than meshes in a loop over them, so that a mesh has several stages.

    `pairs`: whether a forward and its backward on the last mesh are one program, as they are by default.
    """
    specs = dict(given)
    meshes = topology()
    of = list(meshes.values()) * (layers // 2)
    names = {f"f{i}": f"m{i % 2}/{i}" if layers > 2 else f"m{i}" for i in range(layers)}
    schedule = "1F1B" if layers == 2 else "interleaved-1f1b"
    asked = {"mpmd_infer_transfers": True, **({} if pairs else {"mpmd_merge_forward_with_backward": False})}
    config = mpmd_trace.make_config(meshes, names, pipeline_schedule=schedule, partitioning_options=asked, **options)
    ps = [{k: NamedSharding(mesh, specs.get(k, P())) for k in ("up", "down", "scale")} for mesh in of]
    places = ps, NamedSharding(meshes["m0"], batch)
    step = mpmd_trace.jit(training_step(of, dtype), config, in_shardings=places, donate_argnums=donate)
    return step.lower(*arguments(layers, rows)).compile()


@functools.cache
def expected(dtype: Any = jnp.float32, layers: int = 2) -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return jax.jit(training_step([mesh] * layers, dtype))(*arguments(layers))


FSDP = {"up": P("data"), "down": P(None, "data")}


def counted(found: mpmd_trace.stages.Compiled) -> dict[str, tuple[int, int]]:
    """All-gathers and all-reduces in a step, by mesh."""
    return {m: (c["all-gather"].runs, c["all-reduce"].runs) for m, c in found.collectives().items()}


def test_weights_are_gathered_and_gradients_reduced_once_per_step() -> None:
    found = compiled(FSDP)
    assert counted(found) == {"m0": (2, 1), "m1": (2, 2)}  # the loss leaves with the last forward
    assert_same(found(*arguments()), expected())


def test_both_can_be_had_for_each_microbatch() -> None:
    found = compiled(FSDP, hoist_invariants=False, gradient_reduction="microbatch")
    gathers, reductions = counted(found)["m0"]
    assert gathers >= 2 * 2 * MICROBATCHES and reductions == MICROBATCHES
    assert "hoisted" not in found.as_text()
    assert_same(found(*arguments()), expected())


def test_where_memory_is_short_microbatches_gather() -> None:
    """And peaks are no higher than without."""
    each_time = compiled(FSDP, hoist_invariants=False, gradient_reduction="microbatch", pairs=False)
    allowed = {m: a.peak for m, a in each_time.memory_analysis().items()}
    apart, limited = compiled(FSDP, device_memory=1000, pairs=False), compiled(FSDP, device_memory=1000)
    assert counted(apart) == counted(each_time) == {"m0": (16, 4), "m1": (16, 8)}
    # A forward and a backward in one program finish the loss and the gradients in one sum, and gather for each.
    assert counted(limited) == {"m0": (16, 4), "m1": (16, 4)}
    for found in (apart, limited):
        assert all(a.peak <= allowed[m] for m, a in found.memory_analysis().items())


def test_copies_are_dropped_between_the_phases_of_a_mesh_with_several_stages() -> None:
    """That takes gathers, and less memory, as XLA says, too."""
    step, phase = (compiled(FSDP, layers=4, gather=word) for word in ("step", "phase"))
    assert [counted(one)["m1"][0] for one in (step, phase)] == [4, 10]
    peaks = [one.memory_analysis()["m1"].peak for one in (step, phase)]
    assert peaks[0] - peaks[1] >= 2 * 4 * WIDTH * WIDTH
    assert [one.placement_report().meshes[1].hoisted for one in (step, phase)] == [4 * 4 * WIDTH**2, 2 * 4 * WIDTH**2]
    wanted = expected(layers=4)
    assert_same(step(*arguments(4)), wanted)
    assert_same(phase(*arguments(4)), wanted)


def test_microbatches_gather_one_product_ahead() -> None:
    """Of the weights of a stage one is there while the next is gathered; on CPUs, XLA of JAX 0.10.2 drops barriers."""
    mesh = topology()["m0"]
    rows, shards = NamedSharding(mesh, SHARDED_ROWS), NamedSharding(mesh, P("data"))

    def stage(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), shards)
        return x

    def step(ws: Any, batch: jax.Array) -> Any:
        named = mpmd_trace.named_computation(stage, name="f")
        return mpmd_trace.enumerated_for(lambda i, total, x: total + named(ws, x), jnp.zeros((ROWS, WIDTH)), batch)

    def with_gather(word: Any) -> mpmd_trace.stages.Compiled:
        config = mpmd_trace.make_config({"m0": mesh}, {"f": "m0"}, gather=word)
        return mpmd_trace.jit(step, config, in_shardings=(shards, rows)).lower(ws, batch).compile()

    ws = [normal(i, WIDTH, WIDTH) / 4 for i in range(6)]
    batch = normal(6, 2, ROWS, WIDTH)
    once, each = map(with_gather, ("step", "microbatch"))
    assert [one.as_text().count("optimization_barrier") for one in (once, each)] == [0, 5]
    assert [counted(one)["m0"][0] for one in (once, each)] == [6, 12]
    peaks = [one.memory_analysis()["m0"].peak for one in (once, each)]
    if jax.__version_info__ >= (0, 12):
        assert peaks[0] - peaks[1] >= 4 * 4 * WIDTH * WIDTH
    assert_same(each(ws, batch), jax.jit(step)(ws, batch))


def test_weights_that_are_donated_are_gathered_first() -> None:
    found = compiled(FSDP, donate=(0,))
    assert counted(found)["m0"] == (2, 1)
    ps, batch = arguments()
    assert_same(found(*found.place(ps, batch)[0]), expected())


def test_weights_are_cast_before_they_are_gathered() -> None:
    found = compiled(FSDP, dtype=jnp.bfloat16)
    functions = found.as_text().split("func.func ")
    first = next(text for text in functions if "hoisted" in text.partition("(")[0])
    assert first.count("stablehlo.convert") == 2
    assert first.index("stablehlo.convert") < first.index("sdy.sharding_constraint")
    cast = f"(tensor<{WIDTH}x{WIDTH}xf32>) -> tensor<{WIDTH}x{WIDTH}xbf16>"
    assert found.as_text().count(cast) == 2 * len(topology())
    assert sum("is computed once per step" in text for text in remarks(found)) == 2  # the casts alone have no reader
    assert_same(found(*arguments()), expected(jnp.bfloat16), rtol=2e-2, atol=2e-2)


def remarks(found: mpmd_trace.stages.Compiled) -> list[str]:
    return [d.message for d in found.lowered.partitioned.diagnostics if d.severity == "remark" and "'m0'" in d.message]


def test_it_is_told_what_is_done_once_and_what_not() -> None:
    bytes = 4 * WIDTH * WIDTH
    assert remarks(compiled(FSDP)) == [
        f"on mesh 'm0' reshard(ps[0]['{name}']) ({bytes:,} bytes, saving {(2 * MICROBATCHES - 1) * 4608:,} bytes of "
        "memory traffic, with a gather) is computed once per step"
        for name in ("up", "down")
    ] + ["on mesh 'm0' 3 sums over devices are finished once per step"]
    limited = remarks(compiled(FSDP, device_memory=1000))
    assert [text.rpartition(") ")[2] for text in limited[:2]] == [
        "stays with the microbatches: of the limit 0 bytes are left"
    ] * 2
    assert limited[2:] == [
        "on mesh 'm0' 0 sums over devices are finished once per step; 3 for each microbatch, "
        "because there is not enough memory for their parts"
    ]
    assert remarks(compiled({}, batch=P(), dtype=jnp.bfloat16))[0].endswith(
        "stays with the microbatches: it saves less than launching a program costs"
    )


def test_the_placement_report_tells_what_gathered_weights_take() -> None:
    found = {held.mesh: held for held in compiled(FSDP).placement_report().meshes}
    weight = 4 * WIDTH * WIDTH
    assert [found[mesh].hoisted for mesh in ("m0", "m1")] == [2 * weight, 2 * weight]
    busy = {held.mesh: held for held in compiled(FSDP, rows=256).placement_report().meshes}
    assert busy["m0"].gradients == 2 * weight + 4 * WIDTH  # whole ones, with a part for each device
    plain = compiled(FSDP, hoist_invariants=False, gradient_reduction="microbatch").placement_report().meshes
    assert [held.hoisted for held in plain] == [0, 0]


def test_little_casts_are_not_worth_a_program() -> None:
    assert "hoisted" not in compiled({}, dtype=jnp.bfloat16).as_text()


def test_a_replicated_batch_needs_no_reduction() -> None:
    found = compiled({}, batch=P())
    assert_same(found(*arguments()), expected())


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"hoist_invariants": "yes"}, "hoist_invariants is True or False, not 'yes'"),
        ({"gather": "often"}, "gather is 'auto', 'step', 'phase' or 'microbatch', not 'often'"),
        ({"gradient_reduction": "never"}, "gradient_reduction is 'step' or 'microbatch', not 'never'"),
        ({"device_memory": 0}, "device_memory is a whole number of bytes (an int), or None, not 0"),
        ({"device_memory": True}, "device_memory is a whole number of bytes (an int), or None, not True"),
    ],
)
def test_what_is_wrong_with_options_is_said(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(MpmdError, match=re.escape(wrong)):
        mpmd_trace.make_config(topology(), {"f0": "m0"}, **options)


ROWS_OF, COLUMNS = P("data"), P(None, "data")


@pytest.mark.parametrize(
    ("up", "down", "scale", "rows"),
    [
        (COLUMNS, P(), ROWS_OF, True),
        *(
            nightly(*more)
            for more in itertools.product(
                (P(), ROWS_OF, COLUMNS), (P(), ROWS_OF, COLUMNS), (P(), ROWS_OF), (False, True)
            )
        ),
    ],
)
def test_any_sharding_gives_the_same_with_and_without(up: P, down: P, scale: P, rows: bool) -> None:
    specs, batch = {"up": up, "down": down, "scale": scale}, SHARDED_ROWS if rows else P()
    once = compiled(specs, batch)
    each = compiled(specs, batch, hoist_invariants=False, gradient_reduction="microbatch")
    assert_same(once(*arguments()), each(*arguments()))
    assert_same(once(*arguments()), expected())
    total = [sum(c.total.runs for c in one.collectives().values()) for one in (once, each)]
    assert total[0] <= total[1]


@pytest.mark.parametrize("table", [P(), P("data")])
def test_embeddings_are_gathered_and_their_gradients_summed_once_per_step(table: P) -> None:
    meshes = topology()

    def loss(ps: Any, tokens: jax.Array) -> jax.Array:
        x = mpmd_trace.named_computation(lambda e, t: e[t], name="f0")(ps["table"], tokens)
        return mpmd_trace.named_computation(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2), name="f1")(ps["w"], x)

    def step(ps: Any, batch: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, ps, summed_gradients(loss, ps, batch))

    ps = {"table": normal(0, 2 * WIDTH, WIDTH), "w": normal(1, WIDTH, WIDTH)}
    batch = np.random.default_rng(2).integers(0, 2 * WIDTH, (MICROBATCHES, ROWS, 3), np.int32)
    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
    places = {"table": NamedSharding(meshes["m0"], table), "w": None}, NamedSharding(meshes["m0"], SHARDED_ROWS)
    found = mpmd_trace.jit(step, config, in_shardings=places).lower(ps, batch).compile()
    assert counted(found) == {"m0": (1 if table else 0, 1), "m1": (0, 1)}
    assert_same(found(ps, batch), jax.jit(step)(ps, batch))


def test_gradients_of_parts_of_tables_are_summed_once() -> None:
    """Positions are looked up, cut out, put together, reversed: what is linear is applied to sums not finished yet."""
    mesh = topology()["m0"]

    def embed(p: Any, x: jax.Array) -> jax.Array:
        a, b = jnp.split(p["joint"], 2)
        x = x + p["looked_up"][jnp.arange(6) % 4] + p["cut"][1:7] + p["reversed"][::-1]
        return x * jnp.concatenate([p["first"], p["second"]]) + jnp.tile(a, (2, 1)) + b[:1]

    def loss(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(mpmd_trace.named_computation(embed, name="f")(p, x) ** 2)

    def step(p: Any, batch: jax.Array) -> Any:
        grads = mpmd_trace.value_and_grad(loss, microbatches=2)(p, batch)[1]
        return jax.tree.map(lambda w, g: w - g, p, grads)

    rows = {"looked_up": 4, "cut": 8, "reversed": 6, "first": 2, "second": 4, "joint": 6}
    p = {name: normal(i, n, WIDTH) for i, (name, n) in enumerate(rows.items())}
    batch = normal(len(rows), ROWS, 6, WIDTH)
    config = mpmd_trace.make_config({"m0": mesh}, {"f": "m0"})
    found = mpmd_trace.jit(step, config, in_shardings=(None, NamedSharding(mesh, P("data")))).lower(p, batch).compile()
    assert counted(found) == {"m0": (0, 1)}
    assert_same(found(p, batch), jax.jit(step)(p, batch))


def convolved(p: Any, x: jax.Array) -> jax.Array:
    more = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": x.shape[-1] // p["w"].shape[2]}
    return jnp.tanh(jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", **more) + p["b"])


def dense(p: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"])


@pytest.mark.parametrize("clips", [False, True])
def test_kernels_are_gathered_once_and_clipped_gradients_summed_once(clips: bool) -> None:
    """The second kernel has a group for each feature.  The norm of all gradients and the update read the same sums."""
    meshes = topology()

    def step(ps: Any, batch: jax.Array) -> Any:
        grads = summed_gradients(loss_of(dense if clips else convolved), ps, batch)
        if clips:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.1 / norm), grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, ps, grads)

    shapes = [(WIDTH, WIDTH)] * 2 if clips else [(3, 3, 4, 4), (3, 3, 1, 4)]
    ps = [{"w": 0.3 * normal(i, *shape), "b": jnp.zeros(shape[-1])} for i, shape in enumerate(shapes)]
    batch = normal(2, MICROBATCHES, ROWS, *((WIDTH,) if clips else (6, 6, 4)))
    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
    kernel = P() if clips else P(None, None, None, "data")
    places = [{"w": NamedSharding(mesh, kernel), "b": None} for mesh in meshes.values()]
    rows = NamedSharding(meshes["m0"], SHARDED_ROWS)
    found = mpmd_trace.jit(step, config, in_shardings=(places, rows)).lower(ps, batch).compile()
    # Forwards read the kernel and, but for the first stage, backwards its reverse.
    assert [count for count, _ in counted(found).values()] == ([0, 0] if clips else [1, 2])
    assert [count for _, count in counted(found).values()] == [1, 1]
    assert_same(found(ps, batch), jax.jit(step)(ps, batch))


def test_rows_stay_sharded_where_experts_are_sharded_by_columns() -> None:
    """Shardy alone shards the products of experts by columns, for which each microbatch gathers rows."""
    meshes = topology()

    def experts(p: Any, x: jax.Array) -> jax.Array:
        y = jnp.einsum("bsd,edf->bsef", x, p["up"])
        y = jnp.einsum("bsef,efd->bsed", jnp.tanh(y), p["down"])
        return x + jnp.einsum("bse,bsed->bsd", jax.nn.softmax(x @ p["router"]), y)

    def step(ps: Any, batch: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, ps, summed_gradients(loss_of(experts), ps, batch))

    shapes = {"up": (4, 8, 8), "down": (4, 8, 8), "router": (8, 4)}
    ps = [{name: 0.3 * normal(i, *shape) for name, shape in shapes.items()} for i in range(2)]
    batch = normal(2, 2, 4, 6, 8)
    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B")
    columns = [
        {name: NamedSharding(mesh, P(*[None] * (len(shape) - 1), "data")) for name, shape in shapes.items()}
        for mesh in meshes.values()
    ]
    places = columns, NamedSharding(meshes["m0"], SHARDED_ROWS)
    found = mpmd_trace.jit(step, config, in_shardings=places).lower(ps, batch).compile()
    assert counted(found) == {"m0": (3, 1), "m1": (3, 1)}
    assert_same(found(ps, batch), jax.jit(step)(ps, batch))


def test_what_only_hands_on_after_hoisting_goes() -> None:
    """Nothing is left of backwards whose gradient is zero; what they hand on is whole in any spelling."""
    meshes = topology()
    columns = NamedSharding(meshes["m0"], P(None, "data"))

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        h = mpmd_trace.named_computation(lambda w, h: jnp.tanh(h @ w), name="f0")(w, x)
        h = jax.lax.with_sharding_constraint(h, NamedSharding(meshes["m0"], P("data")))
        h = mpmd_trace.named_computation(jnp.ones_like, name="ones")(h)
        return mpmd_trace.named_computation(lambda h: jnp.mean(h**2), name="loss")(h)

    def step(w: jax.Array, xs: jax.Array) -> Any:
        one = jax.value_and_grad(loss)
        parts = [mpmd_trace.call(one, call_counter=i)(w, xs[i]) for i in range(2)]
        return jax.tree.map(jnp.add, *parts)

    names = {"f0": "m0", "ones": "m0", "loss": "m1"}
    config = mpmd_trace.make_config(meshes, names, placement="reference")
    w, xs = jnp.ones((4, 4)), jnp.ones((2, 4, 4))
    lowered = mpmd_trace.jit(step, config, in_shardings=(columns, None)).lower(w, xs)
    value, gradient = lowered.compile()(w, xs)
    assert value == 2 and not gradient.any()
    assert "# f0" not in lowered.as_text("plan")


def test_merged_forwards_stay_with_their_microbatches() -> None:
    """A backward and the forward of a later microbatch in one program: no product is computed ahead, or twice."""
    names = {f"f{i}": (f"m{i}", i) for i in range(2)}
    merge = {"mpmd_merge_forward_with_backward": True, "mpmd_merge_backward_with_forward": True}
    config = mpmd_trace.make_config(
        topology(),
        names,
        input_mesh_assignment=(["m0", "m1"], None),
        output_mesh_assignment=["m0", "m1"],
        partitioning_options={"mpmd_infer_transfers": True, **merge},
        pipeline_schedule="1F1B",
    )
    width, rows, microbatches = 256, 64, 6

    loss = loss_of(lambda p, x: jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]))

    def step(ps: Any, batch: jax.Array) -> Any:
        total = jax.tree.map(jnp.zeros_like, ps)
        for i in range(microbatches):
            gradients = mpmd_trace.call(jax.grad(loss), call_counter=i)(ps, batch[rows * i : rows * (i + 1)])
            total = jax.tree.map(jnp.add, total, gradients)
        return total

    ps = [list(normal(i, 2, width, width) / width**0.5) for i in range(2)]
    batch = normal(2, rows * microbatches, width)
    found = mpmd_trace.jit(step, config).lower(ps, batch).compile()
    assert [run.label for run in found.program.plan.runs if ", " in run.label]  # some are merged
    products = sum(e.as_text().count(" dot(") * e.runs for e in found.executables())
    assert products == microbatches * (4 + 4 + 3)
    assert_same(found(ps, batch), jax.jit(step)(ps, batch))
