"""Bounds from memory: no schedule is faster, and they say more than the work alone."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpmd_trace.schedules import (
    Costs,
    Placement,
    ScheduleError,
    check,
    get_schedule,
    overlapped,
    search,
    simulate,
    solve_exact,
)
from mpmd_trace.schedules._actions import Action, Fused, Step
from mpmd_trace.schedules._dispatch import _changed, _dispatched, _filling, _settings, actions_of, dispatch
from mpmd_trace.schedules._lower_bounds import Chain, least_time, memory_floor
from mpmd_trace.schedules._result import Measure
from mpmd_trace.schedules._schedule import make
from mpmd_trace.schedules._search import Candidate, _bound
from unequal_costs import unequal_costs
from util import max_examples, nightly

TIMES = st.integers(1, 4)


@max_examples(30)
@given(
    times=st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=2, max_size=2),
    latency=st.sampled_from([0.0, 0.5, 1.5]),
    limits=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    measure=st.sampled_from(["span", "makespan"]),
)
@example([(3, 3, 3), (1, 3, 1)], 0.0, [2, 1], 1.0, "makespan")  # HiGHS fails where it presolves
def test_no_optimum_is_below_the_bound(times, latency, limits, fraction, measure) -> None:  # type: ignore[no-untyped-def]
    forward, backward, weight = zip(*times, strict=True)
    costs = Costs(forward=forward, input_grad=backward, weight_grad=weight, latency=latency)
    optimum = solve_exact(2, 3, costs, limits, weight_fraction=fraction, measure=measure)
    frame = get_schedule("zb-h1", 2, 3, guard=False)
    assert memory_floor(frame, costs, limits, fraction, measure) <= optimum.value + 1e-6


@max_examples(20)
@given(data=st.data())
def test_no_optimum_of_three_meshes_is_below_the_bound(data: st.DataObject) -> None:
    """The mesh in the middle waits for its last input gradient, and one before it ends later or is slower."""
    time = st.sampled_from([1, 2, 3, 6])
    each = st.tuples(time, time, time)
    costs = Costs(data.draw(each), data.draw(each), data.draw(each), latency=data.draw(st.sampled_from([0.0, 0.5])))
    limits = data.draw(st.tuples(*[st.sampled_from([1.0, 1.5, 2.0, 2.5, 3.0])] * 3))
    fraction, measure = data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.sampled_from(["span", "makespan"]))
    optimum = solve_exact(3, 3, costs, limits, weight_fraction=fraction, measure=measure)
    frame = get_schedule("zb-h1", 3, 3, guard=False)
    assert memory_floor(frame, costs, limits, fraction, measure) <= optimum.value + 1e-6


def test_weight_gradients_wait_for_the_end_or_fill_the_time_before_the_last_input_gradient() -> None:
    costs = Costs((4.0, 2.0, 3.0), (2.0, 4.0, 2.0), (3.0, 2.0, 3.0), latency=0.5)
    optimum = solve_exact(3, 3, costs, [3, 2.5, 2.5], weight_fraction=1.0)
    frame = get_schedule("zb-h1", 3, 3, guard=False)
    assert memory_floor(frame, costs, [3, 2.5, 2.5], 1.0, "span") == pytest.approx(optimum.value) == 36.0


@pytest.mark.parametrize(
    ("costs", "limits", "fraction", "measure"),
    [
        (Costs((6.0, 3.0, 3.0), (2.0, 6.0, 3.0), (1.0, 6.0, 4.0)), [3, 4, 1], 0.0, "makespan"),
        (Costs((6.0, 3.0, 1.0), (1.0, 4.0, 1.0), (2.0, 2.0, 1.0), latency=0.5), [4, 2, 1], 1.0, "span"),
        (Costs((1.0, 3.0, 1.0), (6.0, 3.0, 2.0), (1.0, 3.0, 1.0)), [3, 2, 3], 1.0, "makespan"),
        # Weight gradients of the mesh that the step ends on run between its last input gradients.
        (Costs((3.0, 6.0, 3.0), (3.0, 4.0, 1.0), (4.0, 2.0, 2.0)), [3, 2, 1], 1.0, "span"),
    ],
)
def test_slow_forwards_before_a_mesh_and_slow_input_gradients_behind_it_keep_others_waiting(
    costs: Costs, limits: list[float], fraction: float, measure: Measure
) -> None:
    optimum = solve_exact(3, 3, costs, limits, weight_fraction=fraction, measure=measure)
    frame = get_schedule("zb-h1", 3, 3, guard=False)
    assert memory_floor(frame, costs, limits, fraction, measure) == pytest.approx(optimum.value)


@max_examples(5)
@given(times=st.tuples(TIMES, TIMES, TIMES), latency=st.sampled_from([0.0, 1.5]))
def test_no_order_of_two_chains_is_below_the_bound(times: tuple[int, int, int], latency: float) -> None:
    """All orders of a microbatch in each direction over four meshes, the same on both halves."""
    costs = Costs(*map(float, times), latency=latency)
    base = get_schedule("dualpipe", 4, 8)
    frame = dataclasses.replace(base, microbatches=2, only=(range(1),) * 4 + (range(1, 2),) * 4)
    best = math.inf
    ways = [[n in chosen for n in range(6)] for chosen in itertools.combinations(range(6), 3)]
    for outer, inner in itertools.product(ways, repeat=2):
        rows = []
        for mesh, way in enumerate((outer, inner, inner, outer)):
            one, other = sorted(base.placement.stages_on[mesh], reverse=mesh >= 2)
            left = {stage: iter("FIW") for stage in (one, other)}
            taken = [one if is_first else other for is_first in way]
            rows.append(tuple(Action(stage, next(left[stage]), stage // 4) for stage in taken))
        schedule = dataclasses.replace(frame, orders=tuple(rows))
        if not check(schedule):
            result = simulate(schedule, costs)
            best = min(best, result.makespan)
    candidate = Candidate(schedule, result, True)
    bound = _bound(candidate, costs, "makespan", None, 1.0)
    assert max(result.busy) < bound <= best


def test_forwards_before_the_first_gradient_of_two_chains_hide_nothing() -> None:
    """Until then a mesh at an end waits for the other chain's forwards on all meshes, and has only forwards to run."""
    costs = Costs(collectives={"F": 0.5, "I": 0.5})
    meshes, count = 16, 64
    result = search(costs, names=["dualpipe"], meshes=meshes, microbatches=count, measure="span", exact=False)
    assert result.lower_bound == pytest.approx(count * 3.0 + meshes * 1.0)  # of 1.5, 1 would be hidden
    assert result.gap < 0.09


