"""Remarks of the passes that make a step need less memory."""

from __future__ import annotations

import dataclasses

from mpmd_trace.diagnostics.messages import Diagnostic

#: How they begin.
MEMORY = "memory: "


@dataclasses.dataclass(frozen=True)
class PeakRemark(Diagnostic):
    """The remark on how much memory values take at the peak on a mesh, or on several that share their devices."""

    meshes: tuple[str, ...] = ()
    bytes: int = 0
