"""Mistakes found in other packages' schedules; each test shows that ours do not have them."""

from __future__ import annotations

import json

from mpmd_trace.schedules import Costs, check, chrome_trace, from_orders, get_schedule, simulate


def test_last_mesh_of_1f1b_starts_at_microbatch_0() -> None:
    order = get_schedule("1f1b", 4, 4).texts()[3]
    assert order[:2] == ["3F0", "3B0"] and "3F4" not in order


def test_the_last_stage_waits_for_its_own_forward_only() -> None:
    result = simulate(get_schedule("1f1b", 2, 1), Costs(latency=5))
    last = result.timeline.rows[1]
    assert last[1].start == last[0].end


def test_weight_gradients_wait_for_input_gradients() -> None:
    problems = check(from_orders([["0F0", "0W0", "0I0"]]))
    assert any(p.code == "order" for p in problems)
    result = simulate(from_orders([["0F0", "0I0", "0W0"]]))
    assert [e.start for e in result.timeline.rows[0]] == [0, 1, 2]


def test_durations_in_the_trace_are_those_simulated() -> None:
    result = simulate(get_schedule("zb-h1", 2, 2), Costs(2, 3, 4))
    events = json.loads(chrome_trace(result, microseconds=1))["traceEvents"]
    lengths = {e["cat"]: e["dur"] for e in events if e["ph"] == "X"}
    assert lengths == {"forward": 2, "input-gradient": 3, "weight-gradient": 4}


def test_interleaved_zero_bubble_counts_split_backwards_as_backwards() -> None:
    schedule = get_schedule("interleaved-zero-bubble", 4, 8)
    assert check(schedule) == [] and schedule.splits_backward
    assert simulate(schedule).makespan < simulate(get_schedule("interleaved-1f1b", 4, 8)).makespan


def test_breadth_first_backwards_run_once_each() -> None:
    schedule = get_schedule("looped-bfs", 4, 8)
    backwards = [(a.stage, a.microbatch) for _, _, a in schedule.actions() if a.kind == "B"]
    assert len(backwards) == len(set(backwards)) == 64


def test_dualpipe_v_interleaves_its_last_weight_gradients() -> None:
    # Moving them all to the end costs 55.5 where 51.5 is possible, with fused blocks in series.
    result = simulate(get_schedule("dualpipe-v", 8, 16), fused="serial")
    assert result.makespan <= 51.5


def test_zb_h1_is_canonical_whatever_the_program_order() -> None:
    # A partial order that leaves weight-gradients unordered gives 29 here.
    assert simulate(get_schedule("ZeroBubbleH1", 4, 8)).makespan == 27


def test_zb_h2_inner_meshes_hold_no_more_than_the_first() -> None:
    assert simulate(get_schedule("zb-h2", 4, 8)).peak_activations == (7, 7, 7, 7)


def test_zb_h2_with_few_microbatches_is_no_slower_than_1f1b() -> None:
    for name, count in (("zb-h2-half-latency", 8), ("zb-h2-full-latency", 12)):
        ours = simulate(get_schedule(name, 4, count, guard=False)).makespan
        assert ours <= simulate(get_schedule("1f1b", 4, count)).makespan
