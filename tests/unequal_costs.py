"""Costs of stages that differ, for tests of schedules."""

from __future__ import annotations

import random

from mpmd_trace.schedules import Costs


def unequal_costs(draw: random.Random, meshes: int) -> Costs:
    """Return costs of one stage for each mesh, within 20 % of one for forwards and input gradients."""
    return Costs(
        forward=[draw.uniform(0.8, 1.2) for _ in range(meshes)],
        input_grad=[draw.uniform(0.8, 1.2) for _ in range(meshes)],
        weight_grad=[draw.uniform(0.5, 1.0) for _ in range(meshes)],
        latency=0.05,
    )
