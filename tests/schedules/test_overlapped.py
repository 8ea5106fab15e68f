"""Collectives in the simulation of schedules, and blocks that hide them."""

from __future__ import annotations

import dataclasses

import pytest

from mpmd_trace.schedules import Costs, ScheduleError, check, get_schedule, overlapped, simulate

SENDING = Costs(1.0, 1.0, 1.0, collectives={"F": 0.5, "I": 0.5})


def test_collectives_take_time_and_blocks_hide_them() -> None:
    plain = get_schedule("dualpipe-v", 4, 16)
    whole = simulate(plain, SENDING, fused="serial").makespan
    hidden = simulate(plain, SENDING).makespan
    nothing = simulate(plain, Costs(1.0, 1.0, 1.0)).makespan
    assert nothing < hidden < whole
    # In the steady state nothing is left of them.
    longer = get_schedule("dualpipe-v", 4, 32)
    more = simulate(longer, SENDING).makespan - hidden
    assert more == pytest.approx(simulate(longer, Costs(1.0, 1.0, 1.0)).makespan - nothing)


def test_no_more_is_hidden_than_the_other_part_computes() -> None:
    schedule = get_schedule("dualpipe-v", 2, 8)
    short = Costs(1.0, 1.0, 1.0, collectives={"F": 1e3})
    blocks = sum(len(step.parts) > 1 for row in schedule.orders for step in row)
    busy = sum(simulate(schedule, short).busy)
    assert sum(simulate(schedule, short, fused="serial").busy) - busy == pytest.approx(blocks * 1.0)  # half a mesh's B


def test_exposed_collectives_are_not_hidden() -> None:
    schedule = get_schedule("dualpipe-v", 4, 16)

    def work(exposed: dict[str, float]) -> float:
        return sum(simulate(schedule, dataclasses.replace(SENDING, exposed=exposed)).busy)

    all_of = work({"F": 0.5, "I": 0.5})
    assert all_of == sum(simulate(schedule, SENDING, fused="serial").busy)
    assert work({}) < work({"F": 0.2, "I": 0.2}) < all_of
    assert work({"F": 9.0, "I": 9.0}) == all_of  # no more than there are
    interleaved = get_schedule("interleaved-1f1b", 4, 32)
    assert overlapped(interleaved, dataclasses.replace(SENDING, exposed=dict(SENDING.collectives))) is interleaved


@pytest.mark.parametrize(
    ("name", "pairs"),
    [("1f1b", False), ("eager-1f1b", True), ("interleaved-1f1b", True), ("dualpipe-v", False), ("zb-v", True)],
)
def test_pairs_where_meshes_have_time_to_wait(name: str, pairs: bool) -> None:
    """Under 1F1B a backward would wait for the forward beside it, so that the steady state is twice as long."""
    schedule = get_schedule(name, 4, 32)
    result = overlapped(schedule, SENDING)
    assert (result is not schedule) == pairs
    assert simulate(result, SENDING).makespan <= simulate(schedule, SENDING).makespan
    assert not check(result)
    assert sorted(map(str, (p for row in result.orders for s in row for p in s.parts))) == sorted(
        map(str, (p for row in schedule.orders for s in row for p in s.parts))
    )
    assert overlapped(schedule, Costs()) is schedule


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-v"])
def test_weight_gradients_hide_collectives_of_forwards(name: str) -> None:
    costs = Costs(collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    schedule = get_schedule(name, 4, 16)
    result = overlapped(schedule, costs)
    blocks = [step.parts for row in result.orders for step in row if len(step.parts) > 1]
    assert {"".join(sorted(part.kind for part in parts)) for parts in blocks} == {"FW"}
    assert simulate(result, costs).makespan < 0.97 * simulate(schedule, costs).makespan
    assert not check(result)


def test_what_collectives_may_be() -> None:
    with pytest.raises(ScheduleError, match="collectives of F is -1"):
        Costs(collectives={"F": -1})
    with pytest.raises(ScheduleError, match="maps the letters F, I and W to times"):
        Costs(collectives={"B": 1})
    with pytest.raises(ScheduleError, match="exposed of F is -1"):
        Costs(exposed={"F": -1})
