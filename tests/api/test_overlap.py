"""`overlap`: a forward and a backward of two microbatches as one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mpmd_trace
from mpmd_trace import MpmdError, schedules
from mpmd_trace.api import options
from mpmd_trace.backend.collectives import Collective, Collectives
from mpmd_trace.jax_compat import collective_overlap
from mpmd_trace.jax_compat.collective_overlap import HiddenShare
from mpmd_trace.passes.microbatches.action_order import ActionOrder
from mpmd_trace.report.plan_costs import study
from mpmd_trace.report.plan_search import AS_PROMISED, options_of
from mpmd_trace.report.timeline import FragmentActions
from mpmd_trace.scheduling import AutoSchedule, Link
from mpmd_trace.scheduling.auto_schedule import rank_schedules, replayed
from mpmd_trace.scheduling.stage_costs import StageCosts
from mpmd_trace_cli.placement_report import hiding_text
from pipelines import assert_same, layer, loss_of, topology
from util import nightly, normal

ROWS, WIDTH = 4, 8


def step_of(microbatches: int) -> Any:
    """A training step of a layer `f<i>` for each weight."""

    def step(ws: Sequence[jax.Array], xs: jax.Array) -> Any:
        value, gradients = mpmd_trace.value_and_grad(loss_of(layer), microbatches=microbatches)(ws, xs)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)

    return step


def arguments(stages: int, microbatches: int) -> tuple[list[jax.Array], jax.Array]:
    return [normal(i, WIDTH, WIDTH) for i in range(stages)], normal(stages, microbatches * ROWS, WIDTH)


@pytest.mark.parametrize(
    ("schedule", "meshes_of", "microbatches", "pairs"),
    [
        ("1F1B", (0, 1), 4, [2, 0]),
        nightly("zb-h1", (0, 1), 4, [2, 0]),
        nightly("interleaved-1f1b", (0, 1, 0, 1), 4, [4, 2]),
    ],
)
def test_pairs_give_the_same_numbers(
    schedule: str, meshes_of: Sequence[int], microbatches: int, pairs: Sequence[int]
) -> None:
    step = step_of(microbatches)
    names = {f"f{stage}": (f"m{mesh}", stage) for stage, mesh in enumerate(meshes_of)}
    results, runs = [], []
    for overlap in (None, "pairs"):
        ws, xs = arguments(len(meshes_of), microbatches)
        actions = FragmentActions()
        config = mpmd_trace.make_config(topology(), names, pipeline_schedule=schedule, overlap=overlap)
        compiled = mpmd_trace.jit(step, config, donate_argnums=0).lower(ws, xs, hooks=[actions]).compile()
        placed = compiled.place(ws, xs)[0]
        results.append(compiled(*placed))
        runs.append(len(compiled.program.plan.runs))
    rows = [sum(len({part.microbatch for part in step.parts}) > 1 for step in row) for row in actions.of_mesh.values()]
    assert rows == pairs
    assert runs[1] < runs[0]
    assert_same(results[1], results[0], rtol=0, atol=0)
    assert_same(results[1], jax.jit(step)(*arguments(len(meshes_of), microbatches)))


def test_blocks_that_would_wait_for_themselves_are_warned_of() -> None:
    """The second mesh runs the forward of the block before the backward that the block waits for.

    Nor are pairs made of what the schedule has in no block.
    """
    orders = [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    schedule, actions, args = schedules.from_orders(orders), FragmentActions(), arguments(2, 2)
    config = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, pipeline_schedule=schedule, overlap="pairs")
    with pytest.warns(UserWarning) as warned:
        lowered = mpmd_trace.jit(step_of(2), config).lower(*args, hooks=[actions])
        compiled = lowered.compile()
    [text] = [str(one.message) for one in warned if "block" in str(one.message)]
    assert (
        "a block of the schedule is not one program: (0F1;0B0)OVERLAP_F_B on mesh 'm0', since 0B0 waits for fragment "
        "[\"f1\"(1)] on mesh 'm1', call_counter 0, which waits for 0F1. Parts of such a block run apart; leave "
        "it out of the schedule to simulate what runs"
    ) in text
    assert not any("OVERLAP" in str(step) for row in actions.of_mesh.values() for step in row)
    assert_same(compiled(*args), jax.jit(step_of(2))(*args))


def test_steps_without_pairs_are_warned_of() -> None:
    """Unless they have no backwards, such as an evaluation with the configuration of the training step."""
    config = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, overlap="pairs")
    ws, xs = arguments(2, 1)
    with pytest.warns(UserWarning, match="overlap='pairs' has no effect: no mesh runs a forward and a backward of"):
        _ = mpmd_trace.jit(step_of(1), config).lower(ws, xs).partitioned
    _ = mpmd_trace.jit(loss_of(layer), config).lower(ws, xs).partitioned  # warnings are errors here


def test_blocks_of_a_schedule_that_is_not_followed_exactly() -> None:
    """Its backwards cannot run from the last microbatch to the first, but two of them can be one program."""
    orders = [["0F0", "0F1", "0F2", "(0B2;0B1)OVERLAP_B_B", "0B0"], ["1F0", "1F1", "1F2", "1B2", "1B1", "1B0"]]
    schedule, actions = schedules.from_orders(orders), FragmentActions()
    config = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, pipeline_schedule=schedule, overlap="pairs")
    with pytest.warns(UserWarning, match="the schedule cannot be followed exactly"):
        mpmd_trace.jit(step_of(3), config).lower(*arguments(2, 3), hooks=[actions])
    steps = [str(step) for step in actions.of_mesh["m0"] if step.parts[0].kind != "O"]
    assert steps == ["0F0", "0F1", "0F2", "0B0", "(0B1;0B2)OVERLAP_B_B"]


@pytest.mark.parametrize(
    "more",
    [
        {"partitioning_options": {"mpmd_fragment_remat": True}},
        {"partitioning_options": {"mpmd_fragment_remat": True, "mpmd_merge_remat_fragments": True}},
        {"remat": "auto", "device_memory": 3200},
        {"partitioning_options": {"mpmd_merge_inferred_after_scheduling": True}},
    ],
)
def test_blocks_have_what_is_recomputed_for_their_parts_or_merged_into_them(more: dict[str, Any]) -> None:
    names = {f"f{stage}": (f"m{mesh}", stage) for stage, mesh in enumerate((0, 1, 1, 0))}
    actions = FragmentActions()
    config = mpmd_trace.make_config(topology(), names, pipeline_schedule="dualpipe-v", overlap="pairs", **more)
    mpmd_trace.jit(step_of(4), config).lower(*arguments(4, 4), hooks=[actions])
    steps = [step for row in actions.of_mesh.values() for step in row]
    assert {str(step) for step in steps if len({part.microbatch for part in step.parts}) > 1} == {
        "(0F3;3I1;3W1)OVERLAP_F_I_W",
        "(3F2;0B0)OVERLAP_F_B",
        "(3F3;0B1)OVERLAP_F_B",
        "(2F2;1I0;1W0)OVERLAP_F_I_W",
        "(1F3;2B1)OVERLAP_F_B",
        "(2F3;1I1;1W1)OVERLAP_F_I_W",
    }


@pytest.mark.parametrize("overlap", [None, "pairs"])
def test_plan_assumes_the_blocks_that_run(overlap: Any) -> None:
    step, args, placed = step_of(4), arguments(4, 4), (0, 1, 1, 0)
    names = {f"f{stage}": (f"m{mesh}", stage) for stage, mesh in enumerate(placed)}
    options = {"mpmd_merge_forward_with_backward": False}

    def compiled(**more: Any) -> tuple[mpmd_trace.stages.Compiled, list[tuple[schedules.Step, ...]], FragmentActions]:
        actions = FragmentActions()
        config = mpmd_trace.make_config(
            topology(), names, pipeline_schedule="dualpipe-v", partitioning_options=options, **more
        )
        result = mpmd_trace.jit(step, config).lower(*args, hooks=[actions]).compile()
        return result, [tuple(s for s in r if s.parts[0].kind != "O") for r in actions.of_mesh.values()], actions

    _, run, _ = compiled(overlap=overlap)
    apart, _, actions = compiled()
    plan = study(apart.lowered, apart.program, actions, overlap=overlap)
    [option] = [
        one for one in options_of(plan) if (one.choice.schedule.name, one.assignment) == ("dualpipe-v", "as assigned")
    ]
    again = replayed(option.choice, option.stages, [[part for step in row for part in step.parts] for row in run])
    assert again is not None
    steps = again.result.program.steps
    assert list(steps) == [step for row in run for step in row]
    blocks = [step for row in schedules.get_schedule("dualpipe-v", 2, 4).orders for step in row if len(step.parts) > 1]
    assert sum(len(step.parts) > 1 for step in steps) == (len(blocks) if overlap else 0)
    assert again.makespan == pytest.approx(option.choice.makespan, rel=AS_PROMISED)


def test_auto_counts_on_blocks_only_where_they_help() -> None:
    """The blocks of the schedule, or its parts one after the other."""
    ones = (1.0,) * 8
    sizes: dict[str, Any] = {"meshes": 4, "microbatches": 16, "mesh_of": (0, 1, 2, 3, 3, 2, 1, 0)}
    costs = StageCosts(**sizes, forward=ones, input_grad=ones, weight_grad=ones, overlap="auto")
    for collectives, has_blocks in ((0.0, False), (0.01, False), (0.5, True)):
        sent = dict.fromkeys("FI", (collectives,) * 8)
        ranked = rank_schedules(dataclasses.replace(costs, collectives=sent))
        [choice] = [one for one in ranked if one.schedule.name == "dualpipe-v"]
        assert choice.schedule.has_blocks == choice.result.schedule.has_blocks == has_blocks


def test_an_automatic_schedule_runs_the_blocks_that_it_was_chosen_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(collective_overlap._WITH_OPTIONS, "cpu", {"all-reduce": HiddenShare(0, 0, 1, 1)})
    meshes, actions = topology(), FragmentActions()
    auto = AutoSchedule(flops_per_second=1e9, collectives=Link(1e-6, 1e9))
    config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule=auto, overlap="pairs")
    lowered = mpmd_trace.jit(summing_step(meshes), config).lower(*arguments(2, 8), hooks=[actions])
    result = lowered.compile()(*arguments(2, 8))
    order = lowered.schedule.order
    assert isinstance(order, ActionOrder)
    chosen = order.make(2, 8, None)
    assert chosen.has_blocks
    rows = zip(chosen.orders, actions.of_mesh.values(), strict=True)
    for wanted, run in rows:
        blocks = [{(p.stage, p.kind == "F", p.microbatch) for p in s.parts} for s in wanted if len(s.parts) > 1]
        merged = [{(p.stage, p.kind == "F", p.microbatch) for p in s.parts} for s in run if len(s.parts) > 1]
        assert blocks == merged
    apart = mpmd_trace.jit(summing_step(meshes), config.with_options(overlap=None))
    assert_same(result, apart(*arguments(2, 8)))


def test_auto_needs_devices_whose_links_are_known() -> None:
    """On CPUs, whose XLA hides no collectives, nothing is merged."""
    step, (ws, xs) = step_of(4), arguments(2, 4)
    texts = []
    for overlap in (None, "auto"):
        config = mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B", overlap=overlap)
        texts.append(str(mpmd_trace.jit(step, config).lower(ws, xs).as_text()))
    assert texts[0] == texts[1]


def summing_step(meshes: Any) -> Any:
    """A step of two layers that add up products over the devices of their meshes."""
    spec = jax.sharding.PartitionSpec

    def layer(mesh: jax.sharding.Mesh) -> Any:
        [axis] = mesh.axis_names
        return jax.shard_map(
            lambda w, x: jnp.tanh(jax.lax.psum(x @ w, axis)),
            mesh=mesh,
            in_specs=(spec(axis), spec(None, axis)),
            out_specs=spec(),
        )

    def loss(ws: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(ws):
            x = mpmd_trace.named_computation(layer(meshes[f"m{i}"]), name=f"f{i}")(w, x)
        return jnp.mean(x**2)

    return mpmd_trace.value_and_grad(loss, microbatches=8)


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        (None, False),
        nightly({}, False),
        nightly({"all-to-all": HiddenShare(0, 0, 1, 1)}, False),
        ({"all-reduce": HiddenShare(0, 0, 1, 1)}, True),
        ({"all-reduce": HiddenShare(1, 1, 1, 1)}, False),
    ],
)
def test_auto_schedules_count_on_pairs_only_where_they_hide_more(
    shares: dict[str, HiddenShare] | None, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where nothing is known of the devices, of other kinds of collectives, or where programs hide them anyway."""
    if shares is not None:
        monkeypatch.setitem(collective_overlap._WITH_OPTIONS, "cpu", shares)
    meshes = topology()
    auto = AutoSchedule(flops_per_second=1e9, collectives=Link(1e-6, 1e9))
    chosen = {}
    for overlap in (None, "auto", "pairs"):
        config = mpmd_trace.make_config(meshes, {"f0": "m0", "f1": "m1"}, pipeline_schedule=auto, overlap=overlap)
        chosen[overlap] = mpmd_trace.jit(summing_step(meshes), config).lower(*arguments(2, 8)).schedule.name
    if not (shares and "all-reduce" in shares and not counts):  # which makes all schedules shorter
        assert chosen[None] == chosen["auto"]
    assert (chosen["auto"] != chosen["pairs"]) == counts


