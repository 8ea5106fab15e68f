"""The report of a placement: what each mesh holds, and what moves between meshes, as data and as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from mpmd_trace.diagnostics.tables import Shown, Table, in_units

Role = Literal["parameters", "state", "arguments"]
Cause = Literal[
    "activations",
    "cotangents",
    "parameters",
    "gradients",
    "state",
    "arguments",
    "small",
    "unnamed code",
    "host memory",
    "within a mesh",
]
#: In the order of tables.
CAUSES: dict[Cause, str] = {
    "activations": "from a forward to a later one, or to a backward",
    "cotangents": "from a backward to an earlier one",
    "parameters": "a parameter that another mesh uses, too",
    "gradients": "of parameters, to where they are added or used",
    "state": "of the optimizer, and updates that are sent back",
    "arguments": "the batch, keys, frozen weights",
    "small": "scalars, and other arrays of at most 64 bytes",
    "unnamed code": "other values that unnamed code computes or reads",
    "host memory": "to the memory of the host, or from there",
    "within a mesh": "to another sharding",
}
#: Values of at most so many bytes on a device are free to go where they are needed.
SMALL = 64


@dataclasses.dataclass(frozen=True)
class MeshMemory:
    """The memory of a device of a mesh, in bytes.

    `parameters`, `state` and `arguments` are there at the start; `gradients` (arrays of the type of a parameter there
    that backwards made, or with a part of it for each device), `hoisted` (gathered and cast parameters, and what else
    is computed once for all microbatches), `temporary` (the scratch memory of the program that runs then) and
    `activations` (all else) at the `peak`, which is the sum.  Where meshes share devices the `peak` is that of these;
    all else is what this mesh has of it.
    """

    mesh: str
    parameters: int
    state: int
    arguments: int
    gradients: int
    activations: int
    peak: int
    hoisted: int = 0
    temporary: int = 0


@dataclasses.dataclass(frozen=True)
class Traffic:
    """A value that is sent from a mesh to another one: how often in a step, and the bytes of all of it."""

    what: str
    cause: Cause
    source: str
    target: str
    times: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class MisplacedParam:
    """A parameter that is not on a mesh where a step uses it; `bytes` are those of the array on its devices.

    Or the state of a parameter `of` that name, which is on another mesh than that one.
    """

    name: str
    number: int
    bytes: int
    mesh: str
    used_on: tuple[str, ...]
    of: str = ""


@dataclasses.dataclass(frozen=True)
class ReplacedOnOtherMesh:
    """An argument whose replacement, a `result` by number, leaves on another mesh (`leaves`) than where it comes in."""

    name: str
    bytes: int
    mesh: str
    leaves: str
    result: int


@dataclasses.dataclass(frozen=True)
class Gathered:
    """A value that is split over `axes` of a mesh, and whole on each device of one that has such axes, too.

    `bytes` are those on a device of the target, of all that it gets in a step.
    """

    what: str
    source: str
    target: str
    axes: tuple[str, ...]
    bytes: int


@dataclasses.dataclass(frozen=True)
class PlacementReport(Shown):
    """The memory of each mesh, and the transfers of a step."""

    meshes: tuple[MeshMemory, ...]
    sent: tuple[Traffic, ...]
    misplaced: tuple[MisplacedParam, ...]
    returning: tuple[ReplacedOnOtherMesh, ...]
    #: What each argument is, by name.
    roles: Mapping[str, Role]
    gathered: tuple[Gathered, ...] = ()
    #: Meshes that share their devices.
    sharing: tuple[tuple[str, ...], ...] = ()

    @property
    def causes(self) -> dict[Cause, tuple[int, int]]:
        """The number of transfers in a step and their bytes, by cause, in the order of `CAUSES`; no zeros."""
        result: dict[Cause, tuple[int, int]] = {}
        for cause in CAUSES:
            sent = [s for s in self.sent if s.cause == cause]
            if sent:
                result[cause] = sum(s.times for s in sent), sum(s.bytes for s in sent)
        return result

    @property
    def bytes(self) -> int:
        """All bytes that move in a step."""
        return sum(s.bytes for s in self.sent)

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields of `MeshMemory` that tables show: those that are not 0 on all meshes."""
        columns = ("parameters", "state", "arguments", "gradients", "hoisted", "activations", "temporary", "peak")
        return tuple(column for column in columns if any(getattr(one, column) for one in self.meshes))

    @property
    def held(self) -> Table:
        """A table of what each mesh holds."""
        rows = [[one.mesh, *(f"{getattr(one, column):,}" for column in self.columns)] for one in self.meshes]
        return Table("bytes on a device of each mesh", ["mesh", *self.columns], rows)

    @property
    def moves(self) -> Table:
        """A table of what moves in a step, by cause."""
        rows = [[cause, CAUSES[cause], f"{n:,}", f"{size:,}"] for cause, (n, size) in self.causes.items()]
        return Table("sent in a step", ["cause", "what it is", "count", "bytes"], rows, words=2)

    @property
    def links(self) -> Table:
        """A table of what each mesh sends to each other one."""
        totals: dict[tuple[str, str], list[Traffic]] = {}
        for one in self.sent:
            if one.source != one.target:
                totals.setdefault((one.source, one.target), []).append(one)
        place = {one.mesh: number for number, one in enumerate(self.meshes)}
        rows = [
            [*link, f"{sum(one.times for one in all_of):,}", f"{sum(one.bytes for one in all_of):,}"]
            for link, all_of in sorted(totals.items(), key=lambda item: [place[mesh] for mesh in item[0]])
        ]
        return Table("sent from mesh to mesh", ["from", "to", "count", "bytes"], rows, words=2)

    @property
    def _problems(self) -> Table:
        rows = [[one.name, one.mesh, ", ".join(one.used_on), in_units(one.bytes)] for one in self.misplaced]
        rows += [[one.name, one.mesh, f"leaves on {one.leaves}", in_units(one.bytes)] for one in self.returning]
        return Table("not where it is used", ["array", "mesh", "used on", "size"], rows, words=3)

    @property
    def tables(self) -> list[Table]:
        return [self.held, self.moves, self.links, self._problems]
