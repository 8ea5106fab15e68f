"""The reference's pipeline schedules: which of two fragments of a mesh must run first.

A schedule is a predicate over pairs of scheduling units.  All pairs of a mesh are too many to look at
(64 stages x 256 microbatches: 16 million), so each built-in schedule also says the same in another way, as
`Constraints`: chains of groups, equalities between counters, and "all of these before all of those".  Their
transitive closure is that of the predicate; a test compares them.

N: number of meshes, m: index of the mesh, t: transpose count (0 forward, 1 backward), c: call counter.
Source: section 1.3 of the optimise specification.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "SCHEDULES",
    "Constraints",
    "Predicate",
    "ScheduleError",
    "Sparse",
    "Unit",
    "find_schedule",
]


class ScheduleError(Exception):
    """A schedule cannot order two fragments; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
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
    `edges`: single pairs.  `barriers`: all of the first before all of the second.
    """

    chains: list[list[list[Unit]]] = dataclasses.field(default_factory=list)
    edges: list[tuple[Unit, Unit]] = dataclasses.field(default_factory=list)
    barriers: list[tuple[list[Unit], list[Unit]]] = dataclasses.field(default_factory=list)


#: Units of one mesh -> constraints; None when the predicate has to be asked pair by pair.
Sparse = Callable[[Sequence[Unit]], Constraints | None]


def _grouped(units: Sequence[Unit], key: Callable[[Unit], Any]) -> list[list[Unit]]:
    groups: dict[Any, list[Unit]] = {}
    for unit in units:
        groups.setdefault(key(unit), []).append(unit)
    return [groups[k] for k in sorted(groups)]


def _by_counter(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    found: dict[int, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.counter, []).append(unit)
    return found


def _matched(
    firsts: Sequence[Unit], seconds: Sequence[Unit], wanted: Callable[[Unit], int]
) -> list[tuple[Unit, Unit]]:
    """Pairs (a, b) with c_a == wanted(b)."""
    table = _by_counter(firsts)
    return [(a, b) for b in seconds for a in table.get(wanted(b), ())]


def _split(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit], list[Unit]]:
    """Forward units, backward ones, and the weight-gradient ones among these."""
    forward = [u for u in units if u.transpose == 0]
    backward = [u for u in units if u.transpose == 1 and not u.drops_transferred]
    weight = [u for u in units if u.transpose == 1 and u.drops_transferred]
    return forward, backward, weight


def _on_stages(units: Sequence[Unit]) -> bool:
    return all(u.mesh_index is not None for u in units)


def none(a: Unit, b: Unit) -> bool:
    return False


def _none_sparse(units: Sequence[Unit]) -> Constraints | None:
    return Constraints()


def one_f_one_b(a: Unit, b: Unit) -> bool:
    n, m = a.num_meshes, a.m
    if a.transpose == 1 and b.transpose == 0:
        return a.counter == b.counter - n + m
    if a.transpose == 0 and b.transpose == 1:
        return a.counter == b.counter + n - (m + 1)
    return a.counter < b.counter


def _one_f_one_b_sparse(units: Sequence[Unit]) -> Constraints | None:
    if not _on_stages(units):
        return None
    forward = [u for u in units if u.transpose == 0]
    backward = [u for u in units if u.transpose == 1]
    n, m = units[0].num_meshes, units[0].m
    return Constraints(
        chains=[_grouped(forward, lambda u: u.counter), _grouped(backward, lambda u: u.counter)],
        edges=[
            *_matched(backward, forward, lambda b: b.counter - n + m),
            *_matched(forward, backward, lambda b: b.counter + n - (m + 1)),
        ],
    )


def gpipe(a: Unit, b: Unit) -> bool:
    return (a.transpose, a.counter) < (b.transpose, b.counter)


def _gpipe_sparse(units: Sequence[Unit]) -> Constraints | None:
    return Constraints(chains=[_grouped(units, lambda u: (u.transpose, u.counter))])


def gpipe_but_1f1b_for_last_mesh(a: Unit, b: Unit) -> bool:
    return one_f_one_b(a, b) if a.m == a.num_meshes - 1 else gpipe(a, b)


def _gpipe_but_sparse(units: Sequence[Unit]) -> Constraints | None:
    if not _on_stages(units):
        return None
    last = units[0].m == units[0].num_meshes - 1
    return _one_f_one_b_sparse(units) if last else _gpipe_sparse(units)


def zero_bubble_h1(a: Unit, b: Unit) -> bool:
    n, m = a.num_meshes, a.m
    ta, tb, wa, wb = a.transpose, b.transpose, a.drops_transferred, b.drops_transferred
    if ta == 1 and not wa and tb == 0:
        return a.counter == b.counter - n + m
    if ta == 0 and tb == 1 and not wb:
        return a.counter == b.counter + n - (m + 1)
    if ta == 1 and (wa or m == 0) and tb == 0:
        return b.counter - a.counter == n
    if ta == 1 and not wa and tb == 1 and wb:
        return a.counter - b.counter == m
    if ta == 1 and wa and tb == 1 and not wb:
        return b.counter - a.counter == m + 1
    return False


def _zero_bubble_h1_sparse(units: Sequence[Unit]) -> Constraints | None:
    if not _on_stages(units):
        return None
    forward, backward, weight = _split(units)
    n, m = units[0].num_meshes, units[0].m
    return Constraints(
        edges=[
            *_matched(backward, forward, lambda b: b.counter - n + m),
            *_matched(forward, backward, lambda b: b.counter + n - (m + 1)),
            *_matched(weight, forward, lambda b: b.counter - n),
            *_matched(backward, weight, lambda b: b.counter + m),
            *_matched(weight, backward, lambda b: b.counter - (m + 1)),
        ]
    )


def _zero_bubble_h2(latency: float) -> tuple[Predicate, Sparse]:
    """`latency`: time of a transfer over the time of a stage."""

    def warm_up(n: int, i: int) -> int:
        return math.floor(2 * (n - i) - 1 + 2 * (n - i - 1) * latency)

    def before(a: Unit, b: Unit) -> bool:
        n, m = a.num_meshes, a.m
        ta, tb, wa, wb = a.transpose, b.transpose, a.drops_transferred, b.drops_transferred
        entry, cool = warm_up(n, m), warm_up(n, n - m - 1)
        if ta == 0 and tb == 1 and a.counter < entry:
            return True
        if ta == 1 and not wa and tb == 0 and b.counter >= entry:
            return b.counter - a.counter == entry
        if ta == 0 and a.counter >= entry and tb == 1 and not wb:
            return a.counter - b.counter == entry - 1
        if ta == 1 and not wa and tb == 1 and wb:
            return a.counter - b.counter == cool - 1
        if ta == 1 and wa and tb == 1 and not wb:
            return b.counter - a.counter == cool
        return False

    def sparse(units: Sequence[Unit]) -> Constraints | None:
        if not _on_stages(units):
            return None
        forward, backward, weight = _split(units)
        n, m = units[0].num_meshes, units[0].m
        entry, cool = warm_up(n, m), warm_up(n, n - m - 1)
        late = [u for u in forward if u.counter >= entry]
        return Constraints(
            barriers=[([u for u in forward if u.counter < entry], [*backward, *weight])],
            edges=[
                *_matched(backward, late, lambda b: b.counter - entry),
                *_matched(late, backward, lambda b: b.counter + entry - 1),
                *_matched(backward, weight, lambda b: b.counter + cool - 1),
                *_matched(weight, backward, lambda b: b.counter - cool),
            ],
        )

    return before, sparse


def _circular(reverse_backward: bool) -> tuple[Predicate, Sparse]:
    def key(u: Unit) -> tuple[int, int, int]:
        assert u.stage is not None
        stage = -u.stage if u.transpose == 1 and not reverse_backward else u.stage
        found = (u.counter // u.num_meshes, stage, u.counter)
        if u.transpose == 1 and reverse_backward:
            return (-found[0], -found[1], -found[2])
        return found

    def before(a: Unit, b: Unit) -> bool:
        if a.stage is None or b.stage is None:
            return False
        if a.transpose != b.transpose:
            return a.transpose < b.transpose
        if key(a) == key(b):
            raise ScheduleError(
                f"two fragments of mesh '{a.mesh}' have the same stage {a.stage}, call counter {a.counter} "
                "and direction, so the circular schedule cannot order them; give them different stages or "
                "merge them into one"
            )
        return key(a) < key(b)

    def sparse(units: Sequence[Unit]) -> Constraints | None:
        staged = [u for u in units if u.stage is not None]
        groups = _grouped(staged, lambda u: (u.transpose, key(u)))
        if any(len(g) > 1 for g in groups):
            return None
        return Constraints(chains=[groups])

    return before, sparse


def _number_in(mesh: str) -> int:
    match = re.search(r"\d", mesh)
    digits = mesh[match.start() :] if match else ""
    if not digits.isdigit():
        raise ScheduleError(
            f"ParallelPipelinesWithWrapAround numbers the pipelines by the names of the meshes, but '{mesh}' "
            "does not end in a number behind its first digit; call the meshes m0, m1, ..."
        )
    return int(digits)


def parallel_pipelines(a: Unit, b: Unit) -> bool:
    for unit in (a, b):
        if unit.transpose != 0:
            raise ScheduleError("ParallelPipelinesWithWrapAround is for forward-only programs")
    if a.counter == b.counter:
        raise ScheduleError(
            f"two fragments of mesh '{a.mesh}' have the same call counter {a.counter}, so "
            "ParallelPipelinesWithWrapAround cannot order them"
        )
    k = _number_in(a.mesh)
    if k in (a.counter, b.counter):
        return a.counter == k
    if (a.counter < k) == (b.counter < k):
        return a.counter > b.counter
    return a.counter < b.counter


def _parallel_pipelines_sparse(units: Sequence[Unit]) -> Constraints | None:
    try:
        k = _number_in(units[0].mesh)
    except ScheduleError:
        return None

    def rank(u: Unit) -> tuple[int, int]:
        if u.counter == k:
            return (0, 0)
        return (1, -u.counter) if u.counter < k else (2, -u.counter)

    groups = _grouped(units, rank)
    if any(u.transpose for u in units) or any(len(g) > 1 for g in groups):
        return None
    return Constraints(chains=[groups])


#: Schedule name -> (predicate, the same as constraints).
SCHEDULES: dict[str, tuple[Predicate, Sparse]] = {
    "none": (none, _none_sparse),
    "1F1B": (one_f_one_b, _one_f_one_b_sparse),
    "GPipe": (gpipe, _gpipe_sparse),
    "Circular": _circular(False),
    "CircularWithReversedBackward": _circular(True),
    "GPipeBut1F1BForLastMesh": (gpipe_but_1f1b_for_last_mesh, _gpipe_but_sparse),
    "ZeroBubbleH1": (zero_bubble_h1, _zero_bubble_h1_sparse),
    "ZeroBubbleH2ZeroTxLatency": _zero_bubble_h2(0.0),
    "ZeroBubbleH2HalfTxLatency": _zero_bubble_h2(0.5),
    "ZeroBubbleH2FullTxLatency": _zero_bubble_h2(1.0),
    "ParallelPipelinesWithWrapAround": (parallel_pipelines, _parallel_pipelines_sparse),
}


def find_schedule(name: str) -> str | None:
    """The schedule's name as we write it, found without regard to case; None for an unknown one."""
    folded = {known.lower(): known for known in SCHEDULES}
    return folded.get(name.lower())
