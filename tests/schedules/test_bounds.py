"""Bounds from memory: no schedule is faster, and they say more than the work alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpmd_trace.schedules import Costs, Placement, get_schedule, search, simulate, solve_exact
from mpmd_trace.schedules._bounds import memory_floor

TIMES = st.integers(1, 4)


@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=2, max_size=2),
    latency=st.sampled_from([0.0, 0.5, 1.5]),
    limits=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    measure=st.sampled_from(["span", "makespan"]),
)
def test_no_optimum_is_below_the_bound(times, limits, latency, fraction, measure) -> None:  # type: ignore[no-untyped-def]
    forward, backward, weight = zip(*times, strict=True)
    costs = Costs(forward=forward, input_grad=backward, weight_grad=weight, latency=latency)
    optimum = solve_exact(2, 3, costs, limits, weight_fraction=fraction, measure=measure)
    frame = get_schedule("zb-h1", 2, 3, guard=False)
    assert memory_floor(frame, costs, limits, fraction, measure) <= optimum.value + 1e-6


@pytest.mark.parametrize(("limit", "least"), [(2, 0.2), (3, 0.05), (8, 0.0)])
def test_little_memory_makes_a_step_longer_than_its_work(limit: float, least: float) -> None:
    found = search(memory_limit=limit, meshes=4, microbatches=16, measure="span", exact=False)
    work = 3.0 * 16
    assert found.lower_bound >= work * (1 + least)
    assert found.lower_bound <= found.value(found.best)


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
    found = search(costs, (8, 6, 8, 5), meshes=4, microbatches=32, measure="span", weight_fraction=0.5, exact=False)
    assert found.best.fits
    assert found.gap < 0.03
