"""Orders of fragments by the lists of actions of a schedule of the library."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Self, TypeAlias

from mpmd_trace.passes.optimize.reference_schedules import Constraints, Order, ScheduleError, Unit
from mpmd_trace.passes.optimize.reference_schedules import Schedule as ReferenceSchedule

if TYPE_CHECKING:
    from mpmd_trace.schedules import Schedule

#: `make(meshes, microbatches, chunks)`, with None for one chunk.
Make: TypeAlias = "Callable[[int, int, int | None], Schedule]"


@dataclasses.dataclass(eq=False, slots=True)
class RepeatedUnit(Unit):
    """A unit of one of several loops, or of what a mesh does several times for one microbatch, forward and backward.

    `time`: which of the `times` it is.  `stages`: those of its mesh in all loops.
    """

    loop: int = 0
    time: int = 0
    times: int = 1
    stages: tuple[int | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class ActionOrder(Order):
    """The order of the actions of a schedule, which are matched with units by kind, microbatch and stage.

    reference: the schedule of the reference that has its name.  Such ones order whatever stages a program has; others
        refuse programs with other stages than theirs.
    """

    make: Make
    reference: ReferenceSchedule | None = None
    #: Whether the stages of its meshes have the numbers of the schedule; not in a part of a pipeline.
    is_whole: bool = True
    #: How many meshes it is for, where that was said.
    meshes: int | None = None
    #: How many of the microbatches of a step the program goes without until `mpmd-repeat-steady-state` puts them in.
    omitted: int = 0

    @property
    def is_steady(self) -> bool:
        example = self.make(2, 20, None)  # or the one that was made before
        return example.without(2 * example.meshes) is not None

    def without(self, microbatches: int) -> Self:
        return dataclasses.replace(self, omitted=microbatches)

    @classmethod
    @functools.cache  # so that equal ones are equal
    def of(cls, schedule: ReferenceSchedule) -> Self:
        """Return the schedule of the library for one of the reference's."""

        def make(meshes: int, microbatches: int, chunks: int | None) -> Schedule:
            from mpmd_trace.schedules import find_entry, get_schedule  # commands that list passes start without it

            return get_schedule(
                find_entry(schedule.name).name,
                meshes,
                microbatches,
                chunks=(chunks or 1) if schedule.by_stage else None,
                check=False,
            )

        return cls(schedule.name, make, schedule)

    @property
    def repeats(self) -> bool:
        """True if it also orders what a mesh does several times for a microbatch."""
        return self.name.lower() == "1f1b"

    @functools.cached_property
    def _made(self) -> dict[tuple[int, int, int | None], Schedule]:
        return {}

    @property
    def by_stage(self) -> bool:
        """True if it tells the stages of a mesh apart."""
        return self.reference is None or self.reference.by_stage

    def before(self, a: Unit, b: Unit) -> bool:
        return self.reference is not None and self.reference.before(a, b)

    def constraints(self, units: Sequence[Unit]) -> Constraints | None:
        if self.reference is not None and not self._tells_of(units):
            return self.reference.constraints(units)
        mesh = units[0].m
        if isinstance(units[0], RepeatedUnit) and units[0].times > 1:
            return _repeated_1f1b(units)
        stages: Sequence[int] = ()
        if self.by_stage:
            own = units[0].stages if isinstance(units[0], RepeatedUnit) else [u.stage for u in units]
            stages = sorted({stage for stage in own if stage is not None})
        return self._as_scheduled(self._schedule(units, len(stages)), mesh, units, stages)

    def _tells_of(self, units: Sequence[Unit]) -> bool:
        """Return whether the library's list does: not of a host mesh, nor, for inference, of backward passes."""
        from mpmd_trace.schedules import find_entry  # as above

        is_training = any(unit.transpose for unit in units)
        return units[0].mesh_index is not None and not (is_training and find_entry(self.name).forward_only)

    def _schedule(self, units: Sequence[Unit], stages: int) -> Schedule:
        """Return the schedule at the size of the program."""
        from mpmd_trace.schedules import ScheduleError as LibraryError  # as above

        chunks = max(stages, 1)
        meshes, microbatches = units[0].num_meshes, max(u.counter for u in units) + 1 + self.omitted
        key = (meshes, microbatches, chunks if chunks > 1 else None)
        if key in self._made:
            return self._made[key]
        try:
            schedule = self.make(*key)
        except LibraryError as error:
            raise ScheduleError(
                f"{error} (the program has {meshes} meshes, {microbatches} microbatches, "
                f"{chunks} stages on mesh '{units[0].mesh}')"
            ) from None
        if schedule.meshes != meshes or schedule.microbatches != microbatches:
            raise ScheduleError(
                f"the schedule is for {schedule.meshes} meshes and {schedule.microbatches} microbatches, but "
                f"the program has {meshes} and {microbatches}"
            )
        left = schedule.without(self.omitted) if self.omitted else schedule
        if left is None:
            raise ScheduleError(f"the schedule does not treat {self.omitted} microbatches alike")
        self._made[key] = left
        return left

    def _as_scheduled(self, schedule: Schedule, mesh: int, units: Sequence[Unit], stages: Sequence[int]) -> Constraints:
        """Return the order of the units of the mesh, which is that of its actions, and its blocks."""
        if self.reference is None and schedule.forward_only and any(unit.transpose for unit in units):
            raise ScheduleError(for_inference(schedule.name))
        own = schedule.placement.stages_on[mesh]
        if self.reference is None:
            _check_stages(schedule, own, units[0].mesh, stages, self.is_whole)
        rank = {stage: i for i, stage in enumerate(stages)}
        waiting: dict[tuple[int, str, int], list[Unit]] = {}
        for unit in units:
            kind = "F" if unit.transpose == 0 else "W" if unit.drops_transferred else "B"
            waiting.setdefault((rank.get(unit.stage, 0), kind, unit.counter), []).append(unit)  # type: ignore[arg-type]
        chain: list[list[Unit]] = []
        parts = [_PARTS] * len(own)
        for chunk, stage in enumerate(own):
            # Nothing waits for the backward of a stage without inputs: all of it is weight gradient.
            if not schedule.graph.feeds[stage] and not any(c == chunk and k == "W" for c, k, _ in waiting):
                parts[chunk] = _PARTS_OF_FIRST
        chunk_of = {stage: chunk for chunk, stage in enumerate(own)}
        blocks: list[list[Unit]] = []
        for step in schedule.orders[mesh]:
            block: list[list[Unit]] = []
            for action in step.parts:
                chunk = chunk_of[action.stage]
                units_of_parts = [
                    waiting.pop((chunk, part, action.microbatch), []) for part in parts[chunk][action.kind]
                ]
                chain += filter(None, units_of_parts)
                block += filter(None, [list(itertools.chain.from_iterable(units_of_parts))])
            if len(block) > 1:
                blocks.append(list(itertools.chain.from_iterable(block)))
        if waiting:
            (chunk, kind, microbatch), left = next(iter(waiting.items()))
            count = "a fragment" if len(waiting) == 1 else f"{len(waiting)} fragments"
            raise ScheduleError(
                f"schedule '{schedule.name}' has no action for {count} of mesh "
                f"'{left[0].mesh}', for example {kind} of microbatch {microbatch}, chunk {chunk}"
            )
        return Constraints(chains=[chain], blocks=blocks)


