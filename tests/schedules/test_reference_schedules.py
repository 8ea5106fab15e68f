"""The reference's schedules, which are rules about pairs of fragments, are those of the library, which list actions."""

from __future__ import annotations

import itertools

import pytest

from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Unit
from mpmd_trace.schedules import Schedule, find_entry, get_schedule

NAMES = [name for name in SCHEDULES if name != "none"]


def units_of(schedule: Schedule, mesh: int) -> list[Unit]:
    """The units of a mesh in the order of its actions, one for each."""
    by_stage = len(schedule.placement.stages_on[mesh]) > 1
    return [
        Unit(
            index,
            f"m{mesh}",
            mesh_index=mesh,
            num_meshes=schedule.meshes,
            transpose=int(kind != "F"),
            counter=microbatch,
            stage=stage if by_stage else None,
            drops_transferred=kind == "W",
        )
        for index, (stage, kind, microbatch) in enumerate(schedule.total_order(mesh))
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_the_library_follows_every_rule_of_the_reference(name: str) -> None:
    asked = 0
    for meshes, microbatches in itertools.product(range(1, 5), range(1, 7)):
        schedule = get_schedule(find_entry(name).name, meshes, microbatches)
        for mesh in range(meshes):
            for a, b in itertools.permutations(units_of(schedule, mesh), 2):
                if SCHEDULES[name].before(a, b):
                    asked += 1
                    assert a.index < b.index, (name, meshes, microbatches, a, b)
    assert asked > 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ZeroBubble")])
def test_the_rules_of_the_reference_leave_nothing_open(name: str) -> None:
    """So both are one order.  Those of zero bubble say little of weight gradients, which the library places.

    With fewer microbatches than meshes, 1F1B leaves its last forward and its first backward to the data flow.
    """
    for meshes, more in itertools.product(range(1, 5), range(4)):
        schedule = get_schedule(find_entry(name).name, meshes, meshes + more)
        for mesh in range(meshes):
            for a, b in itertools.pairwise(units_of(schedule, mesh)):
                reads = a.counter == b.counter and a.transpose < b.transpose
                assert reads or SCHEDULES[name].before(a, b), (name, meshes, more, a, b)
