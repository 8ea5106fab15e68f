"""Memory that is not for values: what XLA's programs need besides."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from mpmd_trace.diagnostics.messages import MpmdError


@dataclasses.dataclass(frozen=True)
class Reserved:
    """Bytes of a device of a mesh that are not for values: `mesh=bytes`."""

    mesh: str
    bytes: int

    @classmethod
    def parse(cls, text: str) -> Reserved:
        """Read a reservation.  Raises `MpmdError` for text that is not of this form."""
        mesh, _, count = text.strip().rpartition("=")
        if not mesh or not count.isdigit():
            raise MpmdError(f"'{text}' reserves nothing: write MESH=BYTES, e.g. m0=1048576")
        return cls(mesh, int(count))

    def __str__(self) -> str:
        return f"{self.mesh}={self.bytes}"


def room_on(mesh: str, limit: int, reserved: Iterable[Reserved]) -> float:
    """Return the bytes of a device of a mesh that values may take; infinitely many where `limit` is 0."""
    return limit - sum(one.bytes for one in reserved if one.mesh == mesh) if limit else math.inf