def as_listed(order: Order) -> Order:
    """Return the schedule of the library for one of the reference's; other orders stay as they are."""
    is_listed = isinstance(order, ReferenceSchedule) and order.name != "none"
    return ActionOrder.of(order) if is_listed else order


@dataclasses.dataclass(frozen=True)
class MeshOrders(Order):
    """An order for each group of meshes, as for towers and the model behind them: each is a pipeline of its own."""

    orders: tuple[tuple[tuple[str, ...], Order], ...]

    @classmethod
    def of(cls, orders: Sequence[tuple[tuple[str, ...], Order]]) -> Self:
        """Return the orders; their name lists the groups."""
        parts = []
        for meshes, order in orders:
            if isinstance(order, ActionOrder):
                order = dataclasses.replace(order, is_whole=False)
            parts.append((meshes, as_listed(order)))
        return cls("; ".join(f"{', '.join(meshes)}: {order}" for meshes, order in parts), tuple(parts))

    def of_mesh(self, mesh: str) -> tuple[tuple[str, ...], Order | None]:
        """Return the group of a mesh and the order there, if it is in one."""
        return next(((meshes, order) for meshes, order in self.orders if mesh in meshes), ((), None))

    @property
    def is_steady(self) -> bool:
        return all(order.is_steady for _, order in self.orders)

    def without(self, microbatches: int) -> Self:
        parts = tuple((meshes, order.without(microbatches)) for meshes, order in self.orders)
        return dataclasses.replace(self, orders=parts)

    def before(self, a: Unit, b: Unit) -> bool:
        _, order = self.of_mesh(a.mesh)
        return order is not None and order.before(a, b)

    def constraints(self, units: Sequence[Unit]) -> Constraints | None:
        meshes, order = self.of_mesh(units[0].mesh)
        if order is None:
            return Constraints()
        try:
            return order.constraints(units)
        except ScheduleError as error:
            raise type(error)(f"on {', '.join(meshes)}: {error}") from None


