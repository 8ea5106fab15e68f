"""Assignments of names and indices to meshes, and constraints, as users write them in options.

Source: section 0.11 of the import specification, 6.3 of the dialect one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.passes.mesh_order import split_memory_kind

__all__ = [
    "Constraint",
    "Target",
    "parse_constraints",
    "parse_index_assignment",
    "parse_name_assignment",
]


@dataclasses.dataclass(frozen=True)
class Target:
    """Where something is assigned to: a mesh as written (`m1` or `m1#pinned_host`), perhaps a stage."""

    mesh: str
    stage: int | None = None

    @property
    def mesh_name(self) -> str:
        """The mesh without a memory kind."""
        return split_memory_kind(self.mesh)[0]

    @property
    def memory_kind(self) -> str | None:
        return split_memory_kind(self.mesh)[1]

    def __str__(self) -> str:
        return self.mesh if self.stage is None else f"{self.mesh}/{self.stage}"


#: (input index, output index): the two must be placed alike.
Constraint = tuple[int, int]

_INTEGER = re.compile(r"-?[0-9]+$")


def _entries(entries: str | Iterable[str]) -> list[str]:
    """The entries of a list, which may be given as one comma separated text."""
    if isinstance(entries, str):
        entries = [entry for entry in entries.split(",") if entry.strip()]
    return list(entries)


def _split(entry: str, what: str) -> tuple[str, Target]:
    # Names may contain @, names of meshes do not.  A host mesh is called `MESH/cpu`.
    key, at, place = entry.strip().rpartition("@")
    if not at:
        raise MpmdError(f"'{entry}' assigns nothing: write {what}@MESH or {what}@MESH/STAGE")
    mesh, *rest = place.split("/", 1)
    if rest and rest[0].partition("/")[0].partition("#")[0] == "cpu":
        host, *rest = rest[0].split("/", 1)
        mesh = f"{mesh}/{host}"
    if rest and not _INTEGER.match(rest[0]):
        raise MpmdError(
            f"the stage in '{entry}' is '{rest[0]}', which is not a whole number: "
            f"write {what}@MESH/STAGE, e.g. {key}@{mesh}/0"
        )
    return key, Target(mesh, int(rest[0]) if rest else None)


def parse_name_assignment(entries: str | Iterable[str]) -> dict[str, Target]:
    """The targets in `name@mesh` or `name@mesh/stage` entries; later duplicates win.

    Raises `MpmdError` for entries that are not of this form.
    """
    return dict(_split(entry, "NAME") for entry in _entries(entries))


def parse_index_assignment(entries: str | Iterable[str]) -> dict[int, Target]:
    """The targets in `index@mesh` entries.  Raises `MpmdError` for entries that are not of this form."""
    found: dict[int, Target] = {}
    for entry in _entries(entries):
        key, target = _split(entry, "INDEX")
        if not _INTEGER.match(key):
            raise MpmdError(f"'{key}' in '{entry}' is not the number of an input or output")
        found[int(key)] = target
    return found


def parse_constraints(entries: str | Iterable[str]) -> tuple[Constraint, ...]:
    """The `input:output` pairs.  Raises `MpmdError` for entries that are not of this form."""
    found = []
    for entry in _entries(entries):
        left, _, right = entry.strip().partition(":")
        if not _INTEGER.match(left) or not _INTEGER.match(right):
            raise MpmdError(
                f"'{entry}' is not a constraint: write INPUT:OUTPUT with two indices, e.g. 0:1"
            )
        found.append((int(left), int(right)))
    return tuple(found)
