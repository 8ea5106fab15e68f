"""About how long an op runs, before XLA says it."""

from __future__ import annotations

import math
from typing import cast

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.types import TensorType

__all__ = ["elements_computed"]


def elements_computed(op: Op) -> float:
    """The elements that an op computes, and the multiply-adds of a contraction."""
    elements = sum(t.num_elements for r in op.results if isinstance(t := r.type, TensorType) and t.is_ranked)
    if op.name in ("stablehlo.dot_general", "stablehlo.convolution") and elements:
        left, right = (cast(TensorType, v.type).num_elements for v in op.operands[:2])
        # The size of what is contracted; exact for one matrix product.
        return float(elements * max(1.0, math.sqrt(left * right / elements)))
    return float(elements)
