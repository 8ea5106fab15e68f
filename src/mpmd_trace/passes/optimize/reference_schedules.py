"""The reference's pipeline schedules, as rules about pairs of fragments, and comparators of users.

A schedule is a few rules about the scheduling units of a mesh.  A rule can be asked about two units, as the reference
does (64 stages x 256 microbatches: 16 million pairs), and says the same of all units at once as `Constraints`:
chains of groups, single pairs, and "all of these before all of those", whose transitive closure is that of the pairs.

N: number of meshes, m: index of the mesh, c: call counter.  F: forward; B: backward, or the part of a split one
that has the gradients of inputs; W: the other part, with the gradients of weights.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from mpmd_trace.diagnostics.messages import MpmdError, did_you_mean


class ScheduleError(Exception):
    """A schedule cannot order two fragments; the message says why."""


@dataclasses.dataclass(eq=False, slots=True)  # not frozen: they are made by the thousand
class Unit:
    """What a schedule sees of a fragment.  `index` is its place in the block."""

    index: int
    mesh: str
    mesh_index: int | None  # None on a mesh that is no pipeline stage
    num_meshes: int
    transpose: int
    counter: int
    stage: int | None
    drops_transferred: bool  # the weight-gradient part of a split backward

    @property
    def m(self) -> int:
        """The mesh index.  Raises `ScheduleError` on a mesh that holds no stage."""
        if self.mesh_index is None:
            raise ScheduleError(
                f"mesh '{self.mesh}' is a host mesh and no pipeline stage, but fragments on it have to be "
                "ordered by the schedule; put these computations on a device mesh or call them once only"
            )
        return self.mesh_index


Predicate = Callable[[Unit, Unit], bool]


@dataclasses.dataclass
class Constraints:
    """Orders between the units of one mesh.

    `chains`: lists of groups; every unit of a group precedes those of the groups behind it.
    `edges`: single pairs.  `barriers`: all of the first before all of the second.  `blocks`: units that are to be one
    program, which those of the reference never are.
    """

    chains: list[list[list[Unit]]] = dataclasses.field(default_factory=list)
    edges: list[tuple[Unit, Unit]] = dataclasses.field(default_factory=list)
    barriers: list[tuple[list[Unit], list[Unit]]] = dataclasses.field(default_factory=list)
    blocks: list[list[Unit]] = dataclasses.field(default_factory=list)


# Rules.

Kind = Callable[[Unit], bool]


class Rule(Protocol):
    """Orders between units of one mesh, said of two units and of all."""

    def orders(self, a: Unit, b: Unit) -> bool:
        """Return whether `a` precedes `b`.  Raises `ScheduleError`."""

    def add_to(self, constraints: Constraints, units: Sequence[Unit]) -> None:
        """Say the same of all units.  Raises `ScheduleError` where two of them would be an error."""


@dataclasses.dataclass(frozen=True)
class ByKey:
    """Units come in the order of their keys; None is not ordered.  `clash` is the error for two equal keys."""

    key: Callable[[Unit], Any]
    clash: str | None = None

    def orders(self, a: Unit, b: Unit) -> bool:
        left, right = self.key(a), self.key(b)
        if left is None or right is None:
            return False
        if left == right and self.clash is not None:
            raise ScheduleError(self.clash.format(unit=a))
        return bool(left < right)

    def add_to(self, constraints: Constraints, units: Sequence[Unit]) -> None:
        groups: dict[Any, list[Unit]] = {}
        for unit in units:
            key = self.key(unit)
            if key is not None:
                groups.setdefault(key, []).append(unit)
        if self.clash is not None and any(len(group) > 1 for group in groups.values()):
            raise ScheduleError(self.clash)
        constraints.chains.append([groups[key] for key in sorted(groups)])


@dataclasses.dataclass(frozen=True)
class Lag:
    """A unit of the first kind precedes that of the second kind whose counter is less by `lag`."""

    first: Kind
    second: Kind
    lag: int

    def orders(self, a: Unit, b: Unit) -> bool:
        return self.first(a) and self.second(b) and a.counter == b.counter + self.lag

    def add_to(self, constraints: Constraints, units: Sequence[Unit]) -> None:
        firsts: dict[int, list[Unit]] = {}
        for unit in units:
            if self.first(unit):
                firsts.setdefault(unit.counter, []).append(unit)
        seconds = [unit for unit in units if self.second(unit)]
        constraints.edges += [(a, b) for b in seconds for a in firsts.get(b.counter + self.lag, ())]


@dataclasses.dataclass(frozen=True)
class Barrier:
    """All units of the first kind precede all of the second."""

    first: Kind
    second: Kind

    def orders(self, a: Unit, b: Unit) -> bool:
        return self.first(a) and self.second(b)

    def add_to(self, constraints: Constraints, units: Sequence[Unit]) -> None:
        constraints.barriers.append(([u for u in units if self.first(u)], [u for u in units if self.second(u)]))


def _f(u: Unit) -> bool:
    return u.transpose == 0


def _b(u: Unit) -> bool:
    return u.transpose == 1 and not u.drops_transferred


def _w(u: Unit) -> bool:
    return u.transpose == 1 and u.drops_transferred


def _b_or_w(u: Unit) -> bool:
    return u.transpose == 1


# Orders.


@dataclasses.dataclass(frozen=True)
class Order:
    """What says in which order the units of a mesh run; as text the name of a schedule."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Order:
        """Return the reference's schedule of this name.  Raises `MpmdError`."""
        result = find_schedule(text)
        if result is None:
            raise MpmdError(
                f"there is no schedule '{text}'{did_you_mean(text, SCHEDULES) or '; known: ' + ', '.join(SCHEDULES)}"
            )
        return result

    def before(self, a: Unit, b: Unit) -> bool:
        """Return whether unit `a` must precede `b`, another one of its mesh.  Raises `ScheduleError`."""
        raise NotImplementedError

    def constraints(self, units: Sequence[Unit]) -> Constraints | None:
        """Return the order of the units of a mesh, all at once; None when pairs have to be asked."""
        return None

    @property
    def is_steady(self) -> bool:
        """True if most microbatches of a long loop are treated alike, one after the other."""
        return True

    def without(self, microbatches: int) -> Self:
        """Return the order of a program that still goes without so many microbatches of the schedule."""
        return self

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Schedule(Order):
    """A schedule of the reference.

    rules: the rules for a mesh, of which a unit is given.
    by_stage: whether units without a stage are not ordered.
    reverse_backward: whether backward passes run from the last microbatch to the first.
    """

    rules: Callable[[Unit], Sequence[Rule]]
    by_stage: bool = False
    reverse_backward: bool = False

    def before(self, a: Unit, b: Unit) -> bool:
        return any(rule.orders(a, b) for rule in self.rules(a))

    def constraints(self, units: Sequence[Unit]) -> Constraints | None:
        result = Constraints()
        try:
            for rule in self.rules(units[0]):
                rule.add_to(result, units)
        except ScheduleError:  # an error only for units that do not depend on each other
            return None
        return result