def test_what_is_assumed_to_be_hidden_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"m0": Collectives({"all-reduce": Collective(1, 1, 8), "all-gather": Collective(1, 1, 8)})}
    configs = {
        overlap: mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, overlap=overlap)
        for overlap in (None, "pairs")
    }
    assert hiding_text(configs[None], found) == ""
    assert "m0: nothing, as it is not known of these devices" in hiding_text(configs["pairs"], found)
    monkeypatch.setitem(collective_overlap._WITH_OPTIONS, "cpu", {"all-reduce": HiddenShare(0.0, 1.0, 0.75, 0.5)})
    told = "m0: all-reduce 75% of forwards, 100% of backwards; all-gather 0% of forwards, 0% of backwards"
    assert told in hiding_text(configs["pairs"], found)


def test_pairs_come_with_options_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that this XLA has, and the user's in their place."""
    known = {"xla_embed_ir_in_executable": False}
    monkeypatch.setitem(options._HIDING, "cpu", {**known, "xla_of_another_version": True})
    configs = {
        overlap: mpmd_trace.make_config(topology(), {"f0": "m0", "f1": "m1"}, pipeline_schedule="1F1B", overlap=overlap)
        for overlap in (None, "pairs")
    }
    assert options.options_of_overlap(configs[None]) == {}
    assert options.options_of_overlap(configs["pairs"]) == {"m0": known, "m1": known}
    own = {"m1": {"xla_embed_ir_in_executable": "never"}}
    lowered = mpmd_trace.jit(step_of(4), configs["pairs"], compiler_options=own).lower(*arguments(2, 4))
    with pytest.raises(MpmdError, match=r"(?s)^(?!.*mesh m0)(?!.*another_version).*executable='never'.*mesh m1"):
        lowered.compile()


def test_errors() -> None:
    with pytest.raises(MpmdError, match="overlap is 'auto', 'pairs' or None, not True"):
        mpmd_trace.make_config(topology(), {}, overlap=True)  # type: ignore[arg-type]
    with pytest.raises(MpmdError, match="overlap='pairs' and the option mpmd_merge_backward_with_forward both merge"):
        mpmd_trace.make_config(
            topology(), {}, overlap="pairs", partitioning_options={"mpmd_merge_backward_with_forward": True}
        )
