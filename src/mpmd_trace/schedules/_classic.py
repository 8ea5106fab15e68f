"""Schedules with one stage per mesh and a whole backward: GPipe, 1F1B and their variants.

Sources: GPipe (arXiv 1811.06965), PipeDream-Flush/1F1B (arXiv 2104.04473), eager 1F1B (JaxPP),
the two last ones (Shardy MPMD).
"""

from __future__ import annotations

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def gpipe(meshes: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards, both in ascending order of microbatches."""
    orders = [_gpipe_order(r, microbatches) for r in range(meshes)]
    return make("gpipe", orders, Placement.loop(meshes), microbatches)


def one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B: mesh r runs P-r forwards ahead, then alternates backward and forward."""
    orders = [_alternate(r, meshes - r, microbatches) for r in range(meshes)]
    return make("1f1b", orders, Placement.loop(meshes), microbatches)


def eager_one_f_one_b(meshes: int, microbatches: int) -> Schedule:
    """1F1B with 2(P-r)-1 forwards ahead: hides transfer times for more activation memory."""
    orders = [_alternate(r, 2 * (meshes - r) - 1, microbatches) for r in range(meshes)]
    return make("eager-1f1b", orders, Placement.loop(meshes), microbatches)


def gpipe_but_1f1b_for_last_mesh(meshes: int, microbatches: int) -> Schedule:
    """GPipe, except that the last mesh starts each backward at once, so it never holds many."""
    orders = [_gpipe_order(r, microbatches) for r in range(meshes - 1)]
    orders.append(_alternate(meshes - 1, 1, microbatches))
    return make("gpipe-but-1f1b-for-last-mesh", orders, Placement.loop(meshes), microbatches)


def program_order(meshes: int, microbatches: int) -> Schedule:
    """No schedule: each microbatch goes forwards and backwards before the next one starts."""
    orders: list[list[Step]] = [
        [Action(r, k, m) for m in range(microbatches) for k in ("F", "B")] for r in range(meshes)
    ]
    return make("none", orders, Placement.loop(meshes), microbatches)


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


def _gpipe_order(stage: int, microbatches: int) -> list[Step]:
    forwards: list[Step] = [Action(stage, "F", m) for m in range(microbatches)]
    return forwards + [Action(stage, "B", m) for m in range(microbatches)]


def _alternate(stage: int, ahead: int, microbatches: int) -> list[Step]:
    """`ahead` forwards, then backward and forward in turn."""
    ahead = min(microbatches, ahead)
    order: list[Step] = [Action(stage, "F", m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(Action(stage, "B", m))
        if m + ahead < microbatches:
            order.append(Action(stage, "F", m + ahead))
    return order