@dataclasses.dataclass(frozen=True)
class Comparator(Order):
    """A function of the user's: whether the first of two units must precede the second."""

    function: Predicate
    is_steady = False

    def before(self, a: Unit, b: Unit) -> bool:
        return self.function(a, b)


# The schedules.


def _none(unit: Unit) -> Sequence[Rule]:
    return ()


def _gpipe(unit: Unit) -> Sequence[Rule]:
    return (ByKey(lambda u: (u.transpose, u.counter)),)


def _one_f_one_b(unit: Unit) -> Sequence[Rule]:
    n, m = unit.num_meshes, unit.m
    return (
        ByKey(lambda u: u.counter if _f(u) else None),
        ByKey(lambda u: u.counter if _b_or_w(u) else None),
        Lag(_b_or_w, _f, m - n),
        Lag(_f, _b_or_w, n - m - 1),
    )


def _gpipe_but_1f1b_for_last_mesh(unit: Unit) -> Sequence[Rule]:
    return _one_f_one_b(unit) if unit.m == unit.num_meshes - 1 else _gpipe(unit)


def _zero_bubble_h1(unit: Unit) -> Sequence[Rule]:
    n, m = unit.num_meshes, unit.m
    return (Lag(_b, _f, m - n), Lag(_f, _b, n - m - 1), Lag(_w, _f, -n), Lag(_b, _w, m), Lag(_w, _b, -(m + 1)))


