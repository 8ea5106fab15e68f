"""About how long an op runs, before XLA says it."""

from __future__ import annotations

import math
from typing import cast

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.outlined import outlined_callee, outlined_work
from mpmd_trace.ir.reading import listed, shape_of
from mpmd_trace.ir.types import TensorType

#: The product of rows with the matrix of their group, as in a mixture of experts.
RAGGED_DOT = "chlo.ragged_dot"


def elements_computed(op: Op) -> float:
    """Return the elements that an op computes, and the multiply-adds of a contraction."""
    elements = sum(t.num_elements for r in op.results if isinstance(t := r.type, TensorType) and t.is_ranked)
    if outlined_callee(op) is not None:
        return float(outlined_work(op))
    if op.name == RAGGED_DOT:
        return elements * products_of_ragged_dot(op)
    if op.name in ("stablehlo.dot_general", "stablehlo.convolution") and elements:
        left, right = (cast(TensorType, v.type).num_elements for v in op.operands[:2])
        # The size of what is contracted; exact for one matrix product.
        return float(elements * max(1.0, math.sqrt(left * right / elements)))
    return float(elements)


def products_of_ragged_dot(op: Op) -> float:
    """Return how many products a `chlo.ragged_dot` adds up for an element of its result: no row is multiplied twice."""
    left, sizes = shape_of(op.operand(0)), shape_of(op.operand(2))
    contracting, ragged = (
        listed(op, "ragged_dot_dimension_numbers", f"lhs_{kind}_dimensions") for kind in ("contracting", "ragged")
    )
    total = math.prod(left[i] for i in contracting)
    # Groups of what is contracted have a result each.
    return total / max(sizes[-1], 1) if set(ragged) <= set(contracting) else float(total)
