"""`mpmd_trace.jit`: caching, static arguments, stages, analyses."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import mpmd_trace
from mpmd_trace import MpmdError, named_computation
from pipelines import (
    Weights,
    accumulate,
    assert_same,
    batch,
    check,
    config,
    layer,
    loss,
    summed_gradients,
    topology,
    weights,
)


@pytest.fixture(scope="module")
def lowered() -> mpmd_trace.stages.Lowered:
    return mpmd_trace.jit(accumulate, config(pipeline_schedule="1F1B")).lower(weights(), batch(2))


@pytest.fixture(scope="module")
def compiled(lowered: mpmd_trace.stages.Lowered) -> mpmd_trace.stages.Compiled:
    return lowered.compile()


def test_texts(lowered: mpmd_trace.stages.Lowered, compiled: mpmd_trace.stages.Compiled) -> None:
    assert "mpmd_trace.named_computation[f0]" in lowered.as_text("jaxpr")
    named = lowered.as_text("stablehlo")
    assert named.count("mpmd.named_computation") == 4 and "mpmd.call" in named
    exported = lowered.as_text()
    assert "mpmd.fragment_call" in exported and "mpmd.transfer" in exported
    assert exported == compiled.as_text("mpmd") == compiled.as_text()
    assert exported == str(mpmd_trace.compiler.parse(exported)), "the text can be read back"
    assert "run" in compiled.as_text("plan") and "transfer" in compiled.as_text("plan")
    with pytest.raises(ValueError, match="dialect is 'jaxpr'"):
        lowered.as_text("hlo")  # type: ignore[arg-type]


def test_lowering_partitions_once(partitioned: list[str]) -> None:
    jitted = mpmd_trace.jit(accumulate, config())
    lowered = jitted.lower_lazily(weights(), batch(2))
    lowered.as_text("stablehlo")
    assert partitioned == []
    lowered = jitted.lower(weights(), batch(2))
    assert partitioned == ["all"]
    lowered.as_text()
    assert partitioned == ["all"] and lowered.compile().lowered is lowered
    assert partitioned == ["all"]
    jitted(weights(), batch(2))
    assert partitioned == ["all", "all"]


def test_compiled_can_be_called_and_inspected(compiled: mpmd_trace.stages.Compiled) -> None:
    expected = jax.jit(accumulate)(weights(), batch(2))
    assert_same(compiled(weights(), batch(2)), expected)
    found = compiled.function_mesh_assignment
    assert found.inputs == ((["m0", "m1"], "m0"), {})
    assert found.outputs == ("m1", ["m0", "m1"])
    shardings = compiled.function_named_shardings
    assert shardings.inputs[0][0][0].mesh == topology()["m0"]
    assert shardings.outputs[1][1].mesh == topology()["m1"]


def test_place(compiled: mpmd_trace.stages.Compiled) -> None:
    args, kwargs = compiled.place(weights(), np.asarray(batch(2)))
    assert args[0][1].sharding == compiled.function_named_shardings.inputs[0][0][1]
    assert_same(compiled(*args, **kwargs), jax.jit(accumulate)(weights(), batch(2)))


def test_arguments_are_placed_by_their_positions(compiled: mpmd_trace.stages.Compiled) -> None:
    shardings = compiled.function_named_shardings.inputs[0]
    (x,) = mpmd_trace.place(compiled, np.asarray(batch(2)), argnums=1)
    assert x.sharding == shardings[1]
    x, ws = mpmd_trace.place(compiled, x, weights(), argnums=(-1, 0))
    assert (x.sharding, ws[1].sharding) == (shardings[1], shardings[0][1])
    assert_same(compiled(ws, x), jax.jit(accumulate)(weights(), batch(2)))
    with pytest.raises(MpmdError, match=r"argnums has 1 positions for 2 arguments; give one for each"):
        mpmd_trace.place(compiled, weights(), batch(2), argnums=0)


def test_analyses(compiled: mpmd_trace.stages.Compiled) -> None:
    cost = compiled.cost_analysis()
    assert cost["flops"] > 0 and cost["transfers"] >= 4
    # Two microbatches: activations of 4x4 floats go forth and back.
    assert cost["bytes transferred"] >= 4 * 4 * 4 * 4
    memory = compiled.memory_analysis()
    assert set(memory) == {"m0", "m1"}
    assert memory["m0"].peak >= memory["m0"].arguments > 0


def test_measure(compiled: mpmd_trace.stages.Compiled) -> None:
    result, timeline = compiled.measure(weights(), batch(2))
    assert_same(result, jax.jit(accumulate)(weights(), batch(2)))
    assert timeline.seconds > 0


def test_an_exported_program_runs_by_itself(compiled: mpmd_trace.stages.Compiled) -> None:
    flat = jax.tree.leaves((weights(), batch(2)))
    found = mpmd_trace.compiler.run_module(compiled.as_text(), topology(), flat)
    assert_same(found, jax.tree.leaves(jax.jit(accumulate)(weights(), batch(2))))


def test_lowering_needs_no_arrays_and_no_devices() -> None:
    meshes = {f"m{i}": AbstractMesh((2,), ("x",)) for i in range(2)}
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weights(), batch()))
    lowered = mpmd_trace.jit(loss, config(topology=meshes)).lower(*shapes)
    assert "mpmd.fragment_call" in lowered.as_text()
    with pytest.raises(MpmdError, match="abstract meshes, which have no devices"):
        lowered.compile()


def test_retraces_for_new_types_only() -> None:
    traces = []

    def step(ws: Weights, x: jax.Array) -> Any:
        traces.append(x.shape)
        return named_computation(lambda w, x: x @ w, name="f0")(ws[0], x).sum()

    jitted = mpmd_trace.jit(step, config({"f0": "m0"}))
    for x in (batch(), batch() + 1, np.asarray(batch()), np.asarray(batch(), np.float64)):
        assert_same(jitted(weights(), x), jax.jit(lambda ws, x: (x @ ws[0]).sum())(weights(), x))
    assert len(traces) == 1
    for x in (batch(rows=2), batch().astype(jnp.bfloat16)):
        jitted(weights(), x)
    jitted(tuple(weights()), batch())
    assert len(traces) == 4
    jitted.clear_cache()
    jitted(weights(), batch())
    assert len(traces) == 5


def test_shardings_of_committed_arguments_are_kept(partitioned: list[str]) -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        return named_computation(layer, name="f0")(w, x)

    mesh = topology()["m0"]
    jitted = mpmd_trace.jit(step, config({"f0": "m0"}))
    expected = jax.jit(step)(weights()[0], batch())
    assert_same(jitted(weights()[0], batch()), expected)
    split = jax.device_put(batch(), NamedSharding(mesh, PartitionSpec("x")))
    for x in (split, split, batch(), split):
        assert_same(jitted(weights()[0], x), expected)
    assert len(partitioned) == 2
    wanted = jitted.lower(weights()[0], split).compile().function_named_shardings.inputs[0][1]
    assert wanted.spec == PartitionSpec("x")


def test_a_jitted_function_inside_other_transformations_is_the_function() -> None:
    """Also after it was compiled for arrays of the same types."""
    jitted = mpmd_trace.jit(loss, config())
    for _ in range(2):
        for transformed in (jax.grad, jax.jit):
            with pytest.warns(
                mpmd_trace.MpmdWarning, match=r"loss is called within .* not on the meshes of its conf"
            ) as w:
                found = transformed(lambda *args: jitted(*args))(weights(), batch())  # traced each time
            assert w[0].filename == __file__
            assert_same(found, transformed(loss)(weights(), batch()))
        assert_same(jitted(weights(), batch()), jax.jit(loss)(weights(), batch()))


def test_a_jitted_function_inside_a_jitted_one_is_part_of_it() -> None:
    inner = mpmd_trace.jit(loss, config())
    whole = mpmd_trace.jit(jax.value_and_grad(inner), config())  # names mean something: nothing to warn of
    assert_same(whole(weights(), batch()), jax.value_and_grad(loss)(weights(), batch()))
    assert "transfer" in whole.lower(weights(), batch()).as_text("mpmd")


def test_retraces_for_the_settings_of_jax_that_change_a_program() -> None:
    traces = []

    def step(ws: Weights, x: jax.Array) -> Any:
        traces.append(1)
        return loss(ws, x), jnp.arange(3)

    jitted, plain = mpmd_trace.jit(step, config()), jax.jit(step)
    settings: list[Any] = [contextlib.nullcontext, lambda: jax.enable_x64(True)] * 2
    settings.append(lambda: jax.default_matmul_precision("float32"))
    for setting in settings:
        with setting():
            found = jitted(weights(), batch())
            ours = len(traces)
            assert_same(found, plain(weights(), batch()))
            traces[ours:] = []
    assert ours == 3


def test_disable_jit() -> None:
    """The function itself runs, as under jax.jit; what is lowered explicitly keeps its names."""
    seen = []

    def step(ws: Weights, x: jax.Array) -> Any:
        seen.append(isinstance(x, jax.core.Tracer))
        return loss(ws, x)

    jitted = mpmd_trace.jit(step, config())
    with jax.disable_jit():
        assert_same(jitted(weights(), batch()), jax.jit(loss)(weights(), batch()))
        assert seen == [False]
        lowered = jitted.lower(weights(), batch())
    assert "mpmd.fragment_call" in lowered.as_text()


def test_the_mesh_of_the_context_has_no_say() -> None:
    jitted, args = mpmd_trace.jit(jax.value_and_grad(loss), config()), (weights(), batch())
    with jax.set_mesh(topology()["m0"]):
        found = jitted(*args)
    assert_same(found, jax.jit(jax.value_and_grad(loss))(*args))


def test_debug_nans() -> None:
    def step(ws: Weights, x: jax.Array) -> Any:
        return jnp.log(-1 - loss(ws, x))

    jitted = mpmd_trace.jit(step, config())
    assert np.isnan(jitted(weights(), batch()))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"\(nan\) .* on mesh 'm1'.*float32\[\]"):
        jitted(weights(), batch())
    with jax.debug_infs(True):
        jitted(weights(), batch())


def test_explicit_shardings_win() -> None:
    mesh = topology()["m0"]
    whole = NamedSharding(mesh, PartitionSpec())
    step = named_computation(layer, name="f0")
    jitted = mpmd_trace.jit(step, config({"f0": "m0"}), in_shardings=(whole, whole))
    jitted(weights()[0], batch())
    split = jax.device_put(batch(), NamedSharding(mesh, PartitionSpec("x")))
    with pytest.raises(MpmdError, match=r"argument x has sharding .* move it with compiled.place"):
        jitted(weights()[0], split)


@pytest.mark.parametrize("ahead", [False, True], ids=["jit", "compiled"])
def test_results_are_taken_back_with_any_sharding(ahead: bool) -> None:
    """As state from step to step, although `in_shardings` wants another one; shardings of no result are refused."""
    mesh = topology()["m0"]
    whole, split = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((), ("x",)))
    step = named_computation(lambda w, x: (w + x, jnp.tanh(x @ w)), name="f0")
    jitted = mpmd_trace.jit(
        step, config({"f0": "m0"}), in_shardings=(whole, None), out_shardings=split, donate_argnums=0
    )
    run: Any = jitted.lower(weights()[0], batch()).compile() if ahead else jitted
    state, plain = weights()[0], weights()[0]
    for _ in range(3):
        before = state
        state, _ = run(state, batch())
        plain, _ = jax.jit(step)(plain, batch())
        assert_same(state, plain)
        assert state.sharding.is_equivalent_to(split, 2)
        assert before is state or before.is_deleted()
    with pytest.raises(MpmdError, match=r"argument w has sharding .* move it with compiled.place"):
        run(jax.device_put(weights()[0], NamedSharding(mesh, PartitionSpec(None, "x"))), batch())


@pytest.mark.parametrize("how", ["argnums", "argnames"])
def test_static_arguments(how: str) -> None:
    traces = []

    def step(ws: Weights, x: jax.Array, mode: str, power: int = 2) -> Any:
        traces.append((mode, power))
        y = named_computation(lambda w, x, *, p: (x @ w) ** p, name="f0", static_argnames="p")
        return getattr(jnp, mode)(y(ws[0], x, p=power))

    options: dict[str, Any] = {"static_argnums": (2, 3)} if how == "argnums" else {"static_argnames": ["mode", "power"]}
    jitted = mpmd_trace.jit(step, config({"f0": "m0"}), **options)
    plain = jax.jit(step, **options)
    calls: list[Any] = [
        (("sum",), {}),
        (("max",), {}),
        (("sum", 3), {}),
        (("sum",), {"power": 3}),
        ((), {"mode": "sum"}),
        (("sum",), {}),
    ]
    found = [jitted(weights(), batch(), *args, **named) for args, named in calls]
    ours = len(traces)
    assert_same(found, [plain(weights(), batch(), *args, **named) for args, named in calls], rtol=1e-4)
    assert ours == 5
    with pytest.raises(MpmdError, match=r"static argument .* is a list, which cannot be hashed"):
        jitted(weights(), batch(), ["sum"])


REFERENCE = [
    "None",
    "GPipe",
    "1F1B",
    "Circular",
    "GPipeBut1F1BForLastMesh",
    "ZeroBubbleH1",
    "ZeroBubbleH2ZeroTxLatency",
]


@pytest.mark.parametrize("schedule", REFERENCE)
def test_reference_schedules(schedule: str) -> None:
    check(accumulate, weights(), batch(3), config=config(pipeline_schedule=schedule))


def test_a_schedule_against_the_data_flow_is_followed_as_far_as_possible() -> None:
    """Gradients are carried from the first microbatch on, and this schedule begins backwards with the last."""

    carried = functools.partial(summed_gradients, loss)
    names = {f"f{i}": (f"m{i % 2}", i) for i in range(4)}
    backwards = config(names, pipeline_schedule="looped-bfs")
    check(accumulate, weights(4), batch(2), config=backwards, rtol=1e-4)  # adds up behind the backwards
    with pytest.warns(mpmd_trace.MpmdWarning, match="the schedule cannot be followed exactly: it wants") as caught:
        check(carried, weights(4), batch(2), config=backwards, rtol=1e-4)
    (warning,) = caught
    text = str(warning.message)
    assert re.search(r'"f[13]"\(1\) of microbatch 1 on .m1. before "f[13]"\(1\) of microbatch 0 on', text), text
    assert "but the data flow wants it the other way round" in text and "choose a schedule of the other order" in text
    names_of_way_out = re.findall(r'pipeline_schedule="([^"]+)" would be followed exactly', text)
    check(carried, weights(4), batch(2), config=config(names, pipeline_schedule=names_of_way_out[0]), rtol=1e-4)


@pytest.mark.parametrize("schedule", ["1F1B", "interleaved-1f1b"])
def test_a_flow_that_comes_back_to_a_mesh_wants_a_schedule_of_several_stages(schedule: str) -> None:
    def step(ws: Any, x: Any) -> Any:
        return mpmd_trace.value_and_grad(loss, microbatches=4)(ws, x)

    there_and_back = {f"f{i}": f"m{i % 2}" for i in range(4)}
    jitted = mpmd_trace.jit(step, config(there_and_back, pipeline_schedule=schedule))
    if schedule != "1F1B":
        jitted.lower(weights(4), batch(rows=8))
        return
    with pytest.warns(mpmd_trace.MpmdWarning, match="the schedule cannot be followed exactly") as caught:
        jitted.lower(weights(4), batch(rows=8))
    text = str(caught[0].message)
    assert """Mesh 'm0' computes "f0", and later "f2", which '1F1B' takes for one stage""" in text
    assert 'pipeline_schedule="auto" would be followed exactly' in text and "other order" not in text


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("schedule", ["1F1B", "zb-h1", "GPipe", None])
def test_a_schedule_without_microbatches_is_said(schedule: str | None, microbatches: int) -> None:
    """A loop in Python that does not say that its turns are microbatches, and a step without any."""

    def step(ws: Any, x: Any, run: Any) -> Any:
        found = [run(i)(ws, x[i]) for i in range(microbatches)]
        return jax.tree.map(lambda *g: sum(g), *found)

    def plainly(i: int) -> Any:
        return jax.grad(loss)

    def called(i: int) -> Any:
        return mpmd_trace.call(jax.grad(loss), i)

    def lower(run: Any) -> None:
        jitted = mpmd_trace.jit(lambda ws, x: step(ws, x, run), config(pipeline_schedule=schedule))
        jitted.lower(weights(), batch(microbatches))

    if schedule in (None, "GPipe"):
        lower(called)
        lower(plainly)
        return
    if microbatches == 1:
        with pytest.warns(mpmd_trace.MpmdWarning, match=f"the schedule '{schedule}' has one microbatch to order"):
            lower(called)
    else:
        lower(called)
    with pytest.warns(mpmd_trace.MpmdWarning, match="orders microbatches, but") as caught:
        lower(plainly)
    text = str(caught[0].message)
    if microbatches == 1:
        assert "the step has none" in text and "enumerated_for" in text
        # The bubble of two meshes: one half, and 1 of 8 + 1 with eight microbatches.
        assert "others wait, 50% of a step each" in text and "with 8 microbatches and 1F1B 11%" in text
    else:
        assert "runs 3 times in the step" in text and "mpmd_trace.call(fn, i)(...)" in text
    assert len(caught) == 1


@pytest.mark.parametrize("schedule", ["1F1B", None])
def test_a_schedule_of_the_reference_against_the_data_flow(schedule: str | None) -> None:
    """Every microbatch gets the weights that the one before made, so that forwards cannot run ahead."""

    def step(ws: Any, x: Any) -> Any:
        def microbatch(i: Any, ws: Any, x: Any) -> Any:
            return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws, x))

        return mpmd_trace.enumerated_for(microbatch, ws, x)

    jitted = mpmd_trace.jit(step, config(pipeline_schedule=schedule))
    if schedule is None:
        jitted.lower(weights(), batch(3))
        return
    with pytest.warns(mpmd_trace.MpmdWarning, match="the schedule cannot be followed exactly") as caught:
        jitted.lower(weights(), batch(3))
    text = str(caught[0].message)
    assert "of microbatch 1 on 'm0' before" in text and len(caught) == 1
    assert text.endswith("would be followed exactly: leave pipeline_schedule out, and one mesh works at a time")
    (tried,) = re.findall(r"None of the schedules tried \((.*)\) would", text)
    names = re.findall(r"'([^']+)'", tried)
    assert len(names) > 2 and "auto" in names
    for name in names:
        with pytest.warns(mpmd_trace.MpmdWarning, match="cannot be followed exactly"):
            mpmd_trace.jit(step, config(pipeline_schedule=name)).lower(weights(), batch(4))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda ws, x: ((ws[:1], x), {}), "  argument 0: list of length 2, not list of length 1"),
        (lambda ws, x: ((tuple(ws), None), {}), "  argument 0: list, not tuple\n  argument 1: an array, not NoneType"),
        (lambda ws, x: ((ws,), {}), "  positional arguments: tuple of length 2, not tuple of length 1"),
        (lambda ws, x: ((ws,), {"x": x}), "  keyword arguments: dict of length 0, not dict of length 1"),
        (lambda ws, x: (([ws[0], {"w": ws[1]}], x), {}), "  argument 0[1]: an array, not dict"),
    ],
)
def test_another_structure_than_that_compiled_for(
    compiled: mpmd_trace.stages.Compiled, change: Any, wanted: str
) -> None:
    args, kwargs = change(weights(), batch(2))
    with pytest.raises(MpmdError) as caught:
        compiled(*args, **kwargs)
    first, *lines, last = str(caught.value).splitlines()
    assert first == "error: accumulate was compiled for other arguments:"
    assert wanted in "\n".join(lines)
    assert last == (
        "Compile it again for these (static arguments are left out of the call), or pass what it was compiled for."
    )
