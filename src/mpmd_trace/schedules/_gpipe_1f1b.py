"""Schedules with one stage per mesh and a whole backward: GPipe, 1F1B and their variants.

Sources: GPipe (arXiv 1811.06965), PipeDream-Flush/1F1B (arXiv 2104.04473), eager 1F1B (JaxPP),
the two last ones (Shardy MPMD).
"""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def gpipe(meshes: int, microbatches: int) -> Schedule:
    """Return all forwards, then all backwards, both in ascending order of microbatches."""
    return _in_turn("gpipe", [microbatches] * meshes, microbatches)


def one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B: mesh r runs P-r forwards ahead, then alternates backward and forward."""
    return _in_turn("1f1b", [meshes - r for r in range(meshes)], microbatches)


def eager_one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B with 2(P-r)-1 forwards ahead: hides transfer times for more activation memory."""
    return _in_turn("eager-1f1b", [2 * (meshes - r) - 1 for r in range(meshes)], microbatches)


def gpipe_but_1f1b_for_last_mesh(meshes: int, microbatches: int) -> Schedule:
    """GPipe, except that the last mesh starts each backward at once, so it never holds many."""
    return _in_turn("gpipe-but-1f1b-for-last-mesh", [microbatches] * (meshes - 1) + [1], microbatches)


def program_order(meshes: int, microbatches: int) -> Schedule:
    """No schedule: each microbatch goes forwards and backwards before the next one starts."""
    return _in_turn("none", [1] * meshes, microbatches)


def parallel_pipelines_with_wrap_around(meshes: int, microbatches: int) -> Schedule:
    """Inference on a ring: microbatch k starts on mesh k, and all meshes are busy at once.

    Mesh k runs microbatches k, k-1, .., 0, M-1, .., k+1. Microbatches beyond the number of meshes
    start on mesh 0. Forward passes only.
    """
    entry = [m if m < meshes else 0 for m in range(microbatches)]
    orders: list[list[Step]] = []
    for mesh in range(meshes):
        low = range(min(mesh, microbatches - 1), -1, -1)
        high = range(microbatches - 1, mesh, -1)
        orders.append([Action(mesh, "F", m) for m in (*low, *high)])
    return make(
        "parallel-pipelines-with-wrap-around",
        orders,
        Placement.loop(meshes),
        microbatches,
        graph=StageGraph.ring(meshes, entry),
        forward_only=True,
    )


def _in_turn(name: str, ahead: Sequence[int], microbatches: int) -> Schedule:
    """Have each mesh run so many forwards ahead, then a backward and a forward in turn."""
    orders = []
    for mesh, first in enumerate(ahead):
        forwards = [Action(mesh, "F", m) for m in range(microbatches)]
        backwards = [[Action(mesh, "B", m)] for m in range(microbatches)]
        orders.append(alternate(forwards, first, backwards))
    return make(name, orders, Placement.loop(len(ahead)), microbatches)


def alternate(forwards: Sequence[Step], ahead: int, backwards: Sequence[Sequence[Step]]) -> list[Step]:
    """Return `ahead` forwards; then each of the backwards, with another forward after it while there are some."""
    order = [*forwards[:ahead]]
    for n, backward in enumerate(backwards, ahead):
        order += [*backward, *forwards[n : n + 1]]
    return order
