"""Orders with blocks that local search finds keep to the rules and the memory, and take no longer."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import Costs, Placement, check, get_schedule, search, simulate
from mpmd_trace.schedules._dispatch import KINDS_IN_ROWS, _lagging, actions_of
from mpmd_trace.schedules._local_search import LocalSearch
from mpmd_trace.schedules._lower_bounds import Chain
from mpmd_trace.schedules._schedule import make
from unequal_costs import unequal_costs
from util import max_examples

quarters = st.integers(0, 8).map(lambda n: n / 4)


@max_examples(60)
@given(st.data())
def test_orders_of_local_search_take_no_longer(data: st.DataObject) -> None:
    meshes, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    each = st.tuples(*[quarters] * meshes)
    costs = Costs(
        data.draw(each),
        data.draw(each),
        data.draw(each),
        latency=data.draw(quarters),
        collectives=data.draw(st.dictionaries(st.sampled_from("FIW"), quarters, min_size=1)),
    )
    fraction = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    measure = data.draw(st.sampled_from(["span", "makespan"]))
    known = get_schedule(data.draw(st.sampled_from(["zb-h1", "zb-h2"])), meshes, count, guard=False)
    before = simulate(known, costs, weight_fraction=fraction)
    limits = [peak + data.draw(quarters) for peak in before.peak_activations]
    placement = Placement.loop(meshes)
    chain = Chain(make("frame", [()] * meshes, placement, count), costs, limits, fraction, measure)
    rows = [bytearray(KINDS_IN_ROWS.index(step.kind) for step in row) for row in known.orders]  # type: ignore[union-attr]
    found, time, sweeps = LocalSearch(chain).shortened(rows, chain.floor(), 6)
    made = make("made", actions_of(found), placement, count)
    assert sweeps <= 6 and check(made, memory_limit=limits, weight_fraction=fraction) == []
    after = simulate(made, costs, weight_fraction=fraction)
    assert chain.floor() - 1e-9 <= after.time(measure) <= time + 1e-9
    if measure == "makespan":  # what a mesh does first counts from when it could begin
        assert time <= before.makespan + 1e-9


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("limits", [(4.0, 4.0, 4.0, 4.0), (4.5, 3.0, 5.0, 1.0), (1.0, 3.0, 3.0, 3.0)])
def test_orders_with_lagging_weight_gradients_keep_to_the_limits(fraction: float, limits: tuple[float, ...]) -> None:
    costs = dataclasses.replace(unequal_costs(random.Random(1), 4), collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    placement = Placement.loop(4)
    chain = Chain(make("frame", [()] * 4, placement, 12), costs, limits, fraction, "span")
    made = [make("made", actions_of(rows), placement, 12) for rows in _lagging(chain)]
    assert [check(one, memory_limit=limits, weight_fraction=fraction) for one in made] == [[]] * 4
    blocks = [sum(len(step.parts) > 1 for row in one.orders for step in row) for one in made]
    assert blocks == sorted(blocks, reverse=True)
    assert (blocks[0] > 0) == (fraction > 0)  # what keeps nothing can wait for the end


def test_blocks_of_all_three_kinds_come_close_to_the_bound() -> None:
    """What is dispatched without local search is 6 % above the bound."""
    costs = dataclasses.replace(unequal_costs(random.Random(1), 8), collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    result = search(costs, 16, meshes=8, microbatches=32, measure="span", exact=False, effort=2_000_000)
    kinds = {"".join(part.kind for part in step.parts) for row in result.best.schedule.orders for step in row}
    assert "FIW" in kinds and result.best.fits and result.gap < 0.04


def test_unequal_stages_come_close_to_the_bound() -> None:
    """Without local search, it is 0.85 % above it."""
    costs = unequal_costs(random.Random(1), 8)
    result = search(
        costs, 8, meshes=8, microbatches=32, measure="span", weight_fraction=0.5, exact=False, effort=500_000
    )
    assert result.best.fits and result.gap < 0.005
