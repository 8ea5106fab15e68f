"""`pipeline_schedule="auto"`: the schedule of the library that suits a program best, by simulation.

The costs are the operations counted in the fragments after import, so the choice depends on the program, the
assignment and the numbers in the configuration alone: the same program gets the same schedule everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.schedules import (
    ENTRIES,
    Action,
    Candidate,
    Kind,
    MemoryLimit,
    Placement,
    Schedule,
    ScheduleError,
    StageGraph,
    Step,
    forward_passes,
    fused,
    get_schedule,
    meshes_over,
    overlapped,
    search,
    simulate,
    training_passes,
)
from mpmd_trace.schedules._overlap import GAIN
from mpmd_trace.scheduling.costs import Hiding
from mpmd_trace.scheduling.stage_costs import StageCosts, collective_times, stage_costs, stage_ranks
from mpmd_trace.scheduling.transfers import Link, Links, crossings, values_of_module

#: How much faster a schedule must be to be worth its split backwards: more programs, more launches.
SPLIT_GAIN = 0.02
#: Makespans that differ by less are equal; then memory decides.
EQUAL = 1e-3
#: How many actions the search places while a program waits for its schedule: a second.
_EFFORT = 100_000


@dataclasses.dataclass(frozen=True)
class AutoSchedule:
    """Asks for the fastest schedule: `pipeline_schedule=AutoSchedule(memory_limit=4)`.

    `memory_limit`: the number of microbatches whose activations a mesh can hold at once, or a dictionary of such
    numbers by mesh; None is no limit.  `links`: the times of transfers, zero by default.  With `links`, also give
    `flops_per_second`, the speed of a device.  `collectives`: the time of sending between devices of the same mesh;
    zero by default.
    """

    memory_limit: float | Mapping[str, float] | None = None
    links: Links | None = None
    flops_per_second: float | None = None
    collectives: Link | None = None

    def __post_init__(self) -> None:
        limit = self.memory_limit
        limits = limit.values() if isinstance(limit, Mapping) else () if limit is None else (limit,)
        if not all(isinstance(one, int | float) and one > 0 for one in limits):
            raise MpmdError(f"memory_limit is {limit!r}; it is a number of microbatches above 0, or one by mesh")
        speed = self.flops_per_second
        if speed is not None and not (isinstance(speed, int | float) and speed > 0):
            raise MpmdError(f"flops_per_second is {speed!r}; it is the speed of a device, above 0")
        if self.links is not None and not isinstance(self.links, Links):
            raise MpmdError(f"links is {self.links!r}; make it with mpmd_trace.scheduling.Links")
        if self.collectives is not None and not isinstance(self.collectives, Link):
            raise MpmdError(f"collectives is {self.collectives!r}; make it with mpmd_trace.scheduling.Link")
        if (self.links is not None or self.collectives is not None) and speed is None:
            raise MpmdError(
                "links are in seconds, but the work of the program is counted in operations; say with "
                "flops_per_second how fast a device is"
            )

    def limit_of(self, meshes: Sequence[str]) -> MemoryLimit | None:
        """Return the limit of all meshes, or of each of these in their order."""
        limit = self.memory_limit
        if not isinstance(limit, Mapping):
            return limit
        if unknown := [name for name in limit if name not in meshes]:
            raise MpmdError(f"memory_limit names {', '.join(map(repr, unknown))}; the meshes are {', '.join(meshes)}")
        return tuple(limit.get(name, math.inf) for name in meshes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Candidate):
    """A schedule that a program can run, simulated with its costs."""

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


def program_costs(module: Module, auto: AutoSchedule, hiding: Hiding = MappingProxyType({})) -> StageCosts | None:
    """Return the costs by which "auto" chooses: operations or, where links are given, seconds.

    The devices of a mesh are taken to have equal parts of its work and of what it sends, of whose collectives XLA hides
    as much as `hiding` says.
    """
    costs = stage_costs(module)
    topology = module.main.topology if costs is not None else None
    if costs is None or topology is None or auto.flops_per_second is None:
        return costs
    if auto.links is None and auto.collectives is None:
        return costs
    meshes = schedulable_meshes(topology)
    speed = [auto.flops_per_second * topology.meshes[meshes[m]].size for m in costs.mesh_of]
    sent = crossings(values_of_module(module), stage_ranks(module), [meshes[m] for m in costs.mesh_of])
    apart, together = ({}, {}) if auto.collectives is None else collective_times(module, auto.collectives, hiding)
    seconds = dataclasses.replace(
        costs,
        forward=tuple(c / s for c, s in zip(costs.forward, speed, strict=True)),
        input_grad=tuple(c / s for c, s in zip(costs.input_grad, speed, strict=True)),
        weight_grad=tuple(c / s for c, s in zip(costs.weight_grad, speed, strict=True)),
        sends=sent.sends,
        collectives=apart,
        exposed=together,
    )
    return seconds.linked(auto.links or Links(), meshes, 1.0)


def rank_schedules(costs: StageCosts, memory_limit: MemoryLimit | None = None) -> list[Choice]:
    """Return every schedule of the library that has the program's stages where the program has them, best first.

    Schedules that fit the memory come first, then those with the shortest step; among equals that with the
    lowest peak of activations.
    """
    unit = max((*costs.forward, *costs.input_grad, *costs.weight_grad), default=0.0) or 1.0
    scaled = costs.scaled(1.0 / unit)
    if costs.forward_only:
        schedules = [forward_schedule(scaled)]
    else:
        one_per_mesh = costs.mesh_of == tuple(range(costs.meshes))
        made = _one_per_mesh(scaled, memory_limit) if one_per_mesh else _several(scaled, memory_limit)
        schedules = [schedule for schedule in made if _suits(schedule, scaled)]
    result = [c for schedule in schedules if (c := _choice(schedule, scaled, memory_limit)) is not None]
    if not result and not costs.forward_only:
        result = _anywhere(scaled, memory_limit)
    result = [dataclasses.replace(c, unit=unit) for c in result]
    result.sort(key=lambda c: (not c.fits, round(c.result.makespan, 6), c.peak, c.schedule.splits_backward))
    return result


def _one_per_mesh(costs: StageCosts, memory_limit: MemoryLimit | None) -> list[Schedule]:
    for limit in dict.fromkeys((memory_limit, None)):
        with contextlib.suppress(ScheduleError):  # nothing keeps to the limit; what comes closest is for the message
            meshes, count = costs.meshes, costs.microbatches
            result = search(costs.delays(), limit, meshes=meshes, microbatches=count, exact=False, effort=_EFFORT)
            return [c.schedule for c in result.candidates]
    return []


def _several(costs: StageCosts, memory_limit: MemoryLimit | None) -> list[Schedule]:
    """Return schedules with several stages per mesh: in a loop, a V, or two chains."""
    result = []
    for entry in ENTRIES if costs.chunks else ():
        chunks = costs.chunks if "chunks" in entry.options else None
        with contextlib.suppress(ScheduleError):  # not for these numbers
            result.append(
                get_schedule(
                    entry.name, costs.meshes, costs.microbatches, chunks=chunks, memory_limit=memory_limit, guard=False
                )
            )
    return result


def _anywhere(costs: StageCosts, memory_limit: MemoryLimit | None) -> list[Choice]:
    """Return schedules for the stages where they are, with more and more microbatches in flight, up to the fastest.

    Raises `MpmdError` for stages that form a cycle.
    """
    try:
        graph = StageGraph.from_edges(len(costs.mesh_of), costs.edges) if costs.edges else None
    except ScheduleError as error:
        raise MpmdError(
            f"no schedule has these stages, since {error}: what one of them computes reaches another one and comes "
            "back to it. Give the later computation a stage of its own, or move what is in between into the stage."
        ) from None
    result: list[Choice] = []
    for in_flight in _growing(costs.microbatches):
        made = training_passes(
            Placement(costs.meshes, costs.mesh_of), costs.microbatches, graph, costs.delays(), in_flight
        )
        choice = _choice(made, costs, memory_limit) if _suits(made, costs) else None
        if choice is None or (result and result[-1].result.makespan <= choice.result.makespan):
            break
        result.append(choice)
    return result


def _growing(limit: int) -> Iterator[int]:
    """Yield 1, 2, 3, and so on, in longer steps for larger numbers, up to the limit."""
    number = 1
    while number < limit:
        yield number
        number += max(1, number // 4)
    yield limit


def forward_schedule(costs: StageCosts) -> Schedule:
    """Return the schedule of a program without backwards: stages where they are, in their order and as they send."""
    placement = Placement(costs.meshes, costs.mesh_of)
    edges = {(min(p, s), max(p, s)) for p, s in costs.sends}
    graph = StageGraph.chain(len(costs.mesh_of)).with_skips(*sorted(edges))
    return forward_passes(placement, costs.microbatches, graph, costs.delays())


def _suits(schedule: Schedule, costs: StageCosts) -> bool:
    if schedule.placement.mesh_of != costs.mesh_of or schedule.forward_only:
        return False
    visits = costs.visits or (tuple(range(costs.microbatches)),) * len(costs.mesh_of)
    return all(tuple(schedule.microbatches_of(s)) == own for s, own in enumerate(visits) if own)


def _choice(schedule: Schedule, costs: StageCosts, memory_limit: MemoryLimit | None) -> Choice | None:
    """Return the schedule, played with these costs; None when it cannot run with transfers of that kind.

    Where the program overlaps, the schedule has the blocks that run as one program.
    """
    try:
        apart = schedule.with_graph(_graph(schedule, costs))
        whole = _with_blocks(apart, costs)
        result = simulate(whole, costs, transfers=costs.transfers)
        if whole.has_blocks and not apart.has_blocks and meshes_over(result.peak_activations, memory_limit):
            whole = apart  # a block holds the activations of both parts
            result = simulate(whole, costs, transfers=costs.transfers)
    except ScheduleError:
        return None
    if costs.overlap is not None:
        schedule = dataclasses.replace(schedule, orders=whole.orders)
    fits = not meshes_over(result.peak_activations, memory_limit)
    return Choice(schedule, result, fits, in_order=_in_order(schedule))


def _with_blocks(schedule: Schedule, costs: StageCosts) -> Schedule:
    """Return the schedule with the blocks that the program runs as one: its own or, if it has none, such as help."""
    if costs.overlap is None:
        return schedule.unfused()
    if not schedule.has_blocks:
        return overlapped(schedule, costs, transfers=costs.transfers) if costs.collectives else schedule
    if costs.overlap == "pairs":
        return schedule
    apart = schedule.unfused()
    times = [simulate(one, costs, transfers=costs.transfers).makespan for one in (schedule, apart)]
    return schedule if times[0] < times[1] * (1 - GAIN) else apart


#: The kinds under which a schedule may have what is an action of a program.
_SAME: dict[Kind, tuple[Kind, ...]] = {"B": ("B", "I", "W"), "I": ("I", "B"), "W": ("W", "B")}


def _blocks_again(order: Sequence[Step], blocks: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps of an order of plain actions, with those of each block in one again if they are together."""
    block_of = {part: block for block in blocks if len(block.parts) > 1 for part in block.parts}

    def find(action: Action) -> Step | None:
        keys = (dataclasses.replace(action, kind=kind) for kind in _SAME.get(action.kind, (action.kind,)))
        return next((block_of[key] for key in keys if key in block_of), None)

    for block, actions in itertools.groupby((part for step in order for part in step.parts), find):
        parts = list(actions)
        yield from parts if block is None or len(parts) == 1 else [fused(*parts)]


