"""Broken tables: the checker never fails itself, and what it passes, the simulator runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpmd_trace.schedules import Action, ScheduleError, Step, check, explain, from_orders, get_schedule, simulate
from util import max_examples

names = st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe-v"])


@max_examples(80)
@given(
    names,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=4),
    st.booleans(),
)
def test_mutated_tables(name: str, changes: list[tuple[int, int, int]], blocking: bool) -> None:
    schedule = get_schedule(name, 3, 6)
    rows: list[list[Step]] = [list(order) for order in schedule.orders]
    for what, a, b in changes:
        row = rows[a % 3]
        if what == 0 and row:
            row.pop(b % len(row))
        elif what == 1 and row:
            row.insert(a % len(row), row[b % len(row)])
        elif what == 2 and row:
            row.insert(a % len(row), row.pop(b % len(row)))
        else:
            row.insert(b % (len(row) + 1), Action(a % 9, "FIWB"[b % 4], a % 8))  # type: ignore[arg-type]
    changed = from_orders(rows, placement=schedule.placement, microbatches=6)
    problems = check(changed, blocking=blocking, memory_limit=5)
    assert explain(changed, problems) or not problems
    for p in problems:
        assert -1 <= p.row < 3 and p.column < max(map(len, rows), default=0)
    try:
        result = simulate(changed)
        assert result.makespan >= result.ideal - 1e-9
    except ScheduleError as error:
        assert error.problems
        assert check(changed)
    if not [p for p in problems if p.code != "memory"]:
        simulate(changed, transfers="blocking" if blocking else "async")
