"""The data model: text, CSV, placements, users' own schedules, costs and transfers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import (
    Action,
    Costs,
    Event,
    Fused,
    Placement,
    ScheduleError,
    StageGraph,
    Timeline,
    check,
    find_entry,
    from_comparator,
    from_function,
    from_key,
    from_orders,
    get_schedule,
    load_csv,
    orders,
    parse_action,
    save_csv,
    schedule_names,
    search,
    simulate,
)

plain = st.builds(Action, st.integers(0, 200), st.sampled_from(["F", "I", "W", "B"]), st.integers(0, 999))


@given(plain | st.builds(lambda a, b: Fused((a, b)), plain, plain))
def test_text_round_trips(step: Action | Fused) -> None:
    assert parse_action(str(step)) == step


def test_text() -> None:
    assert str(Action(2, "F", 0)) == "2F0"
    assert str(Action(3, "O")) == "3O"
    assert str(Fused((Action(0, "F", 7), Action(7, "B", 3)))) == "(0F7;7B3)OVERLAP_F_B"
    for bad in ("", "F0", "2X0", "2F", "2O1", "(0F7;7B3)OVERLAP_B_F", "2f0", "2F0 2F1"):
        with pytest.raises(ScheduleError, match="cannot read action"):
            parse_action(bad)


def test_csv(tmp_path: Path) -> None:
    names = (
        "1f1b",
        "interleaved-zero-bubble",
        "dualpipe-v",
        "zb-v",
        "dualpipe",
        "parallel-pipelines-with-wrap-around",
        "forward",
    )
    for name in names:
        schedule = get_schedule(name, 4, 8)
        save_csv(schedule, tmp_path / "s.csv")
        loaded = load_csv(tmp_path / "s.csv")
        assert loaded.orders == schedule.orders
        assert loaded.placement == schedule.placement
        assert (loaded.graph, loaded.only) == (schedule.graph, schedule.only)
        assert loaded.microbatches == schedule.microbatches
        assert check(loaded) == []
    text = "# a comment\n0F0, ,0B0\n1F0,1B0,\n"
    assert load_csv(text).texts() == [["0F0", "0B0"], ["1F0", "1B0"]]
    with pytest.raises(ScheduleError, match=r"^line 3, column 3: cannot read action '1Q0'"):
        load_csv("# as editors count\n0F0,,0B0\n1F0,,1Q0\n")
    with pytest.raises(ScheduleError, match="cannot read the comment '# only: 0-1'"):
        load_csv("# only: 0-1\n0F0\n1F0\n")
    with pytest.raises(ScheduleError, match="cannot read schedule table"):
        load_csv(tmp_path / "none.csv")
    with pytest.raises(ScheduleError, match="holds no actions"):
        load_csv("\n\n")
    with pytest.raises(ScheduleError, match="stage 1 has no action, but stage 2 does"):
        load_csv("0F0\n2F0\n")
    path = tmp_path / "spreadsheet.csv"
    path.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n1F0,1B0\r\n")
    assert load_csv(path).texts() == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_mistyped_numbers_are_one_short_message() -> None:
    for text, what in (("0F0,0B0,99999999F0\n", "stage"), ("0F0,0B0,0F99999999,0B99999999\n", "microbatch")):
        with pytest.raises(ScheduleError, match=rf"10, \.\.\. have no action, but {what} 99999999 does") as caught:
            load_csv(text)
        assert len(str(caught.value)) < 120
    with pytest.raises(ScheduleError, match="cannot read action"):
        load_csv("0F" + "9" * 5000 + ",0B0\n")


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"forward": None}, "cost 'forward' is None"),
        ({"forward": "12"}, "cost 'forward' is '12'"),
        ({"input_grad": [1.0, "x"]}, "cost 'input_grad' is 'x'"),
        ({"latency": {(0, 1): float("nan")}}, r"cost 'latency' of \(0, 1\) is nan"),
        ({"latency": {"a": 1.0}}, "cost 'latency' has the key 'a'; its keys are pairs of meshes"),
        ({"bandwidth": {(0, 1): 0.0}}, "bandwidth is 0"),
        ({"sends": [1.0]}, "cost 'sends' maps pairs of stages"),
        ({"actions": {"0F0": 1.0}}, "cost 'actions' maps actions"),
        ({"actions": {Action(0, "F", 0): -1.0}}, "cost 'actions' of 0F0 is -1.0"),
        ({"actions": {Action(0, "F", 0): float("nan")}}, "cost 'actions' of 0F0 is nan"),
    ],
)
def test_costs_that_are_none(costs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Costs(**costs)


def test_numbers_of_numpy() -> None:
    schedule = get_schedule("1f1b", np.int64(2), np.int32(4))  # type: ignore[arg-type]
    costs = Costs(forward=np.float32(1), input_grad=np.array([1.0, 2.0]), weight_grad=np.int64(1))  # type: ignore[arg-type]
    plain = Costs(forward=1.0, input_grad=(1.0, 2.0), weight_grad=1)
    assert costs == plain and schedule == get_schedule("1f1b", 2, 4)
    assert simulate(schedule, costs).makespan == simulate(schedule, plain).makespan


def test_what_is_no_schedule_or_number() -> None:
    schedule = get_schedule("1f1b", 2, 4)
    for call in (check, simulate):
        with pytest.raises(ScheduleError, match=r"get_schedule\('1f1b', meshes, microbatches\) makes one"):
            call("1f1b")
    with pytest.raises(ScheduleError, match="the number of meshes is '4'; it must be a whole number, 1 or more"):
        get_schedule("1f1b", "4", 4)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="got 3"):
        get_schedule(3, 4, 4)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="mesh 0, action 2: 7 is not an action"):
        from_orders([["0F0", 7]])  # type: ignore[list-item]
    with pytest.raises(ScheduleError, match="unknown measure 'steps'"):
        search(meshes=2, microbatches=2, measure="steps")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the number of microbatches is 0"):
        search(meshes=2, microbatches=0)
    assert search(meshes=2, microbatches=2, chunks=2).best.schedule.stages == 4
    for limit in (float("nan"), "a", (1.0, float("nan"))):
        with pytest.raises(ScheduleError, match="it must be a number of microbatches"):
            check(schedule, memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the weight fraction is nan"):
        check(schedule, weight_fraction=float("nan"))
    for what in ("activation", "static"):
        with pytest.raises(ScheduleError, match=f"{what} is nan"):
            simulate(schedule, **{what: float("nan")})
    for limit in (float("nan"), "a", (2, 2, 2, float("nan"))):
        with pytest.raises(ScheduleError, match=r"the memory limit is .*; it must be a number of microbatches, or one"):
            get_schedule("v-half", 4, 8, memory_limit=limit)  # type: ignore[arg-type]
    assert check(get_schedule("v-half", 4, 8, memory_limit=float("inf"))) == []
    limits = (8, 2, 3, 8)
    assert check(get_schedule("v-half", 4, 8, memory_limit=limits), memory_limit=limits) == []


def test_placements() -> None:
    assert Placement.loop(3, 2).mesh_of == (0, 1, 2, 0, 1, 2)
    assert Placement.v(3).mesh_of == (0, 1, 2, 2, 1, 0)
    assert [Placement.loop(3, 2).kind, Placement.v(3).kind, Placement.of((0, 0, 1)).kind] == ["loop", "v", "custom"]
    assert Placement.v(2).stages_on == ((0, 3), (1, 2))


REFERENCE = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Circular": "circular",
    "CircularWithReversedBackward": "circular-with-reversed-backward",
    "GPipeBut1F1BForLastMesh": "gpipe-but-1f1b-for-last-mesh",
    "ZeroBubbleH1": "zb-h1",
    "ZeroBubbleH2ZeroTxLatency": "zb-h2",
    "ZeroBubbleH2HalfTxLatency": "zb-h2-half-latency",
    "ZeroBubbleH2FullTxLatency": "zb-h2-full-latency",
    "ParallelPipelinesWithWrapAround": "parallel-pipelines-with-wrap-around",
    "none": "none",
}


@pytest.mark.parametrize("name", REFERENCE)
def test_names_of_the_reference(name: str) -> None:
    for text in (name, name.lower(), name.upper()):
        assert find_entry(text).name == REFERENCE[name]
    for own in schedule_names():
        assert find_entry(own.replace("-", "_")).name == own


def test_orders_as_plain_tuples() -> None:
    assert orders("1f1b", 2, 2)[1] == [(1, "F", 0), (1, "B", 0), (1, "F", 1), (1, "B", 1)]
    assert (0, "F", 7) in orders("dualpipe-v", 4, 8)[0]


def test_comparator() -> None:
    def one_f_one_b(a: Action, b: Action) -> bool:
        if a.kind == "B" and b.kind == "F":
            return a.microbatch == b.microbatch - 4 + a.stage
        if a.kind == "F" and b.kind == "B":
            return a.microbatch == b.microbatch + 4 - (a.stage + 1)
        return a.microbatch < b.microbatch

    assert from_comparator(one_f_one_b, 4, 8).orders == get_schedule("1f1b", 4, 8).orders
    free = from_comparator(lambda a, b: False, 2, 2)
    assert free.orders == get_schedule("none", 2, 2).orders
    with pytest.raises(ScheduleError, match="a cycle on mesh 0"):
        from_comparator(lambda a, b: a.kind == b.kind, 2, 3)


def test_comparator_of_a_chunked_split_schedule_keeps_the_data_flow() -> None:
    schedule = from_comparator(
        lambda a, b: (a.kind != "F", a.microbatch) < (b.kind != "F", b.microbatch), 2, 3, chunks=2, split=True
    )
    assert check(schedule) == []


def test_sort_key_and_function() -> None:
    key = from_key(lambda a: (a.kind == "B", a.microbatch), 4, 8)
    assert key.orders == get_schedule("gpipe", 4, 8).orders
    made = from_function(lambda meshes, count: [[f"{r}F{m}" for m in range(count)] for r in range(meshes)], 3, 2)
    assert made.forward_only and check(made) == []
    with pytest.raises(ScheduleError, match="1 lists of actions for 2 meshes"):
        from_function(lambda meshes, count: [["0F0"]], 2, 1)
    with pytest.raises(ScheduleError, match="do not compare"):
        from_key(lambda a: a.microbatch if a.kind == "F" else "x", 1, 2)


def test_uneven_stages_and_per_action_costs() -> None:
    schedule = get_schedule("gpipe", 2, 2)
    result = simulate(schedule, Costs(forward=(1, 3), input_grad=(1, 1), weight_grad=(0, 0)))
    assert result.makespan == 1 + 2 * 3 + 2 * 1 + 1
    assert result.ideal == 2 * (3 + 1) and result.work == [4, 8]
    slow = simulate(schedule, Costs(actions={Action(0, "F", 0): 5.0}))
    assert slow.makespan == simulate(schedule).makespan + 4


def test_bandwidth_latency_and_overlap() -> None:
    schedule = from_orders([["0F0", "0F1"], ["1F0", "1F1"]])
    costs = Costs(forward=1, latency=0.5, bandwidth=2.0, size=4.0)
    result = simulate(schedule, costs)
    # Each output takes 2 on the wire; the second one queues behind the first.
    assert result.timeline.rows[1][0].start == 1 + 2 + 0.5
    assert result.timeline.rows[1][1].start == 1 + 2 + 2 + 0.5
    exposed = simulate(schedule, costs, transfers="exposed")
    assert exposed.timeline.rows[0][1].start == 1 + 2.5
    assert exposed.timeline.rows[1][1].start == 2 * (1 + 2.5)
    blocking = simulate(schedule, costs, transfers="blocking")
    assert blocking.makespan >= exposed.makespan
    one_way = simulate(schedule, Costs(latency={(0, 1): 7.0}))
    assert one_way.timeline.rows[1][0].start == 8


def test_sends_of_single_stages() -> None:
    """Outputs and gradients of different size, and one that skips a stage."""
    graph = StageGraph.chain(3).with_skips((0, 2))
    rows = [["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]]
    schedule = from_orders(rows).with_graph(graph)
    sends = {(0, 1): 2.0, (1, 2): 4.0, (0, 2): 20.0, (2, 1): 6.0, (1, 0): 8.0}
    costs = Costs(bandwidth=2.0, sends=sends, size=100.0)
    found = simulate(schedule, costs)
    starts = {str(e.step): e.start for row in found.timeline.rows for e in row}
    assert starts["1F0"] == 1 + 1, "two units on the wire"
    assert starts["2F0"] == 1 + 10, "the value that skips stage 1 arrives last"
    assert starts["1B0"] == 12 + 2 + 3 and starts["0B0"] == 17 + 2 + 4
    with pytest.raises(ScheduleError, match=r"cost 'sends' of \(0, 1\) is -1"):
        Costs(sends={(0, 1): -1.0})


def test_blocking_equals_async_without_transfer_time() -> None:
    for name in ("gpipe", "1f1b", "zb-h1"):
        schedule = get_schedule(name, 4, 8)
        assert simulate(schedule, transfers="blocking").makespan >= simulate(schedule).makespan


def test_fused_cost() -> None:
    schedule = get_schedule("dualpipe-v", 4, 8)
    both = simulate(schedule, Costs(fused=3.0)).makespan
    hidden = simulate(schedule, Costs(fused=2.2)).makespan
    assert hidden < both == simulate(schedule).makespan


def test_memory_curve_and_fraction() -> None:
    schedule = from_orders([["0F0", "0I0", "0F1", "0W0", "0I1", "0W1"]])
    assert simulate(schedule).memory_curve(0) == [(0, 0), (0, 1), (2, 2), (4, 1), (6, 0)]
    assert simulate(schedule, weight_fraction=0.25).peak_activations == (1.25,)
    assert simulate(schedule, weight_fraction=0.0).peak_activations == (1.0,)
    loaded = simulate(schedule, static=3.0, activation=2.0)
    assert loaded.peak_memory == (7.0,)


def test_dualpipe_holds_each_part_of_the_model_twice() -> None:
    schedule = get_schedule("dualpipe", 4, 8)
    assert schedule.model_stage == (0, 1, 2, 3, 0, 1, 2, 3)
    assert schedule.microbatches_of(0) == range(4) and schedule.microbatches_of(4) == range(4, 8)
    assert schedule.placement.stages_on[0] == (0, 7)


def test_measured_timeline() -> None:
    events = [Event(1, Action(1, "F", 0), 7.0, 8.0), Event(0, Action(0, "F", 0), 5.0, 6.5)]
    timeline = Timeline.from_events("measured", events, " ms")
    assert timeline.rows[0][0].start == 0 and timeline.end == 3


def test_stands_alone() -> None:
    code = (
        "import sys, mpmd_trace.schedules as s; s.simulate(s.get_schedule('zb-h1', 4, 8));"
        "print([m for m in ('jax', 'scipy', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    path = str(Path(__file__).parents[2] / "src")
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path, "PATH": ""}
    )
    assert out.stdout.strip() == "[]"


def test_which_schedules_go_back() -> None:
    """Their backward passes begin with the last microbatch."""
    back = {name for name in schedule_names() if get_schedule(name, 2, 8).reverse_backward}
    assert back == {"looped-bfs", "circular-with-reversed-backward"}


def test_actions_have_what_the_predicates_of_the_reference_ask_for() -> None:
    kinds = [Action(2, kind, 1) for kind in ("F", "I", "W", "B")]
    assert [one.is_weight_gradient for one in kinds] == [False, False, True, False]
    assert [one.transpose_count for one in kinds] == [0, 1, 1, 1]
    assert all((one.stage_id, one.call_counter) == (2, 1) for one in kinds)