def replayed(choice: Choice, costs: StageCosts, orders: Sequence[Sequence[Step]]) -> Choice | None:
    """Return a choice with other orders of the same actions and its blocks; None where they do not make a schedule.

    A whole backward may stand for both of its parts.
    """
    rows = zip(orders, choice.schedule.orders, strict=True)
    changed = dataclasses.replace(choice.schedule, orders=tuple(tuple(_blocks_again(*row)) for row in rows))
    again = _choice(changed, costs.scaled(1.0 / choice.unit), None)
    return None if again is None else dataclasses.replace(again, unit=choice.unit, fits=choice.fits)


def _graph(schedule: Schedule, costs: StageCosts) -> StageGraph:
    """Return the data flow of the schedule and what the program sends besides; gradients go back along it."""
    known = {(p, s) for s, feeds in enumerate(schedule.graph.feeds) for p in feeds}
    more = {*((min(p, s), max(p, s)) for p, s in costs.sends), *costs.edges} - known
    return schedule.graph.with_skips(*sorted(more)) if more else schedule.graph


def _in_order(schedule: Schedule) -> bool:
    last: dict[tuple[int, str], int] = {}
    for _, _, action in schedule.actions():
        if action.kind in "BW":
            if last.get((action.stage, action.kind), -1) > action.microbatch:
                return False
            last[action.stage, action.kind] = action.microbatch
    return True


