"""Hand-made zero-bubble schedules: the backward is split, weight-gradients fill the gaps.

Sources: ZB-H1 and ZB-H2 (arXiv 2401.10241; the latency variants from Shardy MPMD), ZB-V
(arXiv 2405.15362, in the order of torch's pipelining package).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import cast

from mpmd_trace.schedules._actions import Action, Kind, Step
from mpmd_trace.schedules._gpipe_1f1b import alternate
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def zb_h1(meshes: int, microbatches: int) -> Schedule:
    """1F1B's memory, a third of its bubble: mesh r holds back r weight-gradients."""
    return zb_h1_within([meshes] * meshes, microbatches, 1.0)


def zb_h1_within(limits: Sequence[float], microbatches: int, weight_fraction: float) -> Schedule:
    """ZB-H1 with fewer forwards ahead, and weight-gradients held back, on meshes whose memory holds no more."""
    meshes = len(limits)
    ahead = list(itertools.accumulate((int(min(meshes - r, limit)) for r, limit in enumerate(limits)), min))
    orders = []
    for r, (limit, first) in enumerate(zip(limits, ahead, strict=True)):
        fits = r if weight_fraction * r <= limit - first else int((limit - first) / weight_fraction)
        orders.append(_order(r, first, fits, microbatches))
    return make("zb-h1", orders, Placement.loop(meshes), microbatches)


def h2_warm_up(meshes: int, mesh: int, transfer_ratio: float = 0.0) -> int:
    """Return the number of forwards that mesh `mesh` of ZB-H2 runs ahead.

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
    """Return `ahead` forwards; then input-gradient, the weight-gradient of `lag` before it, forward."""
    forwards = [Action(stage, "F", m) for m in range(microbatches)]
    return alternate(forwards, ahead, split_backwards([(stage, m) for m in range(microbatches)], lag))


def split_backwards(places: Sequence[tuple[int, int]], lag: int) -> list[list[Action]]:
    """For each (stage, microbatch) an input-gradient, and the weight-gradient of `lag` before; then those left."""
    groups = [[Action(stage, "I", m)] for stage, m in places]
    groups.append([])
    for n, (stage, m) in enumerate(places, lag):
        groups[min(n, len(places))].append(Action(stage, "W", m))
    return groups


def zb_v(meshes: int, microbatches: int) -> Schedule:
    """Two chunks per mesh, placed as a V: no bubble in the span at F = I = W, memory of 1F1B.

    The pattern is made for 2P-1 microbatches or more; with fewer, the surplus ones are left out
    and leave holes.
    """
    padded = max(2 * meshes - 1, microbatches)
    orders: list[list[Step]] = []
    for r in range(meshes):
        down, up = _Chunk(r), _Chunk(2 * meshes - 1 - r)
        order = down.take("F" * (2 * (meshes - r) - 1))
        for _ in range(r):
            order += [*up.take("F"), *down.take("F")]
        order += up.take("FIW" * (meshes - r))
        while up.done["F"] < padded:
            order += down.take("FIW" if down.done["F"] < padded else "IW")
            order += up.take("FIW")
        for _ in range(r):
            order += [*down.take("I"), *up.take("I")]
        order += down.take("IW" * (meshes - r))
        for chunk in (up, down):
            order += chunk.take("W" * (chunk.done["I"] - chunk.done["W"]))
        orders.append([a for a in order if a.microbatch < microbatches])
    return make("zb-v", orders, Placement.v(meshes), microbatches)


class _Chunk:
    """Deals out the actions of one stage, microbatches in order."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.done: Counter[str] = Counter()

    def take(self, kinds: str) -> list[Action]:
        actions = []
        for kind in kinds:
            actions.append(Action(self.stage, cast(Kind, kind), self.done[kind]))
            self.done[kind] += 1
        return actions