def test_two_chains_start_late_in_the_middle() -> None:
    result = search(meshes=8, microbatches=20, names=["dualpipe"], exact=False)
    assert result.lower_bound == 20 * 3 + 3
    assert result.gap < 0.05


@pytest.mark.parametrize(("limit", "least"), [(2, 0.2), (3, 0.05), (8, 0.0)])
def test_little_memory_makes_a_step_longer_than_its_work(limit: float, least: float) -> None:
    result = search(memory_limit=limit, meshes=4, microbatches=16, measure="span", exact=False, effort=2000)
    work = 3.0 * 16
    assert result.lower_bound >= work * (1 + least)
    assert result.lower_bound <= result.value(result.best)


def test_unlimited_memory_is_as_much_as_all_microbatches_take() -> None:
    costs = Costs(forward=(1.0, 2.0), input_grad=2.0, latency=0.4)
    numbers = {"meshes": 2, "microbatches": 4, "exact": False, "effort": 500}
    unlimited, all_of_them = search(costs, math.inf, **numbers), search(costs, 4, **numbers)
    assert unlimited.lower_bound == all_of_them.lower_bound
    assert unlimited.best.result.makespan == all_of_them.best.result.makespan
    made = [get_schedule("zb-auto", 2, 4, costs=costs, memory_limit=limit) for limit in (math.inf, 4)]
    assert made[0] == made[1]
    v = get_schedule("v-min", 2, 4)
    assert memory_floor(v, Costs(), [math.inf] * 2, 1.0, "span") == memory_floor(v, Costs(), [4.0] * 2, 1.0, "span")