def best_schedule(
    costs: StageCosts, memory_limit: MemoryLimit | None = None, *, whole_backwards: bool = False
) -> Choice:
    """Return the fastest schedule that fits the memory and goes through the backwards in order.

    Among about equal ones that with the lowest peak; a schedule that splits backwards only when it is at
    least 2 % faster, with `whole_backwards` never.  Raises `MpmdError` when none fits.
    """
    usable = [c for c in rank_schedules(costs, memory_limit) if c.in_order]
    if whole_backwards:
        usable = [c for c in usable if not c.schedule.splits_backward]
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


def _nothing(costs: StageCosts, memory_limit: MemoryLimit | None, usable: Sequence[Choice]) -> str:
    if usable and memory_limit is not None:
        what = f"for {costs.meshes} meshes and {costs.microbatches} microbatches"
        return over_limit(what, memory_limit, {c.schedule.name: c.peak for c in reversed(usable)})
    stages = ", ".join(f"{s} on mesh {m}" for s, m in enumerate(costs.mesh_of))
    return (
        f"pipeline_schedule='auto' finds no schedule for these stages ({stages}) and {costs.microbatches} "
        "microbatches, of which not all run through all stages. Name a schedule that has these stages."
    )


def over_limit(what: str, memory_limit: MemoryLimit, peaks: Mapping[str, float]) -> str:
    """Return what to say where no schedule keeps to the limit; `peaks` are those of the ones that were tried."""
    lowest = min(peaks, key=peaks.__getitem__)
    each = [memory_limit] if isinstance(memory_limit, int | float) else memory_limit
    return (
        f"no schedule {what} keeps the activations of {', '.join(f'{limit:g}' for limit in each)} microbatches per "
        f"mesh; {lowest} comes closest with {peaks[lowest]:g}. Raise memory_limit or use more stages."
    )
