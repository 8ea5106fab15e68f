"""Search, exact solver and layer partition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import (
    Costs,
    Cut,
    ScheduleError,
    check,
    get_schedule,
    partition_layers,
    search,
    simulate,
    solve_exact,
)
from util import max_examples


@pytest.mark.parametrize(("measure", "limit", "value"), [("makespan", None, 14), ("span", None, 13), ("span", 3, 14)])
def test_exact(measure: str, limit: float | None, value: float) -> None:
    found = solve_exact(3, 4, None, limit, measure=measure)  # type: ignore[arg-type]
    assert found.proved and found.value == pytest.approx(value) and found.gap < 1e-6
    assert check(found.schedule, memory_limit=limit) == []


def test_exact_is_never_worse_than_a_given_schedule() -> None:
    costs = Costs(2, 3, 1, latency=0.5)
    start = get_schedule("zb-h1", 2, 3)
    found = solve_exact(2, 3, costs, 2.0, measure="makespan", start=start)
    assert found.value <= simulate(start, costs).makespan + 1e-9
    assert simulate(found.schedule, costs).makespan == pytest.approx(found.value)


def test_exact_refuses_large_problems() -> None:
    with pytest.raises(ScheduleError, match="the exact search stops at"):
        solve_exact(16, 64)


def test_search() -> None:
    found = search(meshes=3, microbatches=4)
    assert found.exact is not None and found.exact.proved
    assert found.best.result.makespan == 14 and found.gap == pytest.approx(0)
    wide = search(Costs(latency=0.1), 5, meshes=4, microbatches=8, chunks=(1, 2), exact=False)
    assert max(wide.best.result.peak_activations) <= 5
    assert wide.best.result.makespan <= simulate(get_schedule("zb-v", 4, 8), Costs(latency=0.1)).makespan
    values = [wide.value(c) for c in wide.candidates if c.fits]
    assert values == sorted(values)
    assert wide.lower_bound <= wide.value(wide.best)


def test_search_without_a_limit_hides_collectives_with_more_memory() -> None:
    costs = Costs(1.0, 1.0, 0.75, latency=0.05, collectives={"F": 0.3, "I": 0.3, "W": 0.1})
    numbers = {"meshes": 3, "microbatches": 12, "measure": "span", "exact": False, "effort": 60_000}
    unlimited, limited = search(costs, **numbers), search(costs, 6, **numbers)
    assert unlimited.value(unlimited.best) < limited.value(limited.best)
    assert max(unlimited.best.result.peak_activations) > 6


def test_search_takes_uneven_stages() -> None:
    costs = Costs(forward=(1, 2, 1), input_grad=(1, 2, 1), weight_grad=(1, 1, 1))
    found = search(costs, 3, meshes=3, microbatches=6, exact=False)
    assert found.best.result.ideal == 30 and found.best.fits


def test_search_says_when_memory_is_too_small() -> None:
    with pytest.raises(ScheduleError, match="comes closest with"):
        search(memory_limit=1, meshes=4, microbatches=8, names=["gpipe", "1f1b"])


layers = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=8)


@max_examples(60)
@given(layers, st.integers(1, 4), st.none() | st.integers(3, 20), st.randoms(use_true_random=False))
def test_partition_is_exact(costs: list[float], stages: int, limit: int | None, random) -> None:  # type: ignore[no-untyped-def]
    stages = min(stages, len(costs))
    memory = [random.randint(0, 5) for _ in costs]
    best = None
    for cuts in itertools.combinations(range(1, len(costs)), stages - 1):
        bounds = (0, *cuts, len(costs))
        pairs = list(itertools.pairwise(bounds))
        sums = [sum(costs[a:b]) for a, b in pairs]
        if limit is not None and max(sum(memory[a:b]) for a, b in pairs) > limit:
            continue
        score = (max(sums), sum(s * s for s in sums))
        best = score if best is None else min(best, score)
    if best is None:
        with pytest.raises(ScheduleError, match="fits the memory"):
            partition_layers(costs, stages, limit, layer_memory=memory)
        return
    found = partition_layers(costs, stages, limit, layer_memory=memory)
    assert (found.bottleneck, sum(c * c for c in found.costs)) == best
    assert [len(r) > 0 for r in found.stages] == [True] * stages


@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(1, 4), st.randoms(use_true_random=False))
@max_examples(60)
def test_partition_weighs_cuts(costs: list[int], stages: int, random) -> None:  # type: ignore[no-untyped-def]
    stages = min(stages, len(costs))
    cuts = [Cut(*(random.randint(0, 25) for _ in range(3))) for _ in costs[1:]]
    best = None
    for chosen in itertools.combinations(range(1, len(costs)), stages - 1):
        pairs = list(itertools.pairwise((0, *chosen, len(costs))))
        sums = [
            sum(costs[a:b]) + (cuts[a - 1].after if a else 0) + (cuts[b - 1].before if b < len(costs) else 0)
            for a, b in pairs
        ]
        links = [cuts[a - 1].link for a, _ in pairs if a]
        score = (max([*sums, *links]), sum(s * s for s in sums))
        best = score if best is None else min(best, score)
    found = partition_layers(costs, stages, cuts=cuts)
    assert (found.bottleneck, sum(c * c for c in found.costs)) == best


def test_partition_cuts_where_little_is_sent() -> None:
    costs = [1.0] * 6
    narrow = [Cut(link=9.0)] * 3 + [Cut(link=1.0)] + [Cut(link=9.0)]
    assert partition_layers(costs, 2).bounds == (0, 3, 6)
    found = partition_layers(costs, 2, cuts=narrow)
    assert found.bounds == (0, 4, 6) and found.links == (0.0, 1.0) and found.bottleneck == 4
    with pytest.raises(ScheduleError, match="cuts has 2 entries for 5 places"):
        partition_layers(costs, 2, cuts=narrow[:2])
    with pytest.raises(ScheduleError, match=r"cuts\[4\] is .*; it must be numbers, 0 or more"):
        partition_layers(costs, 2, cuts=[*narrow[:4], Cut(-1.0)])


def test_partition_counts_activations_in_flight() -> None:
    # Stage 0 of 1F1B keeps two microbatches, so it gets the shorter part.
    found = partition_layers([1.0] * 6, 2, 8, layer_activations=[2.0] * 6)
    assert found.bounds == (0, 2, 6) and found.memory == (8, 8)
    with pytest.raises(ScheduleError, match="3 layers cannot fill 4 stages"):
        partition_layers([1, 1, 1], 4)
    with pytest.raises(ScheduleError, match=r"layer_costs\[1\]"):
        partition_layers([1, -1], 1)
