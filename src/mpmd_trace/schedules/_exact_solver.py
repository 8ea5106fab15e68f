"""The best possible schedule of a small pipeline, proved by mixed-integer programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpmd_trace.schedules._check import check
from mpmd_trace.schedules._costs import Costs
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._memory import MemoryLimit, limits_of
from mpmd_trace.schedules._mixed_integer_program import Flow, OrderProblem
from mpmd_trace.schedules._result import Measure
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._simulate import simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BINARIES = 2000
"""Larger problems are refused: the solver would run for hours."""


@dataclass(frozen=True)
class Exact:
    """The result of the solver: a schedule, its time, and a time no schedule can beat.

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

    def gap_of(self, value: float) -> float:
        """Return how far a time lies above the bound, as a fraction of the bound."""
        return max(0.0, value / self.lower_bound - 1.0) if self.lower_bound else 0.0


def binaries(meshes: int, microbatches: int, placement: Placement | None = None, *, split: bool = True) -> int:
    """About the number of yes-or-no questions in the problem: pairs of actions of a mesh.

    Data flow decides nearly half of the pairs, those of a stage with itself aside.
    """
    placement = Placement.loop(meshes) if placement is None else placement
    total = 0
    for stages in placement.stages_on:
        lanes = (3 if split else 2) * len(stages)
        total += lanes * (lanes - 1) // 2 * microbatches * (microbatches - 1) // 2
    return total


def solve_exact(
    meshes: int,
    microbatches: int,
    costs: Costs | None = None,
    memory_limit: MemoryLimit | None = None,
    *,
    placement: Placement | None = None,
    graph: StageGraph | None = None,
    split: bool = True,
    weight_fraction: float = 1.0,
    measure: Measure = "span",
    start: Schedule | None = None,
    time_limit: float = 60.0,
) -> Exact:
    """Return the schedule with the smallest span (or makespan) that keeps to the memory limit.

    - `placement`: any number of stages on any mesh; one each when left out. `graph` is their data
      flow, a chain when left out;
    - `memory_limit`: microbatches of activations, for each mesh the same or one by one; without
      one, only the number of microbatches limits it;
    - `split`: whether backwards are split; full ones cover 1F1B and interleaved 1F1B;
    - `start`, a schedule of that kind that keeps to the limit, bounds the search from above, and
      comes back unchanged when the solver finds nothing better within `time_limit` seconds.
    """
    costs = Costs() if costs is None else costs
    if costs.actions:
        raise ScheduleError.of("range", "the exact search takes costs per stage, not of single actions")
    placement = Placement.loop(meshes) if placement is None else placement
    if placement.meshes != meshes:
        raise ScheduleError.of("placement", f"the placement has {placement.meshes} meshes, not {meshes}")
    count = binaries(meshes, microbatches, placement, split=split)
    if count > MAX_BINARIES:
        raise ScheduleError.of(
            "range",
            f"{meshes} meshes, {len(placement.mesh_of)} stages and {microbatches} microbatches "
            f"give about {count} binary variables; the exact search stops at {MAX_BINARIES}. "
            "Try fewer microbatches",
        )
    limits = limits_of(meshes, memory_limit, float(microbatches))
    kind = "" if len(placement.mesh_of) == meshes else f"-{placement.kind}"
    name = f"exact{kind}"
    frame = make(name, [()] * meshes, placement, microbatches, graph=graph)
    flow = Flow(frame, costs, split)
    span = measure == "span"
    horizon = upper = _serial(flow)
    if start is not None:
        result = simulate(start, costs, weight_fraction=weight_fraction)
        _suits(start, frame, split, result.peak_activations, limits)
        upper = result.time(measure)
        horizon = min(horizon, _ramp(flow, frame) + upper) if span else upper
        if upper <= flow.floor(span) * (1 + 1e-9):
            return Exact(start, upper, upper, measure, True)
    # What rounding does to the cut-off must not cut off the schedule it was taken from.
    upper, horizon = upper * (1 + 1e-9) + 1e-9, horizon * (1 + 1e-9) + 1e-9
    problem = OrderProblem(frame, flow, limits, weight_fraction, span, horizon, upper)
    answer = _solve(problem, time_limit)
    bound = problem.low[problem.objective]
    if answer.mip_dual_bound is not None and abs(answer.mip_dual_bound) < float("inf"):
        bound = max(bound, float(answer.mip_dual_bound))
    choices = [] if start is None else [start]
    if answer.x is not None:
        made = make(name, problem.orders(answer.x), placement, microbatches, graph=graph)
        # Where no action of a mesh takes time, its binaries may go in a circle.
        if not check(made, memory_limit=limits, weight_fraction=weight_fraction):
            choices.append(made)
    if not choices:
        raise _nothing_found(answer, time_limit)
    values = [simulate(c, costs, weight_fraction=weight_fraction).time(measure) for c in choices]
    # Rounding keeps noise in the last digits from choosing between equals.
    n = min(range(len(choices)), key=lambda n: round(values[n], 9))
    value = values[n]
    bound = min(bound, value)
    return Exact(choices[n], value, bound, measure, value - bound <= 1e-6 * max(value, 1e-12))


