"""From a schedule, however it is given, to what the scheduling pass understands."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.frontend.errors import problem
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.compile_options import Overlap
from mpmd_trace.passes.fragment_info import is_scheduling_unit
from mpmd_trace.passes.mesh_order import device_meshes, schedulable_meshes
from mpmd_trace.passes.microbatches.action_order import ActionOrder, MeshOrders, for_inference
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Comparator, Order, find_schedule
from mpmd_trace.passes.placement.find_stages import comes_back, stage_edges
from mpmd_trace.schedules import MemoryLimit, Schedule, find_entry, get_schedule, meshes_over
from mpmd_trace.schedules import ScheduleError as LibraryError
from mpmd_trace.scheduling.auto_schedule import AutoSchedule, best_schedule, forward_schedule, program_costs
from mpmd_trace.scheduling.costs import hiding_of
from mpmd_trace.scheduling.stage_costs import StageCosts, stage_ranks
from mpmd_trace.scheduling.transfers import Links, over_network, values_of_module

if TYPE_CHECKING:
    from mpmd_trace.config import Config

#: The schedule that is made for the stages that a program has.
_FORWARD = "forward"
#: What is done where no schedule is asked for: each mesh runs its part of one microbatch after the other, forward and
#: backward, as the step is written and as `jax.jit` would.
PROGRAM_ORDER = "program order"


@dataclasses.dataclass(frozen=True)
class ScheduleChoice:
    """A schedule, as the scheduling pass is driven."""

    name: str
    order: Order = SCHEDULES["GPipe"]
    #: Whether weight gradients run apart from the rest, so that backwards are split.
    splits_backward: bool = False
    #: Whether it goes by the stages of a program, and in which order these visit the meshes: "no", "loop" or "v".
    stages: str = "no"
    #: Whether backward passes run from the last microbatch to the first, and sums of gradients with them.
    reverse_backward: bool = False
    #: Still to be made by `settle`, from the program.
    auto: AutoSchedule | None = None
    #: The schedule of each group of meshes, where each has one.
    parts: tuple[tuple[tuple[str, ...], ScheduleChoice], ...] = ()

    def limit_of(self, meshes: Sequence[str]) -> MemoryLimit | None:
        """Return the limit of "auto" for these meshes, of each group for its own."""
        if not self.parts:
            return None if self.auto is None else self.auto.limit_of(meshes)
        limits: dict[str, float] = {}
        for group, one in self.parts:
            own = [mesh for mesh in meshes if mesh in group]
            limit = one.limit_of(own)
            if limit is not None:
                limits |= (
                    dict.fromkeys(own, limit) if isinstance(limit, int | float) else dict(zip(own, limit, strict=True))
                )
        return tuple(limits.get(mesh, math.inf) for mesh in meshes) if limits else None

    @property
    def split_meshes(self) -> tuple[str, ...]:
        """The meshes whose schedule has weight gradients apart, where each group of meshes has one."""
        return tuple(mesh for group, one in self.parts if one.splits_backward for mesh in group)

    def simpler(self) -> Iterator[ScheduleChoice]:
        """Yield it with schedules that more programs can follow for the groups that have "auto"."""
        for name in ("1F1B", "GPipe"):
            plain = ScheduleChoice(name, SCHEDULES[name])
            yield _together([(own, one if one.auto is None else plain) for own, one in self.parts])


def resolve_schedule(config: Config, engine: str = "python") -> ScheduleChoice:
    """Return the schedule of a configuration: a name of the reference's or of the library's, a `Schedule`, "auto" or
    an `AutoSchedule`, such ones by groups of meshes, or a comparator `(unit, unit) -> bool` that says which of two
    fragments of a mesh runs first.  Without any it is the order of the program, or the reference's default with the
    engine "cpp".

    Raises `MpmdError` for a name that neither has, and for options that want something else than the schedule.
    """
    choice = _choice(config, engine)
    raise_errors(problem(text, config.where) for text in _conflicts(config, choice))
    return choice


def refusal(config: Config, microbatches: int) -> str | None:
    """Return why no program can follow the schedule of a configuration with so many microbatches; None if one can.

    Of the schedules of groups of meshes one has to have so many, since a loop may run on one of the groups.
    """
    wanted, meshes = config.pipeline_schedule, device_meshes(config.topology)  # those that the scheduler orders
    if not config.assigns_names:
        meshes = [mesh for mesh in meshes if mesh in config.assigned_meshes]
    if not isinstance(wanted, Mapping):
        return _refusal(wanted, len(meshes), microbatches)
    texts = []
    for key, one in wanted.items():
        group = (key,) if isinstance(key, str) else tuple(key)
        text = _refusal(one, len([mesh for mesh in group if mesh in meshes]), microbatches)
        if text is None:
            return None
        texts.append(f"on {', '.join(group)}: {text}")
    return "\n".join(texts)


def _refusal(wanted: Any, meshes: int, microbatches: int) -> str | None:
    if isinstance(wanted, Schedule) and wanted.microbatches != microbatches:
        return (
            f"the schedule '{wanted.name}' is for {wanted.microbatches} microbatches, but the program has "
            f"{microbatches}. Give both the same number."
        )
    if not isinstance(wanted, str) or wanted.lower() == "auto":
        return None
    entry = find_entry(wanted)
    if not entry.needs:
        return None
    try:
        get_schedule(entry.name, meshes, microbatches, guard=False)  # whose warnings come when it is scheduled
    except LibraryError as error:
        return f"{error}. Change the number of microbatches, or choose another pipeline_schedule."
    return None


def _conflicts(config: Config, choice: ScheduleChoice) -> Iterator[str]:
    """Yield why the schedule and the options cannot both be had."""
    wanted, option = config.pipeline_schedule, config.options.schedule
    if wanted is not None and option is not None:
        named = str(option)
        if not (isinstance(wanted, str) and wanted.lower() == named.lower()):
            yield (
                f"two schedules are asked for: '{choice.name}' by pipeline_schedule, {named!r} by the option "
                f"mpmd_pipeline_schedule; leave one of them out"
            )
    if choice.splits_backward and config.options.mpmd_split_bwd_fragments is False:
        yield (
            f"the schedule '{choice.name}' runs weight gradients apart from input gradients, for which backwards are "
            "split, but the option mpmd_split_bwd_fragments is False; leave the option out, or choose a schedule that "
            "keeps backwards whole, such as '1F1B'"
        )


def _choice(config: Config, engine: str) -> ScheduleChoice:
    wanted = config.pipeline_schedule
    if wanted is None:
        order = config.options.schedule
        if order is None and engine != "cpp":
            return ScheduleChoice(PROGRAM_ORDER, SCHEDULES["none"])
        order = order or SCHEDULES["GPipe"]
        return ScheduleChoice(str(order), order)
    if isinstance(wanted, str) and wanted.lower() == "auto":
        wanted = AutoSchedule()
    if isinstance(wanted, AutoSchedule):
        return ScheduleChoice("auto", auto=wanted)
    if isinstance(wanted, str):
        known = find_schedule(wanted)
        if known is not None:
            splits = known.name.startswith("ZeroBubble")
            return ScheduleChoice(known.name, known, splits, "loop" if known.by_stage else "no", known.reverse_backward)
        try:
            entry = find_entry(wanted)
        except LibraryError as error:
            known_names = ", ".join(SCHEDULES)
            raise MpmdError([problem(f"{error} (the reference's own names: {known_names})", config.where)]) from None
        example = get_schedule(entry.name, 2, 8)  # a size that every schedule can do
        made = _explicit(entry.name, lambda p, m, v: get_schedule(entry.name, p, m, chunks=v), entry.flow, example)
        return dataclasses.replace(made, auto=AutoSchedule()) if entry.name == _FORWARD else made
    if isinstance(wanted, Schedule):
        placed = wanted.placement.mesh_of
        stages: str = "no" if len(placed) == wanted.meshes else "v" if placed == placed[::-1] else "loop"
        return _explicit(wanted.name, lambda p, m, v: wanted, stages, wanted, meshes=wanted.meshes)
    if isinstance(wanted, Mapping):
        return _of_groups(wanted, config, engine)
    if callable(wanted):
        _check_comparator(wanted, config)
        name = getattr(wanted, "__name__", "comparator")
        return ScheduleChoice(name, Comparator(name, wanted))
    raise MpmdError(
        [
            problem(
                f"pipeline_schedule is a name, a Schedule or a comparator of two fragments, not {wanted!r}",
                config.where,
            )
        ]
    )


def _of_groups(wanted: Mapping[Any, Any], config: Config, engine: str) -> ScheduleChoice:
    """Return the schedules of groups of meshes.  Raises `MpmdError` unless each mesh is in one of them."""
    groups = [((key,) if isinstance(key, str) else key, one) for key, one in wanted.items()]
    if not all(isinstance(group, tuple) and group for group, _ in groups):
        example = 'pipeline_schedule={"vision": "GPipe", ("m0", "m1"): "1F1B"}'
        raise MpmdError([problem(f"a schedule is for a mesh or a tuple of meshes, as in {example}", config.where)])
    meshes = device_meshes(config.topology)
    named = [mesh for group, _ in groups for mesh in group]
    texts = [
        *(
            f"there is no mesh {mesh!r} for stages; there are: {', '.join(meshes)}"
            for mesh in named
            if mesh not in meshes
        ),
        *(f"mesh {mesh!r} has {named.count(mesh)} schedules; give it one" for mesh in meshes if named.count(mesh) > 1),
        *(f"mesh {mesh!r} has no schedule; put it into a group" for mesh in meshes if mesh not in named),
    ]
    for _, one in groups:
        if not isinstance(one, str | Schedule | AutoSchedule):
            texts.append(f"a group of meshes has a schedule, the name of one, or 'auto', not {one!r}")
    if texts:
        raise MpmdError([problem(f"pipeline_schedule: {text}", config.where) for text in texts])
    return _together(
        [(group, _choice(dataclasses.replace(config, pipeline_schedule=one), engine)) for group, one in groups]
    )


def _together(parts: Sequence[tuple[tuple[str, ...], ScheduleChoice]]) -> ScheduleChoice:
    order = MeshOrders.of([(group, one.order) for group, one in parts])
    kinds = [one.stages for _, one in parts]
    return ScheduleChoice(
        "; ".join(f"{', '.join(group)}: {one.name}" for group, one in parts),
        order,
        splits_backward=any(one.splits_backward for _, one in parts),
        stages=next((kind for kind in ("v", "loop") if kind in kinds), "no"),
        reverse_backward=any(one.reverse_backward for _, one in parts),
        auto=next((one.auto for _, one in parts if one.auto is not None), None),
        parts=tuple(parts),
    )


def _check_comparator(comparator: Callable[..., Any], config: Config) -> None:
    """Raise `MpmdError` for a function that cannot be called with two units."""
    try:
        inspect.signature(comparator).bind(None, None)
    except ValueError:
        return  # its signature is unknown
    except TypeError as error:
        wanted = "pipeline_schedule is a comparator of two fragments, (unit, unit) -> bool"
        message = f"{wanted}; this one cannot be called so: {error}"
        raise MpmdError([problem(message, config.where)]) from None


def settle(
    choice: ScheduleChoice,
    importing: Callable[[str], Module],
    config: Config,
    *,
    overlap: Overlap | None,
    group: tuple[str, ...] = (),
) -> ScheduleChoice:
    """Return the schedule that "auto" stands for, or "forward", for a program and the options and devices of a config.

    `importing` gives the program after the import phase, with its stages numbered as said; `overlap` says how
    fragments of several microbatches become one program (`PartitionRequest.overlap`); `group` are the meshes that it is
    for, all by default.  Without microbatches every schedule is the same one, GPipe; without backward passes
    there is one, "forward", made for the stages that the program has, which is GPipe again where each mesh has one.
    Raises `MpmdError` for "forward" and a program with backward passes.
    """
    if choice.parts:
        return _together(
            [
                (own, one if one.auto is None else settle(one, importing, config, overlap=overlap, group=own))
                for own, one in choice.parts
            ]
        )
    assert choice.auto is not None
    imported = importing(choice.stages)
    if choice.stages == "no" and comes_back(imported):
        imported = importing("loop")
    auto = choice.auto
    if auto.flops_per_second is not None:
        auto = dataclasses.replace(auto, links=over_network(auto.links or Links(), config.topology))
    costs = program_costs(imported, auto, hiding_of(config))
    topology = imported.main.topology
    assert topology is not None
    meshes = [mesh for mesh in schedulable_meshes(topology) if mesh in (group or topology.meshes)]
    busy = {op.mesh for op in imported.main.body if isinstance(op, FragmentOp) and is_scheduling_unit(op)}
    if costs is not None and len(costs.mesh_of) > len(set(costs.mesh_of)):
        costs = dataclasses.replace(costs, edges=tuple(sorted(_edges(imported))))
    if costs is not None:
        every = schedulable_meshes(topology)
        costs = costs.on_meshes([every.index(mesh) for mesh in meshes if mesh in busy])
    if costs is None or (costs.forward_only and choice.name != _FORWARD and len(costs.mesh_of) <= costs.meshes):
        return ScheduleChoice("GPipe", SCHEDULES["GPipe"])
    if costs.forward_only:
        made = forward_schedule(costs)
        return _explicit(made.name, lambda p, m, v: made, "loop", made)
    if choice.name == _FORWARD:
        raise MpmdError(for_inference(_FORWARD))
    several = len(costs.mesh_of) > costs.meshes
    whole = config.options.mpmd_split_bwd_fragments is False
    costs = dataclasses.replace(costs, overlap=overlap)
    limit = choice.auto.limit_of(meshes)
    if not isinstance(limit, int | float | None):
        limit = tuple(one for mesh, one in zip(meshes, limit, strict=True) if mesh in busy)
    if _has_encoders(costs) and not meshes_over([costs.meshes] * costs.meshes, limit):
        return ScheduleChoice("1F1B", SCHEDULES["1F1B"])
    best = best_schedule(costs, limit, whole_backwards=whole).schedule
    known = find_schedule(best.name) if costs.chunks == 1 and not best.has_blocks else None
    if known is not None:
        return ScheduleChoice(known.name, known)
    return _explicit(best.name, lambda p, m, v: best, "loop" if several else "no", best)


def _has_encoders(costs: StageCosts) -> bool:
    """Return whether some stages run the first microbatches alone, as encoders before a model do.

    Each loop then has a number of microbatches of its own, so its schedule has to be one for all numbers.
    """
    first = [own == tuple(range(len(own))) for own in costs.visits]
    is_uneven = len({len(own) for own in costs.visits if own}) > 1
    return is_uneven and all(first)


def _edges(imported: Module) -> set[tuple[int, int]]:
    """Return which stages need what others compute, as their places in the pipeline."""
    rank = stage_ranks(imported)
    uses = ((value.source, reader) for value in values_of_module(imported) for _, reader in value.uses)
    sent = {(one.stage, reader.stage) for one, reader in uses if one is not None and one.kind == reader.kind == "F"}
    edges = sent | stage_edges(imported)
    return {(rank[a], rank[b]) for a, b in edges if a in rank and b in rank and rank[a] != rank[b]}


def _explicit(
    name: str,
    make: Callable[[int, int, int | None], Schedule],
    stages: str,
    example: Schedule,
    meshes: int | None = None,
) -> ScheduleChoice:
    order = ActionOrder(name, make, meshes=meshes)
    return ScheduleChoice(name, order, example.splits_backward, stages, example.reverse_backward)