@max_examples(20)
@given(
    times=st.tuples(TIMES, TIMES, TIMES),
    backward=st.sampled_from([None, 2.0, 5.0]),
    collectives=st.dictionaries(st.sampled_from("FIW"), st.sampled_from([0.5, 1.0, 3.0]), min_size=1),
    exposed=st.dictionaries(st.sampled_from("FIW"), st.sampled_from([0.25, 1.0])),
    latency=st.sampled_from([0.0, 0.5]),
    of=st.sampled_from(["1f1b", "zb-h1", "dualpipe", "dualpipe-v", "interleaved-1f1b"]),
    measure=st.sampled_from(["span", "makespan"]),
)
def test_no_blocks_are_faster_than_the_bound(  # type: ignore[no-untyped-def]
    times, backward, collectives, exposed, latency, of, measure
) -> None:
    """Whichever schedule the bound is made from: those whose stages are on the same meshes are bounded by it."""
    costs = Costs(*times, backward=backward, collectives=collectives, exposed=exposed, latency=latency)
    bounded = search(costs, names=[of], meshes=2, microbatches=4, chunks=(1, 2), measure=measure, exact=False)
    frame = bounded.best.schedule
    for name in ("1f1b", "eager-1f1b", "zb-h1", "zb-h2", "dualpipe", "dualpipe-v", "zb-v", "looped-bfs", of):
        schedule = get_schedule(name, 2, 4, guard=False)
        if (schedule.placement, schedule.only, schedule.graph) == (frame.placement, frame.only, frame.graph):
            blocks = simulate(overlapped(schedule, costs), costs)
            assert blocks.time(measure) >= bounded.lower_bound - 1e-9


def test_the_search_tries_blocks_that_hide_collectives() -> None:
    costs = Costs(collectives={"F": 1.0, "I": 1.0})
    result = search(costs, meshes=2, microbatches=8, exact=False, effort=2000)
    assert any(len(step.parts) > 1 for row in result.best.schedule.orders for step in row)
    blocks = [simulate(overlapped(c.schedule, costs), costs).makespan for c in result.candidates]
    assert result.lower_bound <= result.best.result.makespan <= min(blocks)
    # Nothing but the start and the end of a step shows the collectives.
    assert result.lower_bound >= simulate(get_schedule("1f1b", 2, 8)).ideal


def test_stages_in_a_v_hold_half_as_much_each() -> None:
    schedule = get_schedule("v-min", 4, 16)
    result = simulate(schedule)
    limits = [max(result.peak_activations)] * 4
    assert isinstance(schedule.placement, Placement)
    assert memory_floor(schedule, Costs(), limits, 1.0, "span") <= result.span + 1e-9


def test_gaps_that_are_left_open_help_with_unequal_stages() -> None:
    costs = Costs(
        forward=(1.0, 1.2, 0.8, 1.1), input_grad=(1.1, 0.9, 1.0, 1.2), weight_grad=(0.6, 0.9, 0.7, 0.8), latency=0.05
    )
    result = search(
        costs, (8, 6, 8, 5), meshes=4, microbatches=32, measure="span", weight_fraction=0.5, exact=False, effort=10_000
    )
    assert result.best.fits
    assert result.gap < 0.03


def test_a_mesh_starts_with_no_more_forwards_than_those_before_it() -> None:
    draw = random.Random(1)
    meshes = range(16)
    costs = unequal_costs(draw, 16)
    limits = [draw.choice([16, 20, 24, 32]) for _ in meshes]
    result = search(
        costs, limits, meshes=16, microbatches=64, measure="span", weight_fraction=0.5, exact=False, effort=100_000
    )
    assert result.gap < 0.03


def test_meshes_that_hold_what_they_need_wait_less_for_unequal_stages() -> None:
    """Those that fill their memory come no closer than 2.9 %."""
    costs = unequal_costs(random.Random(3), 8)
    result = search(
        costs, 8, meshes=8, microbatches=32, measure="span", weight_fraction=0.5, exact=False, effort=150_000
    )
    assert result.best.fits and result.gap < 0.024


