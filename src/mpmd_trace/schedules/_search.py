"""Which schedule is best for these costs and this memory, and how far from perfect it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpmd_trace.schedules._costs import Costs, Timer
from mpmd_trace.schedules._dispatch import ACTIONS_TO_PLACE, dispatched_schedule
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._exact_solver import Exact, binaries, solve_exact
from mpmd_trace.schedules._lower_bounds import memory_floor, starts_floor
from mpmd_trace.schedules._memory import MemoryLimit, limits_of, meshes_over
from mpmd_trace.schedules._mixed_integer_program import Flow
from mpmd_trace.schedules._overlap import overlapped
from mpmd_trace.schedules._registry import ENTRIES, find_entry, get_schedule, whole
from mpmd_trace.schedules._result import Measure, Simulation
from mpmd_trace.schedules._schedule import Placement, Schedule
from mpmd_trace.schedules._simulate import simulate

NOT_SEARCHED = ("none", "zb-auto")
"""The worst case, and what `search` itself does."""

EXACT_UP_TO = 60
"""Binary variables up to which `search` proves optimality unasked (seconds of work)."""


@dataclass(frozen=True)
class Candidate:
    """A schedule, its simulation, and whether it fits into the memory limit."""

    schedule: Schedule
    result: Simulation
    fits: bool
    chunks: int = 1

    @property
    def name(self) -> str:
        """The name, with the number of chunks where the schedule has a choice."""
        entry_chunks = self.chunks > 1 and self.schedule.placement.kind == "loop"
        return f"{self.schedule.name}/{self.chunks}" if entry_chunks else self.schedule.name


@dataclass(frozen=True)
class SearchResult:
    """The best schedule, all candidates from best to worst, and a bound.

    `lower_bound` is a time (by `measure`) that no schedule beats whose stages are where the best
    one has them: proved by the exact solver where `exact` is given, else from the work and the
    ramps alone.
    """

    best: Candidate
    candidates: tuple[Candidate, ...]
    measure: Measure
    lower_bound: float
    exact: Exact | None

    def value(self, candidate: Candidate) -> float:
        """Return the time of a candidate by the measure of the search."""
        return candidate.result.time(self.measure)

    @property
    def gap(self) -> float:
        """The distance of the best from the bound, as a fraction of the bound; 0 means optimal."""
        value = self.value(self.best)
        return max(0.0, (value - self.lower_bound) / self.lower_bound) if self.lower_bound else 0.0


def search(
    costs: Costs | None = None,
    memory_limit: MemoryLimit | None = None,
    *,
    meshes: int,
    microbatches: int,
    chunks: int | Sequence[int] = (1,),
    measure: Measure = "makespan",
    weight_fraction: float = 1.0,
    exact: bool | None = None,
    time_limit: float = 60.0,
    names: Sequence[str] | None = None,
    effort: int = ACTIONS_TO_PLACE,
) -> SearchResult:
    """Find the best schedule of the library and of generated zero-bubble schedules, and a lower bound of the time.

    `memory_limit` is in microbatches of activations, one number or one per mesh; any memory fits by default. Then
    schedules are generated for 2P microbatches of memory, or for all microbatches where there are collectives.
    `measure` is what to minimize:
    `makespan` for one step by itself, `span` when steps may overlap. `chunks` are the numbers of
    chunks per mesh to try; with more than one chunk, per-stage costs must be given as one number
    per mesh. `exact` asks for (or forbids) the exact solver, which runs unasked up to
    `EXACT_UP_TO` binary variables and covers one chunk per mesh, for `time_limit` seconds at most.
    `names` are those of the library to try, all by default. `effort` is about how many actions are
    placed to improve schedules of one chunk per mesh; fewer are if a schedule is as fast as the bound, or if many in
    proportion to the size of the pipeline have not helped.
    Where there are collectives, schedules are also tried with blocks that hide them (`overlapped`), and those that are
    generated may have blocks of a forward with an input gradient, a weight gradient, or both. With
    `make_config(overlap="pairs")`, a step runs these blocks as programs.
    """
    costs = Costs() if costs is None else costs
    meshes, microbatches = whole("number of meshes", meshes), whole("number of microbatches", microbatches)
    chunks = tuple(whole("number of chunks", v) for v in ((chunks,) if isinstance(chunks, int) else chunks))
    if measure not in ("makespan", "span"):
        raise ScheduleError(f"unknown measure {measure!r}; use makespan or span")
    limits = None if memory_limit is None else limits_of(meshes, memory_limit, 0.0)
    candidates: list[Candidate] = []

    def consider(schedule: Schedule, v: int) -> None:
        add(schedule, v)
        blocks = overlapped(schedule, costs) if costs.collectives else schedule
        if blocks is not schedule:
            add(blocks, v)

    def add(schedule: Schedule, v: int) -> None:
        result = simulate(schedule, costs, weight_fraction=weight_fraction)
        candidates.append(Candidate(schedule, result, not meshes_over(result.peak_activations, limits), v))

    refused: list[str] = []
    for schedule, v in _library(meshes, microbatches, chunks, names, costs, memory_limit, refused):
        try:
            consider(schedule, v)
        except ScheduleError as error:
            refused.append(str(error))
    if names is None and 1 in chunks:
        # 2P is enough for no bubble, but blocks are more often possible with more.
        own = limits or [float(microbatches if costs.collectives else 2 * meshes)] * meshes
        one_each = Placement.loop(meshes)
        known = sorted((c for c in candidates if c.fits and _splits(c, one_each)), key=lambda c: c.result.time(measure))
        others = [c.schedule for c in known[:2]]
        for schedule in dispatched_schedule(meshes, microbatches, costs, own, weight_fraction, measure, effort, others):
            consider(schedule, 1)
    if not candidates:
        reason = f": {refused[0]}" if refused else ""
        raise ScheduleError(f"no schedule suits {meshes} meshes and {microbatches} microbatches{reason}")

    def rank(c: Candidate) -> tuple[float, ...]:
        other = c.result.time("makespan" if measure == "span" else "span")
        return (not c.fits, round(c.result.time(measure), 9), round(max(c.result.peak_activations), 9), round(other, 9))

    candidates.sort(key=rank)
    solved: dict[tuple[int, ...], Exact] = {}
    if exact is not False and (exact or (names is None and not costs.actions)):
        for placement, v in _placements(meshes, chunks):
            if not exact and binaries(meshes, microbatches, placement) > EXACT_UP_TO:
                continue
            start = next((c.schedule for c in candidates if c.fits and _splits(c, placement)), None)
            solution = solve_exact(
                meshes,
                microbatches,
                costs,
                limits,
                placement=placement,
                weight_fraction=weight_fraction,
                measure=measure,
                start=start,
                time_limit=time_limit,
            )
            solved[placement.mesh_of] = solution
            if solution.schedule is not start:
                consider(solution.schedule, v)
        candidates.sort(key=rank)
    best = candidates[0]
    if not best.fits:
        lowest = min(candidates, key=lambda c: max(c.result.peak_activations))
        raise ScheduleError.of(
            "memory",
            f"no schedule of {meshes} meshes and {microbatches} microbatches keeps to the memory "
            f"limit; {lowest.name} comes closest with {max(lowest.result.peak_activations):g}",
        )
    proof = solved.get(best.schedule.placement.mesh_of)
    if proof is not None and not _covers(proof, best, costs):
        proof = None
    bound = _bound(best, costs, measure, limits, weight_fraction) if proof is None else proof.lower_bound
    return SearchResult(best, tuple(candidates), measure, bound, proof)


def _placements(meshes: int, chunks: Sequence[int]) -> list[tuple[Placement, int]]:
    """Return where the stages can be, with so many of them on each mesh: in a loop, or two in a V."""
    out: dict[tuple[int, ...], tuple[Placement, int]] = {}
    for v in chunks:
        for placement in [Placement.loop(meshes, v), *([Placement.v(meshes)] if v == 2 else [])]:
            out.setdefault(placement.mesh_of, (placement, v))
    return list(out.values())


def _library(
    meshes: int,
    microbatches: int,
    chunks: Sequence[int],
    names: Sequence[str] | None,
    costs: Costs,
    memory_limit: MemoryLimit | None,
    refused: list[str],
) -> list[tuple[Schedule, int]]:
    """Return the library's schedules that suit the numbers; why others do not goes to `refused`."""
    out: list[tuple[Schedule, int]] = []
    entries = ENTRIES if names is None else [find_entry(n) for n in names]
    for entry in entries:
        if names is None and (entry.forward_only or entry.name in NOT_SEARCHED):
            continue
        own = chunks if "chunks" in entry.options else (2,) if "in a V" in entry.placement else (1,)
        for v in own:
            if v not in chunks or (names is None and v == 1 and "chunks" in entry.options):
                continue
            try:
                made = get_schedule(
                    entry.name,
                    meshes,
                    microbatches,
                    chunks=v if "chunks" in entry.options else None,
                    costs=costs,
                    memory_limit=memory_limit,
                    guard=False,
                )
            except ScheduleError as error:
                refused.append(str(error))
                continue
            out.append((made, v))
    return out