#: The status of SciPy for what is neither solved, nor infeasible, nor at a limit.
_SOLVER_ERROR = 4


def _solve(problem: OrderProblem, time_limit: float) -> Any:
    # SciPy takes long to load, and only this function needs it.
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    entries = [(value, n, column) for n, row in enumerate(problem.rows) for column, value in row.terms.items()]
    data, rows, columns = zip(*entries, strict=True)
    width = len(problem.low)
    matrix = csr_matrix((data, (rows, columns)), shape=(len(problem.rows), width))
    integrality: NDArray[Any] = np.zeros(width)
    integrality[problem.starts : problem.objective] = 1
    goal: NDArray[Any] = np.zeros(width)
    goal[problem.objective] = 1.0
    low = np.array([row.low for row in problem.rows])
    for presolve in (True, False):
        answer = milp(
            goal,
            constraints=LinearConstraint(matrix, low, np.inf),
            integrality=integrality,
            bounds=Bounds(np.array(problem.low), np.array(problem.high)),
            options={"time_limit": time_limit, "mip_rel_gap": 1e-7, "presolve": presolve},
        )
        # Presolving brings HiGHS now and then to an error of its own, which ends it at once.
        if answer.status != _SOLVER_ERROR:
            break
    return answer


def _suits(start: Schedule, frame: Schedule, split: bool, peaks: Sequence[float], limits: Sequence[float]) -> None:
    """Check that a schedule keeps the rules of the search: one that breaks a rule would cut off those that keep it."""
    whole = any(a.kind == "B" for _, _, a in start.actions())
    reason = ""
    if start.placement.mesh_of != frame.placement.mesh_of:
        reason = "its stages are on other meshes"
    elif start.microbatches != frame.microbatches or start.only is not None:
        reason = f"not all of its stages run {frame.microbatches} microbatches"
    elif whole == split:
        reason = f"its backwards are {'whole' if whole else 'split'}"
    elif start.graph != frame.graph:
        reason = "its stages feed each other differently"
    elif any(peak > limit + 1e-9 for peak, limit in zip(peaks, limits, strict=True)):
        reason = f"it holds up to {max(peaks):g} microbatches of activations"
    if reason:
        raise ScheduleError.of("start", f"schedule '{start.name}' cannot start the exact search: {reason}")


def _serial(flow: Flow) -> float:
    """Return the time of everything one by one; no order that never waits in vain takes longer."""
    work = sum(lane.time for lane in flow.lanes)
    wires = sum(wire for needs in flow.needs for _, wire in needs)
    return (work + wires) * flow.microbatches


def _ramp(flow: Flow, frame: Schedule) -> float:
    """Return the latest time at which some mesh of a best schedule by span need start.

    Along a chain whose first stages are on different meshes, each mesh starts when its first
    input arrives, as nothing else can come first. Otherwise nothing is known.
    """
    first = list(dict.fromkeys(frame.placement.mesh_of))
    if not frame.graph.is_chain or frame.placement.mesh_of[: len(first)] != tuple(first):
        return float("inf")
    heads = flow.heads(1)
    return max(min(heads[k][0] for k in mates) for mates in flow.mates if mates)


def _nothing_found(answer: Any, time_limit: float) -> ScheduleError:
    if answer.status == 2:
        return ScheduleError.of("memory", "no order of the actions keeps to the memory limit")
    if answer.x is not None:
        return ScheduleError("the solver cannot order actions that take no time; give each mesh one that does")
    return ScheduleError(f"the solver found no schedule within {time_limit:g} s")