@max_examples(25)
@given(
    times=st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=5),
    count=st.integers(1, 9),
    latency=st.sampled_from([0.0, 0.5, 1.5]),
    limit=st.integers(1, 9),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    measure=st.sampled_from(["span", "makespan"]),
    seed=st.integers(0, 99),
)
def test_no_dispatched_schedule_breaks_a_rule_or_the_bound(  # type: ignore[no-untyped-def]
    times, count, latency, limit, fraction, measure, seed
) -> None:
    forward, backward, weight = zip(*times, strict=True)
    costs = Costs(forward=forward, input_grad=backward, weight_grad=weight, latency=latency)
    draw = random.Random(seed)
    limits = [float(draw.randint(1, limit)) for _ in times]
    placement = Placement.loop(len(times))
    chain = Chain(make("frame", [()] * len(times), placement, count), costs, limits, fraction, measure)
    bound = chain.floor()
    one = draw.choice(list(itertools.islice(_settings(chain, 2 * bound), 16)))
    for _ in range(4):
        run = _dispatched(chain, one)
        schedule = make("run", actions_of(run.rows), placement, count)
        assert check(schedule, memory_limit=limits, weight_fraction=fraction) == []
        time = simulate(schedule, costs, weight_fraction=fraction).time(measure)
        # Dispatching may overestimate a span; neither is below the bound.
        assert time <= run.time + 1e-6 and (measure == "span" or time == pytest.approx(run.time))
        assert time >= bound - 1e-6
        one = _changed(one, chain, draw, run.slowest)


def test_a_dispatched_span_counts_from_the_first_forward_of_each_mesh() -> None:
    placement, count, costs = Placement.loop(4), 6, Costs(weight_grad=(0.5, 0.5, 0.5, 4.0), latency=0.5)
    chain = Chain(make("frame", [()] * 4, placement, count), costs, [4.0] * 4, 1.0, "span")
    run = _dispatched(chain, next(_settings(chain, chain.floor())))
    result = simulate(make("run", actions_of(run.rows), placement, count), costs)
    assert run.time == pytest.approx(result.span) and result.span < result.makespan


def test_meshes_wait_while_there_are_weight_gradients_no_longer_than_settings_allow() -> None:
    placement, count, waits = Placement.loop(4), 12, []
    costs = Costs((1.0, 1.3, 0.8, 1.1), (0.9, 1.2, 1.0, 1.4), 1.0, latency=0.2)
    chain = Chain(make("frame", [()] * 4, placement, count), costs, [5.0] * 4, 1.0, "span")
    for spare in (0.0, 1.0):
        settings = dataclasses.replace(next(_filling(chain, chain.floor())), gap=(0.0,) * 4, spare=(spare,) * 4)
        run = make("run", actions_of(_dispatched(chain, settings).rows), placement, count)
        waits.append(0)
        for row in simulate(run, costs).timeline.rows:
            idle = left = 0.0
            for event, following in itertools.pairwise(row):
                left += {"F": 0, "I": 1, "W": -1}[event.step.parts[0].kind]
                gap = following.start - event.end
                idle += gap
                if left and gap > 1e-9:
                    waits[-1] += 1
                    assert idle <= spare + 1e-6
    assert waits[0] == 0 < waits[1]


def test_forwards_rise_near_the_end_and_weight_gradients_make_room_for_them() -> None:
    """The input gradients of more microbatches then fill the time until that of the last one is there."""
    placement, count, limits = Placement.loop(6), 24, [8.0] * 6
    costs = Costs(forward=1.0, input_grad=(1.0, 1.0, 1.0, 1.3, 1.0, 1.0), weight_grad=1.0)
    chain = Chain(make("frame", [()] * 6, placement, count), costs, limits, 1.0, "span")
    rising = next(one for one in _filling(chain, chain.floor()) if one.rise[0])
    flying = []
    for one in (dataclasses.replace(rising, rise=(0,) * 6), rising):
        rows = _dispatched(chain, one).rows
        assert check(make("run", actions_of(rows), placement, count), memory_limit=limits) == []
        flying.append(count - rows[3][: rows[3].rindex(0)].count(1))
    assert flying[0] < flying[1] == rising.rise[3]


