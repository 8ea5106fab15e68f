"""One program for a forward and a backward: the same microbatch's on the last mesh of 1F1B, others on the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import pytest

import mpmd_trace
from mpmd_trace import MpmdError
from mpmd_trace.api.step_stats import plan_bubble
from mpmd_trace.passes.cpp_engine import partition_with_cpp
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.report.timeline import FragmentActions, actions_by_place, bubble, measured_timeline, planned_timeline
from pipelines import accumulate, assert_same, batch, config, weights

MICROBATCHES = 4
NAMES = {"f0": "m0", "f1": "m1"}
#: What each mesh runs where the last one runs a forward and its backward as one program.
MERGED = {
    "m0": ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"],
    "m1": [f"(1F{i};1B{i})OVERLAP_F_B" for i in range(MICROBATCHES)],
}
FORWARD_FIRST, BACKWARD_FIRST = "mpmd_merge_forward_with_backward", "mpmd_merge_backward_with_forward"


def compiled(*merge: str, schedule: str = "1F1B") -> tuple[mpmd_trace.stages.Compiled, FragmentActions, Any]:
    return with_options(schedule, **{name: name in merge for name in (FORWARD_FIRST, BACKWARD_FIRST)})


def with_options(schedule: str, **options: bool) -> tuple[mpmd_trace.stages.Compiled, FragmentActions, Any]:
    ws, xs = weights(), batch(MICROBATCHES)
    settings = config(NAMES, pipeline_schedule=schedule, partitioning_options=options)
    actions = FragmentActions()
    found = mpmd_trace.jit(accumulate, settings).lower(ws, xs, hooks=[actions]).compile()
    assert_same(found(ws, xs), jax.jit(accumulate)(ws, xs))
    return found, actions, found.program.measure(*jax.tree.leaves(found.place(ws, xs)[0]))[1]


def named(steps: Iterable[Any]) -> list[str]:
    """The steps but for those of no microbatch: zeros for the sums of gradients, and the update."""
    return [text for text in map(str, steps) if not text.endswith("O")]


def test_the_last_mesh_runs_both_as_one() -> None:
    apart, _, _ = compiled()
    merged, actions, measured = compiled(FORWARD_FIRST)
    assert {mesh: named(steps) for mesh, steps in actions.of_mesh.items()} == MERGED
    before, after = apart.program.plan, merged.program.plan
    assert len(after.runs) == len(before.runs) - MICROBATCHES
    assert len(after.transfers) == len(before.transfers)
    # What a forward of the last mesh leaves for its backward is no value of the plan any more.
    assert len(after.slots) <= len(before.slots) - MICROBATCHES
    for timeline in (planned_timeline(after, actions), measured_timeline(after, actions, measured)):
        assert named(e.step for e in timeline.rows[1]) == MERGED["m1"]


def test_by_default_it_runs_both_as_one_where_no_other_stage_runs_either() -> None:
    merged, actions, measured = with_options("1F1B")
    assert str(merged.program.plan) == str(compiled(FORWARD_FIRST)[0].program.plan)
    assert {mesh: named(steps) for mesh, steps in actions.of_mesh.items()} == MERGED
    assert named(e.step for e in measured_timeline(merged.program.plan, actions, measured).rows[1]) == MERGED["m1"]


def test_the_steady_state_runs_a_backward_and_the_next_forward_as_one() -> None:
    apart, _, _ = compiled()
    merged, actions, measured = compiled(FORWARD_FIRST, BACKWARD_FIRST)
    rows = {mesh: named(steps) for mesh, steps in actions.of_mesh.items()}
    assert rows["m0"] == ["0F0", "0F1", "(0B0;0F2)OVERLAP_B_F", "(0B1;0F3)OVERLAP_B_F", "0B2", "0B3"]
    assert rows["m1"] == MERGED["m1"]
    before, after = apart.program.plan, merged.program.plan
    assert len(after.runs) == len(before.runs) - MICROBATCHES - 2
    assert len(after.transfers) == len(before.transfers)
    assert "f0(1), f0" in str(after)
    for timeline in (planned_timeline(after, actions), measured_timeline(after, actions, measured)):
        assert named(e.step for e in timeline.rows[0]) == rows["m0"]


def test_programs_take_the_time_that_they_were_measured_to_take() -> None:
    found, actions, measured = compiled()
    plan = found.program.plan
    even = [dataclasses.replace(e, start=at, end=at + 2e-3) for at, e in enumerate(measured.entries)]
    timed = planned_timeline(plan, actions, [dataclasses.replace(measured, entries=tuple(even))])
    ideal = planned_timeline(plan, actions)
    assert timed.end == pytest.approx(2 * ideal.end)
    assert bubble(ideal) == pytest.approx(plan_bubble(plan, [1.0] * len(plan.programs)))
    assert [[e.step for e in row] for row in timed.rows] == [[e.step for e in row] for row in ideal.rows]
    # A forward of the second mesh waits for the activation.
    first, second = ([e for e in row if e.step.kind != "O"] for row in ideal.rows)
    assert second[0].start == first[0].end
    assert {e.end - e.start for row in ideal.rows for e in row} == {1.0}


def test_a_block_has_the_half_of_a_backward_that_was_split() -> None:
    _, actions, _ = compiled(FORWARD_FIRST, schedule="zb-h1")
    row = [str(step) for step in actions.of_mesh["m1"]]
    assert "(1F0;1I0)OVERLAP_F_I" in row and "1W0" in row and not any("B" in step for step in row)


def test_programs_do_not_multiply_with_microbatches() -> None:
    """The first block begins the sums of gradients; the others are one program."""

    def programs(microbatches: int) -> tuple[int, int]:
        ws, xs = weights(), batch(microbatches)
        options = dict.fromkeys((FORWARD_FIRST, BACKWARD_FIRST), True)
        settings = config(NAMES, pipeline_schedule="1F1B", partitioning_options=options)
        plan = mpmd_trace.jit(accumulate, settings).lower(ws, xs).compile().program.plan
        return len(plan.programs), len(plan.runs)

    (few, runs), (many, more_runs) = programs(6), programs(12)
    assert more_runs > runs and many == few


def test_the_cost_of_the_parts_is_not_known() -> None:
    merged, actions, _ = compiled(FORWARD_FIRST)
    with pytest.raises(MpmdError) as caught:
        actions_by_place(merged.program.plan, actions)
    assert str(caught.value) == (
        "error: the step runs (1F0;1B0)OVERLAP_F_B as one program, so the cost of its parts is unknown; compile it "
        f"with partitioning_options={{'{FORWARD_FIRST}': False, '{BACKWARD_FIRST}': False}} to plan it"
    )


def test_gpipe_has_no_such_neighbours() -> None:
    """All forwards come first, then the backward of the first microbatch."""
    _, actions, _ = compiled(FORWARD_FIRST, BACKWARD_FIRST, schedule="GPipe")
    assert named(actions.of_mesh["m1"]) == ["1F0", "1F1", "1F2", "1F3", "1B0", "1B1", "1B2", "1B3"]


def test_the_cpp_engine_has_no_such_options() -> None:
    options = dict.fromkeys((FORWARD_FIRST, BACKWARD_FIRST), True)
    with pytest.raises(MpmdError) as caught:
        partition_with_cpp("", PartitionRequest.of("f", [("m", [("x", 1)])], {}, [], [], partitioning_options=options))
    assert str(caught.value) == (
        f"error: the C++ partitioner has no option {FORWARD_FIRST}, {BACKWARD_FIRST}; use engine='python', or leave "
        "it out"
    )