def _splits(candidate: Candidate, placement: Placement) -> bool:
    """Return whether the exact search over these stages includes the schedule."""
    schedule = candidate.schedule
    return (
        schedule.placement.mesh_of == placement.mesh_of
        and schedule.only is None
        and schedule.graph.is_chain
        and all(a.kind != "B" for _, _, a in schedule.actions())
    )


def _covers(proof: Exact, best: Candidate, costs: Costs) -> bool:
    """Return whether the bound of the exact search, with split backwards, holds for the best, too.

    It does unless whole backwards, or fused blocks, take less time than their parts, as those do that hide collectives.
    """
    schedule = best.schedule
    if costs.collectives:
        return False
    if schedule is proof.schedule:
        return True
    cheaper = costs.backward is not None or costs.fused is not None
    return schedule.only is None and schedule.graph.is_chain and not cheaper


def _bound(
    best: Candidate, costs: Costs, measure: Measure, limits: Sequence[float] | None, weight_fraction: float
) -> float:
    """Return a time that follows from the work and the memory of each mesh.

    A mesh cannot finish before its first input arrives and all its work is done, and see `memory_floor`. Of the work,
    blocks may hide collectives: as much as there is computation on the way that they do not belong to.

    After its last input-gradient a mesh may still have weight-gradients to run, so the way back to
    mesh 0 counts only as far as those do not cover it.
    """
    schedule = best.schedule
    if schedule.only is not None or schedule.graph.entry is not None or costs.actions:
        timer = Timer(schedule, costs)
        rows = [[part for step in row for part in step.parts] for row in schedule.orders]
        hiding = max(sum(map(timer.part, row)) - timer.most_hidden(row) for row in rows)
        low = min(best.result.ideal, max(best.result.busy), hiding)
        is_known = not costs.actions and costs.backward is None and costs.fused is None
        return max(low, starts_floor(schedule, costs, measure)) if is_known and schedule.graph.entry is None else low
    floors = [Flow(schedule, costs, split=True).floor(measure == "span")]
    if costs.backward is None and costs.fused is None:
        limits = [float(schedule.microbatches)] * schedule.meshes if limits is None else limits
        floors[0] = max(floors[0], memory_floor(schedule, costs, limits, weight_fraction, measure))
        if costs.collectives:
            floors[0] = max(floors[0], starts_floor(schedule, costs, measure))
    if costs.backward is not None:
        floors.append(Flow(schedule, costs, split=False).floor(measure == "span"))
    if costs.fused is not None:
        floors.append(max(best.result.busy))
    return min(floors)
