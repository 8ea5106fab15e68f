"""The exact solver with several stages per mesh: what it proves about the library."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from mpmd_trace.schedules import (
    Costs,
    Placement,
    Schedule,
    ScheduleError,
    StageGraph,
    check,
    get_schedule,
    search,
    simulate,
    solve_exact,
)
from mpmd_trace.schedules._exact_solver import Exact, Measure


def prove(schedule: Schedule, measure: Measure, limit: float, costs: Costs | None = None) -> tuple[float, Exact]:
    """(the schedule's time, what is best for its stages, backwards and memory)."""
    result = simulate(schedule, costs)
    found = solve_exact(
        schedule.meshes,
        schedule.microbatches,
        costs,
        limit,
        placement=schedule.placement,
        split=schedule.splits_backward,
        measure=measure,
        start=schedule,
    )
    assert found.proved
    assert check(found.schedule, memory_limit=limit) == []
    best = simulate(found.schedule, costs)
    value = best.makespan if measure == "makespan" else best.span
    assert value == pytest.approx(found.value)
    return (result.makespan if measure == "makespan" else result.span), found


@pytest.mark.parametrize(
    ("name", "meshes", "microbatches", "limit", "best"),
    [
        ("interleaved-1f1b", 2, 4, 2.5, 13.5),
        ("interleaved-1f1b", 3, 3, 3.0, 12.0),
        ("interleaved-zero-bubble", 2, 4, 2.0, 12.5),
        ("zb-v", 2, 3, 2.0, 9.5),
        ("v-half", 3, 3, 2.0, 11.5),
    ],
)
def test_proved_to_be_the_fastest(name: str, meshes: int, microbatches: int, limit: float, best: float) -> None:
    value, found = prove(get_schedule(name, meshes, microbatches), "makespan", limit)
    assert value == best == pytest.approx(found.value)
    assert found.gap < 1e-6


def test_proved_to_have_the_shortest_span() -> None:
    value, found = prove(get_schedule("zb-v", 2, 3), "span", 2.0)
    assert value == 9 == pytest.approx(found.lower_bound)
    value, found = prove(get_schedule("v-half", 2, 3), "span", 2.0)
    assert value == 9 == pytest.approx(found.lower_bound)


def test_how_far_from_the_best() -> None:
    # Made for 2P-1 microbatches, ZB-V leaves holes with fewer.
    value, found = prove(get_schedule("zb-v", 3, 3, guard=False), "makespan", 3.0)
    assert (value, found.value) == (11, pytest.approx(10))
    assert found.gap_of(value) == pytest.approx(0.1)
    costs = Costs(2, 3, 1, latency=0.5)
    value, found = prove(get_schedule("interleaved-1f1b", 2, 3), "makespan", 3.0, costs)
    assert found.gap_of(value) >= 0 and found.value <= value


def test_memory_costs_time() -> None:
    def best(limit: float) -> float:
        found = solve_exact(2, 3, None, limit, placement=Placement.v(2), measure="makespan")
        assert found.proved and check(found.schedule, memory_limit=limit) == []
        return found.value

    assert (best(1.0), best(3.0)) == (pytest.approx(12.5), pytest.approx(9.5))


def test_uneven_stages_and_limits() -> None:
    costs = Costs(forward=(1, 2, 0.5), input_grad=(1, 2, 0.5), weight_grad=(1, 1, 1))
    found = solve_exact(2, 3, costs, (1.5, 1.0), placement=Placement.of((0, 1, 0)), measure="makespan")
    assert found.proved and check(found.schedule, memory_limit=(1.5, 1.0)) == []
    assert simulate(found.schedule, costs).makespan == pytest.approx(found.value)
    loose = solve_exact(2, 3, costs, placement=Placement.of((0, 1, 0)), measure="makespan")
    assert loose.proved and loose.value <= found.value


def test_a_graph_with_two_inputs() -> None:
    graph = StageGraph.encoder_decoder(1, 1)
    found = solve_exact(2, 2, placement=Placement.loop(2), graph=graph, measure="makespan")
    assert found.proved and check(found.schedule) == [] and found.schedule.graph == graph


def test_whole_backwards_have_an_optimum_of_their_own() -> None:
    start = get_schedule("1f1b", 3, 3)
    whole = solve_exact(3, 3, split=False, measure="makespan", start=start)
    split = solve_exact(3, 3, measure="makespan")
    assert whole.proved and whole.schedule is start and whole.value == 15
    assert split.proved and split.value == pytest.approx(11)


def test_nothing_is_solved_when_the_start_meets_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the solver ran")

    monkeypatch.setattr("scipy.optimize.milp", never)
    value, found = prove(get_schedule("zb-v", 2, 6), "makespan", 2.0)
    assert value == found.value == 18.5


@pytest.mark.parametrize(
    ("start", "options", "reason"),
    [
        ("zb-v", {}, "its stages are on other meshes"),
        ("1f1b", {}, "its backwards are whole"),
        ("zb-h1", {"split": False}, "its backwards are split"),
        ("zb-h1", {"memory_limit": 1.0}, "it holds up to 2 microbatches"),
        ("zb-h1", {"graph": StageGraph.from_edges(2, [])}, "feed each other differently"),
    ],
)
def test_a_start_of_another_kind(start: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        solve_exact(2, 3, start=get_schedule(start, 2, 3), **options)  # type: ignore[arg-type]


def test_actions_that_take_no_time_keep_to_the_memory() -> None:
    """The second forward of mesh 0 may start when an input gradient does, which has to make room for it first."""
    costs = Costs(forward=(1.5, 2), input_grad=(0, 0.5), weight_grad=(0.5, 0))
    found = solve_exact(2, 2, costs, [1.3, 1.0], weight_fraction=0.3, measure="makespan")
    assert found.proved and found.value == pytest.approx(8.5)
    assert check(found.schedule, memory_limit=[1.3, 1.0], weight_fraction=0.3) == []


def test_meshes_on_which_nothing_takes_time_never_hold_more_than_fits() -> None:
    with contextlib.suppress(ScheduleError):
        found = solve_exact(1, 4, Costs(0, 0, 0), 2)
        assert check(found.schedule, memory_limit=2) == []


def test_refused_requests() -> None:
    with pytest.raises(ScheduleError, match="the placement has 3 meshes, not 2"):
        solve_exact(2, 2, placement=Placement.loop(3))
    with pytest.raises(ScheduleError, match="16 stages and 9 microbatches give about"):
        solve_exact(8, 9, placement=Placement.v(8))
    action = get_schedule("zb-h1", 2, 2).orders[0][0].parts[0]
    with pytest.raises(ScheduleError, match="costs per stage"):
        solve_exact(2, 2, Costs(actions={action: 2.0}))


def test_search_proves_each_placement() -> None:
    found = search(meshes=2, microbatches=2, chunks=(1, 2))
    assert found.best.result.makespan == 6.5 and found.gap == pytest.approx(0)
    assert found.exact is not None and found.exact.proved
    assert found.exact.schedule.placement == found.best.schedule.placement


def exhaustive(placement: Placement, microbatches: int, limit: float, split: bool) -> int:
    """The smallest makespan at one unit per action, by trying everything slot by slot."""
    kinds = "FIW" if split else "FB"
    lanes = [(s, k) for s in range(len(placement.mesh_of)) for k in kinds]
    number = {lane: n for n, lane in enumerate(lanes)}
    last = len(placement.mesh_of) - 1
    back = kinds[1]

    def runs(state: tuple[int, ...], mesh: int) -> list[int]:
        stages = placement.stages_on[mesh]
        held = sum(state[number[s, "F"]] - state[number[s, kinds[-1]]] for s in stages)
        out = [-1]
        for s in stages:
            for kind in kinds:
                n = state[number[s, kind]]
                needs = {"F": [(s - 1, "F")] if s else [], "W": [(s, "I")]}.get(
                    kind, [(s, "F"), *([(s + 1, back)] if s < last else [])]
                )
                room = kind != "F" or (held + 1) / len(stages) <= limit
                if n < microbatches and room and all(state[number[x]] > n for x in needs):
                    out.append(number[s, kind])
        return out

    states, slots = {(0,) * len(lanes)}, 0
    while not any(min(state) == microbatches for state in states):
        slots += 1
        states = {
            tuple(n + (k in picks) for k, n in enumerate(state))
            for state in states
            for picks in itertools.product(*(runs(state, m) for m in range(placement.meshes)))
        }
        assert slots < 60
    return slots


@pytest.mark.parametrize(
    ("mesh_of", "microbatches", "limit", "split"),
    [
        ((0, 1), 3, 3.0, True),
        ((0, 1), 3, 1.0, True),
        ((0, 1, 0), 2, 2.0, True),
        ((0, 1, 1, 0), 2, 2.0, False),
        ((0, 1, 1, 0), 2, 1.0, False),
        ((0, 1, 0, 1), 2, 1.5, False),
        ((0, 0, 1), 2, 1.0, True),
    ],
)
def test_no_schedule_at_all_is_faster(mesh_of: tuple[int, ...], microbatches: int, limit: float, split: bool) -> None:
    placement = Placement.of(mesh_of)
    times = (1.0,) * len(mesh_of)
    costs = Costs(times, times, times, backward=times)
    found = solve_exact(
        placement.meshes, microbatches, costs, limit, placement=placement, split=split, measure="makespan"
    )
    assert found.proved
    assert found.value == pytest.approx(exhaustive(placement, microbatches, limit, split))
