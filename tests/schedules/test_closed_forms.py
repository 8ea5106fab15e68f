"""The closed forms, inside their validity, against the simulator."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpmd_trace.schedules import Costs, check, contiguous_stages, find_entry, get_schedule, schedule_names, simulate
from util import max_examples

times = st.integers(1, 6).map(float)
sizes = st.tuples(st.integers(1, 7), st.integers(1, 12))
fast = max_examples(20)


def close(a: float, b: float) -> bool:
    return a == pytest.approx(b, abs=1e-9)


@fast
@given(sizes, times, times, times)
def test_one_stage_per_mesh(size: tuple[int, int], f: float, i: float, w: float) -> None:
    p, m = size
    costs = Costs(f, i, w)
    for name, peak in (
        ("gpipe", lambda r: m),
        ("1f1b", lambda r: min(m, p - r)),
        ("eager-1f1b", lambda r: min(m, 2 * (p - r) - 1)),
    ):
        result = simulate(get_schedule(name, p, m), costs)
        assert close(result.makespan, (m + p - 1) * (f + i + w))
        assert result.peak_activations == tuple(peak(r) for r in range(p))


@fast
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), times, times, times)
def test_interleaved(p: int, rounds: int, v: int, f: float, i: float, w: float) -> None:
    m = p * rounds
    costs = Costs(f, i, w)
    step = (m + (p - 1) / v) * (f + i + w)
    for name in ("looped-bfs", "circular"):
        result = simulate(get_schedule(name, p, m, chunks=v), costs)
        assert close(result.makespan, step)
        assert result.peak_activations == (m,) * p
    # KimiK2 warms up with one chunk more, and is no faster.
    for name, more in (("interleaved-1f1b", 0), ("kimi-k2", 1)):
        result = simulate(get_schedule(name, p, m, chunks=v), costs)
        assert close(result.makespan, step)
        for r, peak in enumerate(result.peak_activations):
            assert close(peak, min(m, ((v - 1) * p + 2 * (p - 1 - r) + 1 + more) / v))


@fast
@given(st.integers(1, 6), st.integers(0, 10), times, times, times)
def test_zero_bubble(p: int, more: int, f: float, i: float, w: float) -> None:
    assume(w <= min(f, i))
    m = 2 * p - 1 + more
    costs = Costs(f, i, w)
    h1 = simulate(get_schedule("zb-h1", p, m), costs)
    assert close(h1.makespan, m * (f + i + w) + (p - 1) * (f + i - w))
    assert h1.peak_activations == (min(m, p),) * p
    h2 = simulate(get_schedule("zb-h2", p, m), costs)
    if 2 * w <= f + i and f == i:
        assert close(h2.span, m * (f + i + w) + (p - 1) * (f + i - 2 * w))
    optimistic = simulate(get_schedule("zb-h1", p, m), costs, weight_fraction=0.0)
    assert optimistic.peak_activations == tuple(min(m, p - r) for r in range(p))
    # The paper's count: (P-r) whole activations and r of which only the weight-gradient's are left.
    paper = simulate(get_schedule("zb-h1", p, m), costs, weight_fraction=0.4)
    assert all(close(a, p - r + 0.4 * r) for r, a in enumerate(paper.peak_activations))


@fast
@given(st.integers(1, 6), st.integers(0, 10))
def test_zero_bubble_with_equal_times(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    for name in ("zb-h2", "zb-v"):
        result = simulate(get_schedule(name, p, m))
        assert close(result.bubble_span, 0)
    assert simulate(get_schedule("zb-h2", p, m)).peak_activations == (2 * p - 1,) * p
    h2 = simulate(get_schedule("zb-h2", p, m), weight_fraction=0.0)
    assert h2.peak_activations == tuple(2 * (p - r) - 1 for r in range(p))
    assert simulate(get_schedule("zb-v", p, m)).peak_activations == (p,) * p


@fast
@given(st.integers(1, 5), st.integers(2, 3), st.integers(2, 3), times, times, times)
def test_interleaved_zero_bubble(p: int, rounds: int, v: int, f: float, i: float, w: float) -> None:
    assume(w <= min(f, i))
    m = p * rounds
    result = simulate(get_schedule("interleaved-zero-bubble", p, m, chunks=v), Costs(f, i, w))
    assert close(result.makespan, m * (f + i + w) + (p - 1) * (f + i - w) / v)
    assert all(close(peak, p) for peak in result.peak_activations)


@fast
@given(st.integers(1, 5), st.integers(0, 6), times, times)
def test_dualpipe(half: int, more: int, f: float, w: float) -> None:
    assume(w <= f)
    p, m = 2 * half, 4 * half + 2 * more
    f_and_b, b = 2 * f + w, f + w
    result = simulate(get_schedule("dualpipe", p, m), Costs(f, f, w))
    assert close(result.idle[0], (half - 1) * (f_and_b + b - 3 * w))
    result = simulate(get_schedule("dualpipe-v", p, m), Costs(f, f, w))
    assert close(result.makespan, m * (f + b) + (p - 1) * (f_and_b + b - 3 * w) / 2)
    assert result.peak_activations == (p + 0.5,) * p


@fast
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_forward_passes(p: int, rounds: int, v: int) -> None:
    """No mesh waits but for the first microbatch to come and the last to leave; never are more than P on their way."""
    result = simulate(get_schedule("forward", p, p * rounds, chunks=v))
    assert close(result.makespan * v, p * rounds * v + p - 1)
    first = [m for _, _, m in result.schedule.total_order(0)]
    last = [m for _, _, m in result.schedule.total_order(p - 1)]
    assert [m // p for m in first] == sorted(m // p for m in first)
    assert [m // p for m in last] == sorted(m // p for m in last)


def try_schedule(name: str, p: int, m: int, **options: object):  # type: ignore[no-untyped-def]
    return get_schedule(name, p, m, guard=False, **options)  # type: ignore[arg-type]


@fast
@given(sizes, st.integers(1, 3), st.floats(0, 3))
def test_every_schedule_runs_and_obeys_the_bounds(size: tuple[int, int], chunks: int, latency: float) -> None:
    p, m = size
    for name in schedule_names():
        if name.startswith("dualpipe") and (p % 2 or m < 2 * p or m % 2):
            continue
        options = {"chunks": chunks} if "chunks" in find_entry(name).options else {}
        schedule = try_schedule(name, p, m, **options)
        assert check(schedule) == []
        result = simulate(schedule, Costs(latency=latency))
        assert result.makespan >= result.span >= result.ideal - 1e-9
        assert all(idle >= -1e-9 for idle in result.idle)
        path = result.critical_path
        assert path[0].start == 0 and path[-1].end == result.makespan
        for a, b in itertools.pairwise(path):
            assert -1e-9 <= b.start - a.end <= latency + 1e-9


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (3, 7), (4, 1), (5, 9), (7, 14)])
def test_building_blocks(p: int, m: int) -> None:
    for name in ("v-half", "v-min"):
        schedule = get_schedule(name, p, m)
        assert check(schedule) == []
        assert simulate(schedule).bubble_makespan <= 3 * (p - 1) + 0.5


@fast
@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 3), st.integers(1, 12))
def test_ragged_groups_never_deadlock(p: int, m: int, v: int, group: int) -> None:
    group = max(group, min(p, m))
    for name in ("interleaved-1f1b", "kimi-k2", "interleaved-zero-bubble"):
        schedule = try_schedule(name, p, m, chunks=v, group_size=group)
        assert check(schedule) == []


@fast
@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 3))
def test_several_stages_in_a_row_change_nothing(p: int, m: int, n: int) -> None:
    for name in ("1f1b", "zb-h1"):
        plain = get_schedule(name, p, m)
        spread = contiguous_stages(plain, n)
        assert check(spread) == []
        if name == "1f1b":
            # A stage's output leaves a mesh only once, so the step time stays.
            assert close(simulate(spread).makespan, simulate(plain).makespan)


@fast
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.4, 0.5, 1]),
    times,
    times,
    times,
    st.floats(0, 2),
)
def test_zb_auto_keeps_to_the_limit(
    p: int, m: int, limit: int, w: float, f: float, i: float, g: float, latency: float
) -> None:
    costs = Costs(f, i, g, latency=latency)
    schedule = get_schedule("zb-auto", p, m, costs=costs, memory_limit=limit, weight_fraction=w)
    assert check(schedule, memory_limit=limit, weight_fraction=w) == []
