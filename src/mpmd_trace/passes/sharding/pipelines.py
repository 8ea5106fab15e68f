"""The sharding propagation pipeline: afterwards every mesh tensor type says how the value is sharded.

Source: section 3.1 of the specification of sharding propagation.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.passes.base import Pass, Pipeline
from mpmd_trace.passes.registry import build

__all__ = ["ShardingPropagationPipeline"]


@dataclasses.dataclass(frozen=True)
class ShardingPropagationPipeline(Pipeline):
    """Shardings of inputs, outputs and constraints have reached all values and are in their types.

    A transfer never changes a sharding: fragments reshard.
    """

    name: ClassVar[str] = "mpmd-sharding-propagation-pipeline"
    summary: ClassVar[str] = "propagate shardings and put them into types"

    def passes(self) -> list[Pass]:
        """The steps, in order."""
        steps: list[str | Pass] = [
            "mpmd-uniquify-function-inputs-outputs{use-transfer-instead-of-fragment=true}",
            "mpmd-shardy-propagation",
            "mpmd-populate-unreduced-out-sharding",
            "mpmd-enforce-user-shardings",
            "mpmd-extract-reshards-from-inter-mesh-transfers",
            "mpmd-convert-sdy-shardings-to-mpmd-types",
            "mpmd-convert-sdy-constants",
            "stablehlo-target-independent-optimization",
            "mpmd-simplify-program",
        ]
        return build(steps)
