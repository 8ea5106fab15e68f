"""The best possible schedule of a small pipeline, proved by mixed-integer programming.

One stage per mesh, split backwards, microbatches in ascending order at every stage. The start
times are variables, and one binary per pair of actions of a mesh that may run either way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpmd_trace.schedules._actions import Action, Kind
from mpmd_trace.schedules._costs import Costs, Timer, per_stage
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._greedy import limits_of
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._simulate import simulate

Measure = Literal["span", "makespan"]

PAIRS = ("FI", "FW", "IW")
"""Kinds that may run either way round, for a later and an earlier microbatch."""

MAX_BINARIES = 1500
"""Larger problems are refused: the solver would run for hours."""


@dataclass(frozen=True)
class Exact:
    """What the solver found: a schedule, its time, and a time no schedule can beat.

    `proved` says that the two agree (to a part in a million).
    """

    schedule: Schedule
    value: float
    lower_bound: float
    measure: Measure
    proved: bool

    @property
    def gap(self) -> float:
        """(value - lower bound) / value."""
        return (self.value - self.lower_bound) / self.value if self.value else 0.0


def binaries(meshes: int, microbatches: int) -> int:
    """The number of yes-or-no questions in the problem."""
    return meshes * 3 * microbatches * (microbatches - 1) // 2


def solve_exact(
    meshes: int,
    microbatches: int,
    costs: Costs | None = None,
    memory_limit: float | None = None,
    *,
    weight_fraction: float = 1.0,
    measure: Measure = "span",
    start: Schedule | None = None,
    time_limit: float = 60.0,
) -> Exact:
    """The schedule with the smallest span (or makespan) that keeps to the memory limit.

    `memory_limit` is in microbatches; without one, only the number of microbatches limits it.
    `start`, a schedule that keeps to the limit, bounds the search from above, and comes back
    unchanged when the solver finds nothing better within `time_limit` seconds.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    costs = Costs() if costs is None else costs
    count = binaries(meshes, microbatches)
    if count > MAX_BINARIES:
        raise ScheduleError(
            f"{meshes} meshes and {microbatches} microbatches give {count} binary variables; the "
            f"exact search stops at {MAX_BINARIES}. Try fewer microbatches"
        )
    limits = limits_of(meshes, memory_limit, float(microbatches))
    placement = Placement.loop(meshes)
    frame = make("exact", [()] * meshes, placement, microbatches)
    timer = Timer(frame, costs)
    size = per_stage(costs.size, frame, "size")
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    names: dict[tuple[int, Kind, int], int] = {}
    for s in range(meshes):
        for kind in kinds:
            for m in range(microbatches):
                names[s, kind, m] = len(names)
    pairs: dict[tuple[int, str, int, int], int] = {}
    for s in range(meshes):
        for pair in PAIRS:
            for i in range(microbatches):
                for j in range(i):
                    # 1 when the later kind of microbatch j precedes the first kind of i.
                    pairs[s, pair, i, j] = len(names) + len(pairs)
    objective = len(names) + len(pairs)

    rows: list[tuple[list[tuple[int, float]], float]] = []

    def at_least(terms: list[tuple[int, float]], low: float) -> None:
        rows.append((terms, low))

    total = sum(timer.table[k][s] for k in kinds for s in range(meshes)) * microbatches
    hops = sum(
        costs.delay(a, b) + size[min(a, b)] * costs.seconds_per_size(a, b)
        for s in range(meshes - 1)
        for a, b in ((s, s + 1), (s + 1, s))
    )
    horizon = total + hops * microbatches
    upper = horizon
    if start is not None:
        result = simulate(start, costs, weight_fraction=weight_fraction)
        # The other measure bounds the horizon: some best schedule starts its last mesh no later.
        upper = result.span if measure == "span" else result.makespan
        horizon = result.makespan if measure == "makespan" else min(horizon, 2 * result.makespan)

    def wire(a: int, b: int) -> float:
        return costs.delay(a, b) + size[min(a, b)] * costs.seconds_per_size(a, b)

    for s in range(meshes):
        time = {k: timer.table[k][s] for k in kinds}
        for m in range(microbatches):
            f, i, w = (names[s, k, m] for k in kinds)
            at_least([(i, 1.0), (f, -1.0)], time["F"])
            at_least([(w, 1.0), (i, -1.0)], time["I"])
            if s:
                before = names[s - 1, "F", m]
                at_least([(f, 1.0), (before, -1.0)], timer.table["F"][s - 1] + wire(s - 1, s))
            if s < meshes - 1:
                before = names[s + 1, "I", m]
                at_least([(i, 1.0), (before, -1.0)], timer.table["I"][s + 1] + wire(s + 1, s))
            if m:
                for k in kinds:
                    at_least([(names[s, k, m], 1.0), (names[s, k, m - 1], -1.0)], time[k])
        for pair in PAIRS:
            one, two = kinds["FIW".index(pair[0])], kinds["FIW".index(pair[1])]
            for i in range(microbatches):
                for j in range(i):
                    y = pairs[s, pair, i, j]
                    a, b = names[s, one, i], names[s, two, j]
                    at_least([(a, 1.0), (b, -1.0), (y, -horizon)], time[two] - horizon)
                    at_least([(b, 1.0), (a, -1.0), (y, horizon)], time[one])
                    if j:
                        at_least([(pairs[s, pair, i, j - 1], 1.0), (y, -1.0)], 0.0)
                    if i + 1 < microbatches:
                        at_least([(pairs[s, pair, i + 1, j], 1.0), (y, -1.0)], 0.0)
        for i in range(microbatches):
            terms = []
            for j in range(i):
                terms.append((pairs[s, "FI", i, j], 1.0 - weight_fraction))
                terms.append((pairs[s, "FW", i, j], weight_fraction))
            if i + 1 > limits[s]:
                at_least(terms, i + 1 - limits[s] - 1e-9)
        last, first = names[s, "W", microbatches - 1], names[s, "F", 0]
        terms = [(objective, 1.0), (last, -1.0)]
        if measure == "span":
            terms.append((first, 1.0))
        at_least(terms, time["W"])

    width = objective + 1
    data, row_ids, columns = [], [], []
    for n, (terms, _) in enumerate(rows):
        for column, value in terms:
            data.append(value)
            row_ids.append(n)
            columns.append(column)
    matrix = csr_matrix((data, (row_ids, columns)), shape=(len(rows), width))
    integrality = np.zeros(width)
    integrality[len(names) : objective] = 1
    high = np.full(width, horizon)
    high[len(names) : objective] = 1.0
    high[objective] = upper * (1 + 1e-9)
    floor = np.zeros(width)
    floor[objective] = max(
        sum(timer.table[k][s] for k in kinds) * microbatches for s in range(meshes)
    )
    goal = np.zeros(width)
    goal[objective] = 1.0
    answer = milp(
        goal,
        constraints=LinearConstraint(matrix, np.array([low for _, low in rows]), np.inf),
        integrality=integrality,
        bounds=Bounds(floor, high),
        options={"time_limit": time_limit, "mip_rel_gap": 1e-7},
    )
    bound = float(floor[objective])
    if answer.mip_dual_bound is not None and np.isfinite(answer.mip_dual_bound):
        bound = max(bound, float(answer.mip_dual_bound))
    found: Schedule | None = None
    if answer.x is not None:
        orders = []
        for s in range(meshes):
            steps = [
                (float(answer.x[names[s, k, m]]), "FIW".index(k), m)
                for k in kinds
                for m in range(microbatches)
            ]
            orders.append([Action(s, kinds[k], m) for _, k, m in sorted(_tidy(steps))])
        found = make("exact", orders, placement, microbatches)
    if found is None and start is None:
        raise ScheduleError(f"the solver found no schedule within {time_limit:g} s")
    choices = [c for c in (found, start) if c is not None]
    timed = [(_value(c, costs, weight_fraction, measure), n) for n, c in enumerate(choices)]
    value, n = min(timed)
    bound = min(bound, value)
    return Exact(choices[n], value, bound, measure, value - bound <= 1e-6 * max(value, 1e-12))


def _tidy(steps: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    # The solver's times are off in the last digits, which must not swap actions of no duration.
    return [(round(t, 6), k, m) for t, k, m in steps]


def _value(schedule: Schedule, costs: Costs, weight_fraction: float, measure: Measure) -> float:
    result = simulate(schedule, costs, weight_fraction=weight_fraction)
    return result.span if measure == "span" else result.makespan
