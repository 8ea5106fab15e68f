"""Justified schedules keep to the rules and the memory, and take no longer."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import Costs, Placement, check, get_schedule, search, simulate
from mpmd_trace.schedules._dispatch import KINDS_IN_ROWS, actions_of
from mpmd_trace.schedules._justify import Project
from mpmd_trace.schedules._lower_bounds import Chain
from mpmd_trace.schedules._schedule import make
from unequal_costs import unequal_costs
from util import max_examples

quarters = st.integers(0, 8).map(lambda n: n / 4)


@max_examples(60)
@given(st.data())
def test_justified_schedules_take_no_longer(data: st.DataObject) -> None:
    meshes, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    of = data.draw(st.sampled_from(["zb-h1", "zb-h2"]))
    each = st.tuples(*[quarters] * meshes)
    costs = Costs(data.draw(each), data.draw(each), data.draw(each), latency=data.draw(quarters))
    fraction = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    measure = data.draw(st.sampled_from(["span", "makespan"]))
    known = get_schedule(of, meshes, count, guard=False)
    before = simulate(known, costs, weight_fraction=fraction)
    limits = [peak + data.draw(quarters) for peak in before.peak_activations]
    placement = Placement.loop(meshes)
    chain = Chain(make("frame", [()] * meshes, placement, count), costs, limits, fraction, measure)
    orders = [bytearray(KINDS_IN_ROWS.index(a.kind) for a in row) for row in known.orders]  # type: ignore[union-attr]
    rows, time = Project(chain).justified(orders)
    made = make("made", actions_of(rows), placement, count)
    assert check(made, memory_limit=limits, weight_fraction=fraction) == []
    after = simulate(made, costs, weight_fraction=fraction)
    assert after.time(measure) <= time + 1e-9
    if measure == "makespan":  # what a mesh does first counts from when it could begin
        assert time <= before.makespan + 1e-9


def test_unequal_stages_are_close_to_the_bound() -> None:
    """What is dispatched, and the library, are 2 % above it or more."""
    draw = random.Random(1)
    costs = unequal_costs(draw, 16)
    result = search(costs, 16, meshes=16, microbatches=64, weight_fraction=0.5, exact=False, effort=100_000)
    assert result.best.fits and result.gap < 0.013