@pytest.mark.parametrize(("limit", "fraction"), [(8, 1.0), (8, 0.5), nightly(16, 1.0), (16, 0.5)])
def test_dispatching_reaches_the_bound(limit: float, fraction: float) -> None:
    # As in the zero-bubble paper: one unit of time in 100 is more than any published schedule wastes here.
    costs = Costs(10.419, 10.207, 7.715, latency=0.408)
    result = search(
        costs, limit, meshes=8, microbatches=32, measure="span", weight_fraction=fraction, exact=False, effort=100_000
    )
    assert result.gap < 0.01 and result.best.fits


def test_less_memory_than_meshes_keeps_all_of_them_busy() -> None:
    result = search(memory_limit=3, meshes=4, microbatches=16, measure="span", exact=False, effort=20_000)
    assert result.gap < 0.12


def test_dispatching_is_deterministic() -> None:
    costs = Costs(forward=(1.0, 1.2, 0.8), input_grad=(1.1, 0.9, 1.0), weight_grad=(0.6, 0.9, 0.7), latency=0.05)
    frame = make("frame", [()] * 3, Placement.loop(3), 8)
    chain = Chain(frame, costs, [3.0] * 3, 1.0, "span")
    assert dispatch(chain, chain.floor(), 5000) == dispatch(chain, chain.floor(), 5000)


