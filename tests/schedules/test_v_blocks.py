"""V-Half and V-Min: what a repeated block holds, what it costs, and how little work it takes."""

from __future__ import annotations

import itertools

import pytest

from mpmd_trace.schedules import Costs, ScheduleError, check, get_schedule, simulate
from mpmd_trace.schedules import _v_building_block as blocks


def measured(meshes: int, microbatches: int, limit: int) -> tuple[float, float]:
    """(span bubble, peak) in chunks, within a limit in chunks."""
    result = simulate(get_schedule("v-half", meshes, microbatches, memory_limit=limit / 2))
    return 2 * result.bubble_span, 2 * max(result.peak_activations)


REPLAYED = [(4, 16, 4, 11), (4, 16, 6, 5), (4, 16, 8, 0), (8, 32, 8, 23), (8, 32, 10, 17), (8, 32, 12, 11)]
"""(meshes, microbatches, chunks, bubble) of a replayed search; 1F1B has 18 and 42."""


@pytest.mark.parametrize(("meshes", "microbatches", "chunks", "bubble"), REPLAYED)
def test_bubbles_of_the_replayed_search(meshes: int, microbatches: int, chunks: int, bubble: float) -> None:
    assert measured(meshes, microbatches, chunks) == (bubble, chunks)
    plain = simulate(get_schedule("1f1b", meshes, microbatches))
    assert 2 * plain.bubble_makespan == {4: 18, 8: 42}[meshes]


@pytest.mark.parametrize("meshes", [3, 5, 6, 8, 12, 16])
def test_bubble_falls_by_three_for_each_chunk_of_memory(meshes: int) -> None:
    least = 2 * -(-(meshes + 2) // 3)
    for chunks in range(least, min(meshes + 5, 2 * meshes), 2):
        bubble, peak = measured(meshes, 3 * meshes + 6, chunks)
        assert peak == chunks
        # Exact up to a dozen meshes or so; then a slot may be lost here and there.
        assert 0 <= bubble - (6 * meshes - 1 - 3 * chunks) <= (1 if meshes > 12 else 0)


@pytest.mark.parametrize("meshes", [*range(1, 9), 12, 19])
def test_default_memory_is_half_and_the_least_a_third(meshes: int) -> None:
    microbatches = 3 * meshes
    half = simulate(get_schedule("v-half", meshes, microbatches))
    least = simulate(get_schedule("v-min", meshes, microbatches))
    assert max(half.peak_activations) <= max(meshes / 2, -(-(meshes + 2) // 3))
    assert max(least.peak_activations) <= -(-(meshes + 2) // 3)
    plain = simulate(get_schedule("1f1b", meshes, microbatches)).bubble_makespan
    assert half.bubble_makespan <= plain / 2 + 3
    assert least.bubble_makespan <= plain * 2 / 3 + 3


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_more_bubble_than_1f1b_where_the_first_stage_and_the_turn_are_not_split(name: str) -> None:
    costs = Costs(forward=(1,) * 8, input_grad=(0, 1, 1, 1, 2, 1, 1, 1), weight_grad=(2, 1, 1, 1, 0, 1, 1, 1))
    chunked = simulate(get_schedule(name, 4, 8), costs)
    plain = simulate(get_schedule("1f1b", 4, 8), Costs(forward=(2,) * 4, input_grad=(2,) * 4, weight_grad=(2,) * 4))
    assert chunked.bubble_makespan > plain.bubble_makespan
    assert max(chunked.peak_activations) <= max(plain.peak_activations) / 2


@pytest.mark.parametrize(
    ("meshes", "microbatches", "chunks"), list(itertools.product((1, 2, 4, 7), (1, 3, 8, 13), (0, 1, 9)))
)
def test_any_limit_is_kept(meshes: int, microbatches: int, chunks: int) -> None:
    limit = 2 * -(-(meshes + 2) // 3) + chunks
    schedule = get_schedule("v-half", meshes, microbatches, memory_limit=limit / 2)
    assert check(schedule, memory_limit=limit / 2) == []


def test_too_little_memory() -> None:
    with pytest.raises(ScheduleError, match="keeps to 3 microbatches; the least is 4"):
        get_schedule("v-half", 8, 32, memory_limit=3)
    # Nothing more than all microbatches can be in flight.
    assert check(get_schedule("v-half", 8, 2, memory_limit=2), memory_limit=2) == []


def test_a_block_in_the_order_of_its_slots() -> None:
    # The order of many blocks is that of a few with the middle repeated.
    block = blocks.Block(1, 1)
    for mesh in range(4):
        row = block.order(4, mesh, 40)
        starts = block.starts(4, mesh)
        first = [code for _, code in sorted(zip(starts, range(4), strict=True))]
        assert list(dict.fromkeys(c for c in row if c < 4)) == first
        assert [row.count(c) for c in range(5)] == [40, 40, 40, 40, 80]
        few = block.order(4, mesh, 12)
        assert row[:20] == few[:20] and row[-20:] == few[-20:]
