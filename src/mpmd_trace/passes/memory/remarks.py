"""Remarks of the passes that make a step need less memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: How they begin.
MEMORY = "memory: "
_PEAK = re.compile(MEMORY + r"on mesh '(.*)' values take ([\d,]+) bytes at the peak")


def peak_remark(sharing: Sequence[str], peak: float) -> str:
    """Return the remark that values take so many bytes at the peak, on meshes that share their devices."""
    return f"{MEMORY}on mesh '{', '.join(sharing)}' values take {peak:,.0f} bytes at the peak"


def peaks_of(remarks: Iterable[str], sharing: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the peak of each mesh that one of the remarks is about; `sharing`: meshes that share their devices."""
    peaks = {match[1]: int(match[2].replace(",", "")) for text in remarks if (match := _PEAK.match(text))}
    return {mesh: peaks[name] for meshes in sharing for mesh in meshes if (name := ", ".join(meshes)) in peaks}
