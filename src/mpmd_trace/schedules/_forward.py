"""The schedule of programs without backward passes: inference and evaluation."""

from __future__ import annotations

from mpmd_trace.schedules._list_scheduling import forward_passes
from mpmd_trace.schedules._schedule import Placement, Schedule


def forward_only(meshes: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Forward passes, with V chunks per mesh in a loop: groups of P microbatches go through all chunks.

    At equal costs a step takes MV + P - 1 chunk times, if P divides M.
    """
    return forward_passes(Placement.loop(meshes, chunks), microbatches)
