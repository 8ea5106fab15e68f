"""Entries of the options that assign names and positions to meshes: `f@m1/0`, `2@m1#pinned_host`, `0:1`."""

from __future__ import annotations

import re
from typing import NamedTuple

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment

_INTEGER = re.compile(r"-?[0-9]+")


def _split(entry: str, what: str) -> tuple[str, Assignment]:
    key, at, place = entry.strip().rpartition("@")  # names may contain @, names of meshes do not
    if not at:
        raise MpmdError(f"'{entry}' assigns nothing: write {what}@MESH or {what}@MESH/STAGE")
    try:
        return key, Assignment.parse(place)
    except ValueError as error:
        raise MpmdError(
            f"the stage in '{entry}' is '{error}', which is not a whole number: "
            f"write {what}@MESH/STAGE, e.g. {key}@{place.removesuffix(f'/{error}')}/0"
        ) from None


class NameAssignment(NamedTuple):
    """Where the computations or tensors of a name are: `name@mesh` or `name@mesh/stage`."""

    name: str
    assignment: Assignment

    @classmethod
    def parse(cls, text: str) -> NameAssignment:
        """Read an assignment.  Raises `MpmdError` for text that is not of this form."""
        return cls(*_split(text, "NAME"))

    def __str__(self) -> str:
        return f"{self.name}@{self.assignment}"


class IndexAssignment(NamedTuple):
    """Where an input or output is, by its position: `index@mesh`."""

    position: int
    assignment: Assignment

    @classmethod
    def parse(cls, text: str) -> IndexAssignment:
        """Read an assignment.  Raises `MpmdError` for text that is not of this form."""
        key, assignment = _split(text, "INDEX")
        if not _INTEGER.fullmatch(key):
            raise MpmdError(f"'{key}' in '{text}' is not the number of an input or output")
        return cls(int(key), assignment)

    def __str__(self) -> str:
        return f"{self.position}@{self.assignment}"


class SameMesh(NamedTuple):
    """An input and an output, by position, that must be placed alike: `input:output`."""

    input: int
    output: int

    @classmethod
    def parse(cls, text: str) -> SameMesh:
        """Read a pair.  Raises `MpmdError` for text that is not of this form."""
        left, _, right = text.strip().partition(":")
        if not _INTEGER.fullmatch(left) or not _INTEGER.fullmatch(right):
            raise MpmdError(f"'{text}' is not a constraint: write INPUT:OUTPUT with two indices, e.g. 0:1")
        return cls(int(left), int(right))

    def __str__(self) -> str:
        return f"{self.input}:{self.output}"