def _zero_bubble_h2(latency: float) -> Callable[[Unit], Sequence[Rule]]:
    """`latency`: time of a transfer over the time of a stage."""

    def warm_up(n: int, i: int) -> int:
        return math.floor(2 * (n - i) - 1 + 2 * (n - i - 1) * latency)

    def rules(unit: Unit) -> Sequence[Rule]:
        n, m = unit.num_meshes, unit.m
        entry, cool = warm_up(n, m), warm_up(n, n - m - 1)

        def late(u: Unit) -> bool:
            return u.transpose == 0 and u.counter >= entry

        return (
            Barrier(lambda u: u.transpose == 0 and u.counter < entry, _b_or_w),
            Lag(_b, late, -entry),
            Lag(late, _b, entry - 1),
            Lag(_b, _w, cool - 1),
            Lag(_w, _b, -cool),
        )

    return rules


def _circular(reverse_backward: bool) -> Callable[[Unit], Sequence[Rule]]:
    """Return an order in rounds of N microbatches, each stage by stage; backwards by falling stages, or reversed.

    The second half of a split backward comes right behind the first.
    """

    def key(u: Unit) -> tuple[int, ...] | None:
        if u.stage is None:
            return None
        stage = -u.stage if u.transpose == 1 and not reverse_backward else u.stage
        sign = -1 if u.transpose == 1 and reverse_backward else 1
        return (u.transpose, sign * (u.counter // u.num_meshes), sign * stage, sign * u.counter, u.drops_transferred)

    clash = (
        "two fragments of mesh '{unit.mesh}' have the same stage {unit.stage}, call counter {unit.counter} and "
        "direction, so the circular schedule cannot order them; give them different stages or merge them into one"
    )
    return lambda unit: (ByKey(key, clash),)


def _number_in(mesh: str) -> int:
    match = re.search(r"\d", mesh)
    digits = mesh[match.start() :] if match else ""
    if not digits.isdigit():
        raise ScheduleError(
            f"ParallelPipelinesWithWrapAround numbers the pipelines by the names of the meshes, but '{mesh}' "
            "does not end in a number behind its first digit; call the meshes m0, m1, ..."
        )
    return int(digits)


def _parallel_pipelines(unit: Unit) -> Sequence[Rule]:
    """On mesh k first microbatch k, then those before it and then those behind it, both backwards."""

    def key(u: Unit) -> tuple[int, int]:
        if u.transpose != 0:
            raise ScheduleError("ParallelPipelinesWithWrapAround is for forward-only programs")
        k = _number_in(u.mesh)
        return (0 if u.counter == k else 1 if u.counter < k else 2, -u.counter)

    clash = (
        "two fragments of mesh '{unit.mesh}' have the same call counter {unit.counter}, so "
        "ParallelPipelinesWithWrapAround cannot order them"
    )
    return (ByKey(key, clash),)


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("none", _none),
        Schedule("1F1B", _one_f_one_b),
        Schedule("GPipe", _gpipe),
        Schedule("Circular", _circular(False), by_stage=True),
        Schedule("CircularWithReversedBackward", _circular(True), by_stage=True, reverse_backward=True),
        Schedule("GPipeBut1F1BForLastMesh", _gpipe_but_1f1b_for_last_mesh),
        Schedule("ZeroBubbleH1", _zero_bubble_h1),
        Schedule("ZeroBubbleH2ZeroTxLatency", _zero_bubble_h2(0.0)),
        Schedule("ZeroBubbleH2HalfTxLatency", _zero_bubble_h2(0.5)),
        Schedule("ZeroBubbleH2FullTxLatency", _zero_bubble_h2(1.0)),
        Schedule("ParallelPipelinesWithWrapAround", _parallel_pipelines),
    )
}


def find_schedule(name: str) -> Schedule | None:
    """Return the reference's schedule of this name, found without regard to case; None for an unknown one."""
    folded = {known.lower(): schedule for known, schedule in SCHEDULES.items()}
    return folded.get(name.lower())
