"""Each kind of mistake is found, placed, and told in words."""

from __future__ import annotations

import warnings

import pytest

from mpmd_trace.schedules import (
    Action,
    Costs,
    Fused,
    Placement,
    Schedule,
    ScheduleError,
    ScheduleWarning,
    StageGraph,
    check,
    from_orders,
    get_schedule,
    simulate,
    validate,
)


def table(*rows: str, **options: object) -> Schedule:
    return from_orders([row.split() for row in rows], **options)  # type: ignore[arg-type]


def only_problem(schedule: Schedule, **options: object) -> tuple[str, int, int, str]:
    problems = check(schedule, **options)  # type: ignore[arg-type]
    assert len(problems) == 1, [str(p) for p in problems]
    p = problems[0]
    return p.code, p.row, p.column, str(p)


def test_a_good_table() -> None:
    schedule = table("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert check(schedule) == []
    assert validate(schedule) is schedule


def test_missing_weight_gradient() -> None:
    code, row, column, text = only_problem(table("0F0 0I0 0W0", "1F0 1I0"))
    assert (code, row, column) == ("missing", 1, 1)
    assert text == "mesh 1, action 2 (1I0): weight-gradient 1W0 of stage 1, microbatch 0 is missing"


def test_missing_forward_and_backward() -> None:
    problems = check(table("0F0 0B0 0F1 0B1", "1F0 1B0 1B1"))
    assert [str(p) for p in problems] == ["mesh 1, action 3 (1B1): forward 1F1 of stage 1, microbatch 1 is missing"]
    problems = check(table("0F0 0B0 0F1", "1F0 1B0 1F1 1B1"))
    assert [str(p) for p in problems] == ["mesh 0: backward of stage 0, microbatch 1 is missing: neither 0B1 nor 0I1"]


def test_duplicate() -> None:
    code, row, column, text = only_problem(table("0F0 0B0 0F0", "1F0 1B0"))
    assert (code, row, column) == ("duplicate", 0, 2)
    assert "runs a second time; the first is action 1" in text and "remove one of them" in text


def test_full_backward_beside_its_halves() -> None:
    code, row, column, text = only_problem(table("0F0 0B0 0W0"))
    assert (code, row, column) == ("duplicate", 0, 2)
    assert "has a full backward 0B0 and also 0W0" in text


def test_order_within_a_stage() -> None:
    problems = check(table("0F0 0W0 0I0"))
    assert (problems[0].code, problems[0].row, problems[0].column) == ("order", 0, 1)
    assert "weight-gradient of stage 0, microbatch 0 runs before its input-gradient 0I0, which is action 3" in str(
        problems[0]
    )


def test_wrong_mesh_and_wrong_numbers() -> None:
    placement = Placement.loop(2)
    schedule = table("0F0 1B0 0B0", "1F0", placement=placement)
    code, row, column, text = only_problem(schedule)
    assert (code, row, column) == ("placement", 0, 1)
    assert "stage 1 lives on mesh 1, not on mesh 0" in text and "move the action to mesh 1" in text
    problems = check(table("0F0 0B0 0F3", "1F0 1B0 5F0", placement=placement, microbatches=1))
    assert [(p.code, p.row, p.column) for p in problems] == [("range", 0, 2), ("range", 1, 2)]
    assert "microbatch 3 does not run through stage 0; its microbatches are 0 to 0" in str(problems[0])
    assert "stage 5 does not exist; the stages are 0 to 1" in str(problems[1])


def test_deadlock_names_the_cycle() -> None:
    schedule = table("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")
    code, row, column, text = only_problem(schedule)
    assert (code, row, column) == ("deadlock", 0, 1)
    assert "mesh 0 is at 0B0 and waits for 1B0 on mesh 1" in text
    assert "mesh 1 is at 1F1 and waits for 0F1 on mesh 0" in text
    with pytest.raises(ScheduleError, match="cannot run"):
        simulate(schedule)


def test_deadlock_only_when_transfers_block() -> None:
    # Mesh 0 sends a second result before mesh 1 takes it.
    schedule = get_schedule("eager-1f1b", 2, 4)
    zb_h2 = get_schedule("zb-h2", 4, 8)
    assert check(schedule, blocking=True) == []
    problems = check(zb_h2, blocking=True)
    assert problems and {p.code for p in problems} == {"blocking"}
    assert "mesh 0 waits to send 0F7 to mesh 1" in str(problems[0])
    with pytest.raises(ScheduleError, match="deadlock when transfers block"):
        simulate(zb_h2, transfers="blocking")


def test_fused_parts_that_need_each_other() -> None:
    forward, backward = Action(0, "F", 0), Action(0, "B", 0)
    schedule = from_orders([[Fused((forward, backward))]])
    code, row, column, text = only_problem(schedule)
    assert (code, row, column) == ("fused", 0, 0)
    assert "0B0 needs the result of 0F0" in text


def test_optimizer_comes_last() -> None:
    good = get_schedule("zb-h1", 2, 2).with_optimizer()
    assert check(good) == []
    assert simulate(good, Costs(optimizer=2)).makespan == simulate(good).makespan + 2
    problems = check(table("0F0 0O 0B0"))
    assert [p.code for p in problems] == ["order"]
    assert "the optimizer step of stage 0 runs before 0B0" in str(problems[0])


def test_memory_limit() -> None:
    code, row, column, text = only_problem(get_schedule("1f1b", 4, 8), memory_limit=3)
    assert (code, row, column) == ("memory", 0, 3)
    assert "would hold 4 microbatches of activations, its limit is 3 (peak 4)" in text
    assert check(get_schedule("1f1b", 4, 8), memory_limit=(4, 3, 2, 1)) == []


def test_validate_shows_the_place() -> None:
    with pytest.raises(ScheduleError) as caught:
        validate(table("0F0 0B0 0F0", "1F0"))
    text = str(caught.value)
    assert "has 2 problems" in text and "0F0  0B0  0F0" in text and "^^^ here" in text
    assert len(caught.value.problems) == 2


def test_all_problems_are_collected() -> None:
    problems = check(table("0F0 0F0 0W0", "1B0 1F0"))
    assert {"duplicate", "missing", "order"} <= {p.code for p in problems}


def test_skip_connections_and_two_inputs() -> None:
    graph = StageGraph.chain(3).with_skips((0, 2))
    assert check(get_schedule("1f1b", 3, 4, graph=graph)) == []
    two = StageGraph.encoder_decoder(2, 2)
    assert two.feeds == ((), (0,), (1,), (1, 2))
    schedule = get_schedule("1f1b", 4, 4, graph=two)
    assert simulate(schedule).makespan <= simulate(get_schedule("1f1b", 4, 4)).makespan
    # Against the arrows, an order that the chain allows is a deadlock.
    backwards = StageGraph.from_edges(2, [(1, 0)])
    with pytest.raises(ScheduleError, match="deadlock"):
        get_schedule("1f1b", 2, 4, graph=backwards)
    with pytest.raises(ScheduleError, match="stages 0, 1 wait for each other"):
        StageGraph.from_edges(2, [(0, 1), (1, 0)])


@pytest.mark.parametrize(
    ("name", "meshes", "microbatches", "wanted"),
    [("zb-h2", 4, 6, 7), ("zb-h2-half-latency", 4, 8, 10), ("zb-h2-full-latency", 4, 12, 13), ("zb-v", 4, 5, 7)],
)
def test_degenerate_schedules_warn(name: str, meshes: int, microbatches: int, wanted: int) -> None:
    with pytest.warns(ScheduleWarning) as caught:
        schedule = get_schedule(name, meshes, microbatches)
    text = str(caught[0].message)
    assert f"made for {wanted} microbatches or more" in text
    assert f"takes {simulate(schedule).makespan:g}" in text
    plain = simulate(get_schedule("1f1b", meshes, microbatches))
    assert f"1f1b takes {plain.makespan:g}" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_schedule(name, meshes, wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zb-h3", 4, 8), "did you mean zb-h2 or zb-h1"),
        (("1f1b", 0, 8), "number of meshes is 0"),
        (("1f1b", 4, -1), "number of microbatches is -1"),
        (("dualpipe", 1, 8), "even number of meshes; got 1 mesh and 8 microbatches"),
        (("dualpipe-v", 4, 7), "at least 8 microbatches"),
    ],
)
def test_bad_requests(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        get_schedule(*arguments)


def test_bad_options() -> None:
    with pytest.raises(ScheduleError, match="chunks=2 does not fit"):
        get_schedule("1f1b", 4, 8, chunks=2)
    with pytest.raises(ScheduleError, match="has no group size"):
        get_schedule("gpipe", 4, 8, group_size=4)
    with pytest.raises(ScheduleError, match="use a group size of at least 4"):
        get_schedule("interleaved-1f1b", 4, 8, group_size=2)
    with pytest.raises(ScheduleError, match="nothing runs with less than 1"):
        get_schedule("zb-auto", 4, 8, memory_limit=0.5)
    with pytest.raises(ScheduleError, match="lists 3 stages"):
        simulate(get_schedule("1f1b", 4, 8), Costs(forward=(1, 2, 3)))
    with pytest.raises(ScheduleError, match="0 or more"):
        Costs(forward=-1)