def test_dispatching_runs_forwards_in_blocks_with_weight_gradients() -> None:
    costs = dataclasses.replace(unequal_costs(random.Random(1), 8), collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    numbers = {"meshes": 8, "microbatches": 64, "measure": "span", "exact": False, "effort": 200_000}
    result = search(costs, 8, **numbers)
    blocks = [step for row in result.best.schedule.orders for step in row if isinstance(step, Fused)]
    assert {"".join(part.kind for part in block.parts) for block in blocks} >= {"FW"}
    assert not check(result.best.schedule)
    assert max(result.best.result.peak_activations) <= 8
    apart = dataclasses.replace(costs, exposed=costs.collectives)
    assert result.value(result.best) < search(apart, 8, **numbers).lower_bound


@pytest.mark.parametrize(
    ("collectives", "least"), [({"F": 0.3}, 1.02), ({"F": 0.3, "I": 0.3}, 1.06), ({"F": 0.3, "I": 0.3, "W": 0.1}, 1.07)]
)
def test_collectives_at_both_ends_of_a_step_are_not_hidden(collectives: dict[str, float], least: float) -> None:
    """The bound lies well above the work with as much hidden as blocks can, but no higher than with nothing hidden."""
    costs = dataclasses.replace(unequal_costs(random.Random(1), 8), collectives=collectives)
    frame = make("frame", [()] * 8, Placement.loop(8), 32)
    chain = Chain(frame, costs, [16.0] * 8, 1.0, "span")
    apart = Chain(frame, dataclasses.replace(costs, exposed=collectives), [16.0] * 8, 1.0, "span")
    assert least * max(chain.work) < chain.floor() < apart.floor()
    assert least_time(apart) == pytest.approx(apart.floor())


def test_blocks_do_not_hide_how_memory_fills_and_empties() -> None:
    costs = Costs(1.0, 1.0, 0.75, latency=0.05, collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    frame = make("frame", [()] * 8, Placement.loop(8), 32)
    chain = Chain(frame, costs, [8.0] * 8, 1.0, "span")
    apart = Chain(frame, dataclasses.replace(costs, exposed=costs.collectives), [8.0] * 8, 1.0, "span")
    assert 0.9089 * apart.floor() < chain.floor() < apart.floor()


def test_the_bound_with_blocks_is_the_same_in_any_unit_of_time() -> None:
    frame = make("frame", [()] * 2, Placement.loop(2), 8)
    here, there = (
        Chain(frame, Costs(unit, 2 * unit, unit, collectives={"F": unit / 4}), [2.0] * 2, 1.0, "span")
        for unit in (1.0, 1e-9)
    )
    assert least_time(there) == pytest.approx(1e-9 * least_time(here), rel=1e-9, abs=0)


def _all_orders(stage: int, count: int, limit: float, fraction: float) -> list[tuple[Step, ...]]:
    """All orders of the actions of a stage, alone and in blocks, that keep to the memory."""
    found: list[tuple[Step, ...]] = []

    def extend(done: tuple[int, int, int], steps: tuple[Step, ...]) -> None:
        f, i, w = done
        if w == count:
            found.append(steps)
        for kinds in ("F", "I", "W", "FI", "FW", "FIW", "FB"):
            fits = f < count and f + 1 - i + fraction * (i - w) <= limit
            ready = {"F": fits, "I": i < f, "W": w < i, "B": w == i < f}
            if all(ready[kind] for kind in kinds):
                numbers = {"F": f, "I": i, "W": w, "B": i}
                parts = tuple(Action(stage, kind, numbers[kind]) for kind in kinds)  # type: ignore[arg-type]
                step = Fused(parts) if len(parts) > 1 else parts[0]
                gradients = kinds.replace("B", "IW")
                extend((f + ("F" in kinds), i + ("I" in gradients), w + ("W" in gradients)), (*steps, step))

    extend((0, 0, 0), ())
    return found


def test_the_best_of_all_orders_with_blocks_is_not_below_the_bound_and_always_at_it_with_one_mesh() -> None:
    at_the_bound = 0
    for seed in range(60):
        draw = random.Random(seed)
        meshes, count, fraction = *draw.choice(((1, 3), (1, 3), (2, 2))), draw.choice((0.0, 0.3, 1.0))
        times = [tuple(draw.choice((0, 1, 2, 3)) for _ in range(meshes)) for _ in range(3)]
        collectives = {kind: draw.choice((0.5, 1.0, 3.0)) for kind in draw.sample("FIW", draw.randint(1, 3))}
        costs = Costs(*times, collectives=collectives, latency=draw.choice((0.0, 0.25)))
        limits = [draw.choice((1.0, 1.5, 2.0, 2.5, 3.0)) for _ in range(meshes)]
        best: dict[Measure, float] = {"span": math.inf, "makespan": math.inf}
        for orders in itertools.product(*(_all_orders(s, count, limits[s], fraction) for s in range(meshes))):
            with contextlib.suppress(ScheduleError):  # of meshes that wait for each other
                result = simulate(make("blocks", orders, Placement.loop(meshes), count), costs)
                best = {measure: min(time, result.time(measure)) for measure, time in best.items()}
        frame = make("frame", [()] * meshes, Placement.loop(meshes), count)
        for measure, time in best.items():
            bound = Chain(frame, costs, limits, fraction, measure).floor()
            assert bound <= time + 1e-9
            assert meshes > 1 or bound == pytest.approx(time)
            at_the_bound += bound > time - 1e-5
    assert at_the_bound >= 116


def test_memory_that_holds_one_microbatch_has_no_room_for_a_part_of_another_nor_for_blocks() -> None:
    costs = Costs(latency=0.1, collectives={"F": 0.5, "I": 0.5, "W": 0.25})
    result = search(costs, 1.9, meshes=3, microbatches=8, exact=False, effort=2000)
    assert result.gap == pytest.approx(0.0)
    assert all(len(step.parts) == 1 for row in result.best.schedule.orders for step in row)


@pytest.mark.parametrize(
    ("count", "limit", "fraction", "times", "collectives", "least"),
    [
        (2, 1.3, 0.3, (2.0, 1.0, 1.0), {"F": 0.5}, 8.5),  # a weight gradient in a block holds its part for longer
        (3, 2.0, 0.25, (1.0, 1.0, 1.0), {"F": 2.5}, 12.5),  # room for a forward with both gradients of a microbatch
    ],
)
def test_blocks_are_bounded_by_the_memory_that_they_hold(  # type: ignore[no-untyped-def]
    count, limit, fraction, times, collectives, least
) -> None:
    costs = Costs(*times, collectives=collectives)
    orders = [make("blocks", [one], Placement.loop(1), count) for one in _all_orders(0, count, limit, fraction)]
    best = min(simulate(one, costs).span for one in orders)
    assert Chain(orders[0], costs, [limit], fraction, "span").floor() == pytest.approx(best) == least
