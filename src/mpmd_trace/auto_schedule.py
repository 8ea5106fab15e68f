"""`pipeline_schedule="auto"`: the schedule of the library that suits a program best, by simulation.

The costs are the operations counted in the fragments after import, so the choice depends on the program and
the assignment alone: the same program gets the same schedule everywhere.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

from .costs import flops
from .ir.diagnostics import MpmdError
from .ir.ops import FragmentOp, Module
from .schedules import (
    ENTRIES,
    Costs,
    Schedule,
    ScheduleError,
    ScheduleWarning,
    Simulation,
    get_schedule,
    search,
    simulate,
)

__all__ = ["AutoSchedule", "Choice", "StageCosts", "best_schedule", "rank_schedules", "stage_costs"]

#: How much faster a schedule must be to be worth its split backwards: more programs, more launches.
SPLIT_GAIN = 0.02
#: Makespans that differ by less are equal; then memory decides.
EQUAL = 1e-3


@dataclasses.dataclass(frozen=True)
class AutoSchedule:
    """Asks for the fastest schedule, as `pipeline_schedule=AutoSchedule(memory_limit=4)`.

    `memory_limit`: microbatches whose activations a mesh can hold at once; any number when None.
    """

    memory_limit: float | None = None

    def __post_init__(self) -> None:
        limit = self.memory_limit
        if limit is not None and (not isinstance(limit, int | float) or limit <= 0):
            raise MpmdError(f"memory_limit is {limit!r}; it is a number of microbatches above 0")


@dataclasses.dataclass(frozen=True)
class StageCosts:
    """What a microbatch costs in each stage, and on which mesh the stage is; any unit of time.

    `visits` are the microbatches that run through each stage, all of them by default.  A backward that cannot
    be split is all `weight_grad` in a stage that needs no input gradient, else all `input_grad`.
    """

    meshes: int
    microbatches: int
    mesh_of: tuple[int, ...]
    forward: tuple[float, ...]
    input_grad: tuple[float, ...]
    weight_grad: tuple[float, ...]
    visits: tuple[tuple[int, ...], ...] = ()

    @property
    def chunks(self) -> int:
        """Stages per mesh, where every mesh has as many; else 0."""
        counts = {self.mesh_of.count(m) for m in range(self.meshes)}
        return counts.pop() if len(counts) == 1 else 0

    def costs(self) -> Costs:
        """For the simulator."""
        return Costs(self.forward, self.input_grad, self.weight_grad)

    def scaled(self, factor: float) -> StageCosts:
        """In another unit."""
        return dataclasses.replace(
            self,
            forward=tuple(c * factor for c in self.forward),
            input_grad=tuple(c * factor for c in self.input_grad),
            weight_grad=tuple(c * factor for c in self.weight_grad),
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """A schedule that a program can run, simulated with its costs."""

    schedule: Schedule
    result: Simulation
    fits: bool
    #: Whether every stage goes through its backwards in the order of the microbatches, as a program does that
    #: adds gradients up in this order.
    in_order: bool
    #: Costs are simulated in units of this: the most expensive action is about 1.
    unit: float = 1.0

    @property
    def makespan(self) -> float:
        """The time of a step, in the unit of the costs."""
        return self.result.makespan * self.unit

    @property
    def peak(self) -> float:
        """The most activations that a mesh holds, in microbatches."""
        return max(self.result.peak_activations, default=0.0)


def stage_costs(module: Module) -> StageCosts | None:
    """The costs of a module after the import phase, best with split backwards; None without microbatches."""
    from .passes.fragment_info import is_scheduling_unit, split_type
    from .passes.mesh_order import schedulable_meshes
    from .passes.optimize.pipeline_scheduler import scheduling_units

    main = module.lookup("main")
    if main is None or main.topology is None:
        return None
    ops = [op for op in main.body if isinstance(op, FragmentOp) and is_scheduling_unit(op)]
    units = scheduling_units(main, ops)
    if any(u.mesh_index is None for u in units.values()):
        return None  # on a host mesh
    if not units or all(u.transpose == 0 for u in units.values()):
        return None
    meshes = len(schedulable_meshes(main.topology))
    staged = all(u.stage is not None for u in units.values())
    table: dict[int, int] = {} if staged else {m: m for m in range(meshes)}
    number = {op: u.stage if staged and u.stage is not None else u.m for op, u in units.items()}
    for op, u in units.items():
        table.setdefault(number[op], u.m)
    rank = {stage: i for i, stage in enumerate(sorted(table))}
    times: dict[str, list[float]] = {kind: [0.0] * len(rank) for kind in "FIWB"}
    visits: list[set[int]] = [set() for _ in rank]
    for op, u in units.items():
        stage = rank[number[op]]
        kind = "F" if u.transpose == 0 else {"kKeepTransferred": "I", "kDropTransferred": "W"}.get(
            split_type(op) or "", "B"
        )
        times[kind][stage] += flops(op.body, module)
        visits[stage].add(u.counter)
    mean = {k: [t / max(len(v), 1) for t, v in zip(row, visits, strict=True)] for k, row in times.items()}
    for stage, whole in enumerate(mean["B"]):
        starts_chain = stage == 0 or not visits[stage] & visits[stage - 1]
        mean["W" if starts_chain else "I"][stage] += whole
    return StageCosts(
        meshes=meshes,
        microbatches=1 + max(u.counter for u in units.values()),
        mesh_of=tuple(table[s] for s in sorted(table)),
        forward=tuple(mean["F"]),
        input_grad=tuple(mean["I"]),
        weight_grad=tuple(mean["W"]),
        visits=tuple(tuple(sorted(v)) for v in visits),
    )


def rank_schedules(costs: StageCosts, memory_limit: float | None = None) -> list[Choice]:
    """Every schedule of the library that has the program's stages where the program has them, best first.

    Schedules that fit the memory come first, then those with the shortest step; among equals that with the
    lowest peak of activations.
    """
    largest = max((*costs.forward, *costs.input_grad, *costs.weight_grad), default=0.0)
    largest = largest or 1.0
    scaled = costs.scaled(1.0 / largest)
    found = _one_per_mesh(scaled, memory_limit) if costs.chunks == 1 else _several(scaled, memory_limit)
    found = [dataclasses.replace(c, unit=largest) for c in found]
    found.sort(key=lambda c: (not c.fits, round(c.result.makespan, 6), c.peak, c.schedule.splits_backward))
    return found


def _one_per_mesh(costs: StageCosts, memory_limit: float | None) -> list[Choice]:
    if costs.mesh_of != tuple(range(costs.meshes)):
        return []
    for limit in dict.fromkeys((memory_limit, None)):
        try:
            found = search(
                costs.costs(), limit, meshes=costs.meshes, microbatches=costs.microbatches, exact=False
            )
        except ScheduleError:
            continue  # nothing keeps to the limit; what comes closest is for the message
        return [
            _choice(c.schedule, costs, memory_limit) for c in found.candidates if _suits(c.schedule, costs)
        ]
    return []


def _several(costs: StageCosts, memory_limit: float | None) -> list[Choice]:
    """Schedules with several stages per mesh, in a loop, a V, or two chains."""
    found: list[Choice] = []
    chunks = costs.chunks
    for entry in ENTRIES if chunks > 1 else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScheduleWarning)
                made = get_schedule(
                    entry.name,
                    costs.meshes,
                    costs.microbatches,
                    chunks=chunks if "chunks" in entry.options else None,
                    memory_limit=memory_limit if "memory_limit" in entry.options else None,
                    guard=False,
                )
            if _suits(made, costs):
                found.append(_choice(made, costs, memory_limit))
        except ScheduleError:
            continue  # not for these numbers
    return found


def _suits(schedule: Schedule, costs: StageCosts) -> bool:
    if schedule.placement.mesh_of != costs.mesh_of or schedule.forward_only:
        return False
    visits = costs.visits or (tuple(range(costs.microbatches)),) * len(costs.mesh_of)
    return all(tuple(schedule.microbatches_of(s)) == own for s, own in enumerate(visits) if own)


def _choice(schedule: Schedule, costs: StageCosts, memory_limit: float | None) -> Choice:
    result = simulate(schedule, costs.costs())
    fits = memory_limit is None or max(result.peak_activations) <= memory_limit + 1e-9
    return Choice(schedule, result, fits, _in_order(schedule))


def _in_order(schedule: Schedule) -> bool:
    last: dict[tuple[int, str], int] = {}
    for _, _, action in schedule.actions():
        if action.kind in "BW":
            if last.get((action.stage, action.kind), -1) > action.microbatch:
                return False
            last[action.stage, action.kind] = action.microbatch
    return True


def best_schedule(costs: StageCosts, memory_limit: float | None = None) -> Choice:
    """The fastest schedule that fits the memory and goes through the backwards in order.

    Among about equal ones that with the lowest peak; a schedule that splits backwards only when it is at
    least 2 % faster.  Raises `MpmdError` when none fits.
    """
    usable = [c for c in rank_schedules(costs, memory_limit) if c.in_order]
    fitting = [c for c in usable if c.fits]
    if not fitting:
        raise MpmdError(_nothing(costs, memory_limit, usable))
    whole = [c for c in fitting if not c.schedule.splits_backward]
    best = _first(fitting)
    if best.schedule.splits_backward and whole:
        simple = _first(whole)
        if simple.result.makespan <= best.result.makespan * (1 + SPLIT_GAIN):
            return simple
    return best


def _first(choices: Sequence[Choice]) -> Choice:
    limit = min(c.result.makespan for c in choices) * (1 + EQUAL)
    order = {entry.name: i for i, entry in enumerate(ENTRIES)}
    equal = [c for c in choices if c.result.makespan <= limit]
    return min(equal, key=lambda c: (c.peak, order.get(c.schedule.name, len(order))))


def _nothing(costs: StageCosts, memory_limit: float | None, usable: Sequence[Choice]) -> str:
    if usable:
        lowest = min(usable, key=lambda c: c.peak)
        return (
            f"no schedule for {costs.meshes} meshes and {costs.microbatches} microbatches keeps the "
            f"activations of {memory_limit:g} microbatches per mesh; {lowest.schedule.name} comes closest "
            f"with {lowest.peak:g}. Raise memory_limit or use more stages."
        )
    stages = ", ".join(f"{s} on mesh {m}" for s, m in enumerate(costs.mesh_of))
    return (
        f"pipeline_schedule='auto' finds no schedule for these stages ({stages}) and {costs.microbatches} "
        "microbatches; the library has loops (0 1 2 3 0 1 2 3) and a V (0 1 2 3 3 2 1 0), with as many "
        "stages on each mesh. Change the stages, or name a schedule."
    )
