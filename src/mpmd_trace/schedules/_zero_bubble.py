"""Hand-made zero-bubble schedules: the backward is split, weight-gradients fill the gaps.

Sources: ZB-H1 and ZB-H2 (arXiv 2401.10241; the latency variants from Shardy MPMD), ZB-V
(arXiv 2405.15362, in the order of torch's pipelining package).
"""

from __future__ import annotations

import math

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def zb_h1(meshes: int, microbatches: int) -> Schedule:
    """1F1B's memory, a third of its bubble: mesh r holds back r weight-gradients."""
    orders = [_order(r, meshes - r, r, microbatches) for r in range(meshes)]
    return make("zb-h1", orders, Placement.loop(meshes), microbatches)


def h2_warm_up(meshes: int, mesh: int, transfer_ratio: float = 0.0) -> int:
    """Forwards that mesh `mesh` of ZB-H2 runs ahead.

    `transfer_ratio` is transfer time over stage time, 0 in the paper.
    """
    left = meshes - mesh
    return math.floor(2 * left - 1 + 2 * (left - 1) * transfer_ratio)


def zb_h2(meshes: int, microbatches: int, transfer_ratio: float = 0.0) -> Schedule:
    """No bubble in the span, for twice the memory of 1F1B; needs 2P-1 microbatches or more.

    `transfer_ratio`, transfer time over stage time (0, 0.5 and 1 have names of their own), adds
    warm-up forwards that hide the transfers.
    """
    orders = [
        _order(
            r,
            h2_warm_up(meshes, r, transfer_ratio),
            h2_warm_up(meshes, meshes - 1 - r, transfer_ratio) - 1,
            microbatches,
        )
        for r in range(meshes)
    ]
    suffix = {0.0: "", 0.5: "-half-latency", 1.0: "-full-latency"}.get(transfer_ratio, f"-{transfer_ratio:g}")
    return make("zb-h2" + suffix, orders, Placement.loop(meshes), microbatches)


def _order(stage: int, ahead: int, lag: int, microbatches: int) -> list[Step]:
    """`ahead` forwards; then input-gradient, the weight-gradient of `lag` before it, forward."""
    order: list[Step] = [Action(stage, "F", m) for m in range(min(ahead, microbatches))]
    for m in range(microbatches):
        order.append(Action(stage, "I", m))
        if m >= lag:
            order.append(Action(stage, "W", m - lag))
        if m + ahead < microbatches:
            order.append(Action(stage, "F", m + ahead))
    order += [Action(stage, "W", m) for m in range(max(0, microbatches - lag), microbatches)]
    return order


def zb_v(meshes: int, microbatches: int) -> Schedule:
    """Two chunks per mesh, placed as a V: no bubble in the span at F = I = W, memory of 1F1B.

    The pattern is made for 2P-1 microbatches or more; with fewer, the surplus ones are left out
    and leave holes.
    """
    padded = max(2 * meshes - 1, microbatches)
    orders: list[list[Step]] = []
    for r in range(meshes):
        down, up = _Chunk(r), _Chunk(2 * meshes - 1 - r)
        order: list[Step] = []
        order += [down.take("F") for _ in range(2 * (meshes - r) - 1)]
        for _ in range(r):
            order += [up.take("F"), down.take("F")]
        for _ in range(meshes - r):
            order += [up.take("F"), up.take("I"), up.take("W")]
        while up.done["F"] < padded:
            if down.done["F"] < padded:
                order.append(down.take("F"))
            order += [down.take("I"), down.take("W")]
            order += [up.take("F"), up.take("I"), up.take("W")]
        for _ in range(r):
            order += [down.take("I"), up.take("I")]
        for _ in range(meshes - r):
            order += [down.take("I"), down.take("W")]
        for chunk in (up, down):
            while chunk.done["W"] < chunk.done["I"]:
                order.append(chunk.take("W"))
        orders.append([a for step in order for a in step.parts if a.microbatch < microbatches])
    return make("zb-v", orders, Placement.v(meshes), microbatches)


class _Chunk:
    """Deals out the actions of one stage, microbatches in order."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.done = {"F": 0, "I": 0, "W": 0, "B": 0}

    def take(self, kind: str) -> Action:
        m = self.done[kind]
        self.done[kind] = m + 1
        return Action(self.stage, kind, m)  # type: ignore[arg-type]
