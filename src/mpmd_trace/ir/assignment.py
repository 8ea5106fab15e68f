"""Assignments by users: a mesh, perhaps a stage, perhaps a memory.

m1   m1/3   m1#pinned_host   m1/cpu   m1/cpu#device/2
"""

from __future__ import annotations

import dataclasses
import re

# A host mesh is called `MESH/cpu`; without text behind # there is no kind.
_PLACE = re.compile(r"(?P<mesh>[^/]*?(?:/cpu)?)(?:#(?P<kind>[^/]+))?(?:/(?P<stage>.*))?$", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """The mesh of a name; for a computation perhaps a stage, for a tensor perhaps a memory."""

    mesh: str
    stage: int | None = None
    memory_kind: str | None = None

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Return the assignment that `text` spells.

        Raises `ValueError` with the stage where that is no whole number.
        """
        match = _PLACE.match(text)
        assert match is not None  # it matches any text
        mesh, kind, stage = match.groups()
        if stage is not None and not re.fullmatch(r"-?[0-9]+", stage):
            raise ValueError(stage)
        return cls(mesh, None if stage is None else int(stage), kind)

    @classmethod
    def on_mesh(cls, text: str, stage: int | None = None) -> Assignment:
        """Return an assignment to a mesh, perhaps with a memory: `m1`, `m1#pinned_host`; the name may have slashes."""
        mesh, _, kind = text.partition("#")
        return cls(mesh, stage, kind) if kind else cls(text, stage)

    @property
    def place(self) -> str:
        """Mesh and memory, without the stage."""
        return self.mesh if self.memory_kind is None else f"{self.mesh}#{self.memory_kind}"

    def __str__(self) -> str:
        return self.place if self.stage is None else f"{self.place}/{self.stage}"