def number_by_pipeline(units: Collection[Unit], meshes: Sequence[str], order: Order) -> None:
    """Give each unit the number of its mesh among those of its pipeline: the meshes of its group that have units.

    All meshes of a group count where its schedule is one for as many.  `meshes` are all of them, in their order.
    """
    busy = {unit.mesh for unit in units}
    places: dict[str, tuple[int, int]] = {}
    for mesh in meshes:
        group, own = order.of_mesh(mesh) if isinstance(order, MeshOrders) else (meshes, order)
        names = [name for name in meshes if name in group]
        if not (isinstance(own, ActionOrder) and own.meshes == len(names)):
            names = [name for name in names if name in busy]
        if mesh in names:
            places[mesh] = names.index(mesh), len(names)
    for unit in units:
        unit.mesh_index, unit.num_meshes = places.get(unit.mesh, (unit.mesh_index, unit.num_meshes))


def for_inference(name: str) -> str:
    """Return why a schedule of forward passes alone cannot order a training step."""
    return (
        f'the schedule \'{name}\' is for programs without backward passes, and this one has some; "1F1B" or "auto" '
        "are for both"
    )


#: The units that an action runs.  A backward action takes both parts of a split backward; an input-gradient
#: action takes the whole backward where the program could not be split.
_PARTS = {"F": "F", "I": "B", "W": "W", "B": "BW", "O": ""}
_PARTS_OF_FIRST = {**_PARTS, "I": "", "W": "BW"}


class StagesError(ScheduleError):
    """A schedule has other stages on a mesh than the program."""


def _check_stages(schedule: Schedule, own: Sequence[int], mesh: str, stages: Sequence[int], is_whole: bool) -> None:
    """Raise `StagesError` for a program whose stages on a mesh are not those of the schedule, `own`."""
    if len(own) != len(stages) and (stages or len(own) > 1):
        there = f"{len(stages)} there ({', '.join(map(str, stages))})" if stages else "one there, without a number"
        raise StagesError(
            f"schedule '{schedule.name}' puts {len(own)} stages on mesh '{mesh}', but the program has {there}; assign "
            "as many stages, or choose another schedule"
        )
    if is_whole and len(own) > 1 and stages and tuple(stages) != tuple(own) and stages[-1] < schedule.stages:
        wanted = ", ".join(map(str, own))
        placed = ", ".join(map(str, schedule.placement.mesh_of))
        raise StagesError(
            f"schedule '{schedule.name}' has the stages {wanted} on mesh '{mesh}', but the program "
            f"has {', '.join(map(str, stages))} there; assign the names as (mesh, stage) so that the "
            f"meshes of stages 0 to {schedule.stages - 1} are number {placed}"
        )


def _repeated_1f1b(units: Sequence[Unit]) -> Constraints:
    """1F1B of as many microbatches as there are meshes at a time, each of them forward and backward several times.

    Forwards have the even slots of mesh 0 and backwards the odd ones: no more activations are kept than if they did
    it once.
    """
    n, m = units[0].num_meshes, units[0].m
    slots: dict[int, list[Unit]] = {}
    for u in units:
        assert isinstance(u, RepeatedUnit)
        slot = n * (u.counter // n * u.times + u.time) + u.counter % n
        slots.setdefault(2 * slot + (m if u.transpose == 0 else 2 * n - 1 - m), []).append(u)
    return Constraints(chains=[[slots[slot] for slot in sorted(slots)]])
