"""What computing an expression again costs, against the memory that its value takes when it is kept.

Work is counted in bytes of memory traffic of one device, so that the two compare: what is read counts once, however
often; an element of an elementwise op an eighth of a byte, since XLA fuses these, a transcendental function four bytes
(Python's `sin` of an array takes about as long as reading it); a multiply-add of a contraction 1/100 byte, as on
accelerators that compute some hundred operations in the time of a byte; a byte that a collective brings eight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.shardings import bit_width, local_shape, mesh_of
from mpmd_trace.ir.work import RAGGED_DOT, products_of_ragged_dot
from mpmd_trace.passes.hoisting.axes import dot_dimensions
from mpmd_trace.passes.hoisting.expressions import Expression
from mpmd_trace.passes.plain_bodies import CHLO_UNARY
from mpmd_trace.passes.sharding.edges import CONSTRAINT
from mpmd_trace.passes.stablehlo.reading import shape_of

__all__ = ["LAYOUT", "PER_MULTIPLICATION", "contracted", "kept_bytes", "work"]

#: Ops that only present their operand differently: XLA makes them a part of what reads it.
LAYOUT = frozenset(
    f"stablehlo.{name}"
    for name in ("bitcast_convert", "broadcast_in_dim", "constant", "iota", "reshape", "reverse", "slice", "transpose")
) | {"sdy.constant"}
_TRANSCENDENTAL = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("atan2", "cbrt", "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic"),
        *("power", "rsqrt", "sine", "sqrt", "tan", "tanh"),
    )
) | frozenset(f"chlo.{name}" for name in CHLO_UNARY.split() if name != "square")
_PER_ELEMENT, _PER_FUNCTION, PER_MULTIPLICATION, _PER_RECEIVED = 0.125, 4.0, 0.01, 8.0

Meshes = Mapping[str, MeshAttr]


def _elements(one: Expression, meshes: Meshes) -> int:
    mesh = None if one.sharding is None else mesh_of(one.sharding, dict(meshes))
    return math.prod(local_shape(one.type, one.sharding, mesh))


def kept_bytes(one: Expression, meshes: Meshes) -> float:
    """The bytes that the value takes on a device."""
    try:
        return _elements(one, meshes) * bit_width(one.type.element) / 8
    except ValueError:  # no element of known size
        return math.inf


def work(one: Expression, meshes: Meshes) -> float:
    """What computing the expression takes, in bytes of memory traffic.  Nothing for what only changes the layout."""
    parts = list(one.parts())
    if all(p.value is not None or (p.op is not None and p.op.name in LAYOUT) for p in parts):
        return 0.0
    return sum(_own_work(part, meshes) for part in parts)


def _own_work(one: Expression, meshes: Meshes) -> float:
    if one.value is not None:
        return kept_bytes(one, meshes)
    if one.op is None or one.op.name == CONSTRAINT:
        return _received(one, meshes) * _PER_RECEIVED
    name = one.op.name
    if name in LAYOUT:
        return 0.0
    count = _elements(one, meshes)
    if name == RAGGED_DOT:
        return count * products_of_ragged_dot(one.op) * PER_MULTIPLICATION
    if name in _TRANSCENDENTAL:
        return count * _PER_FUNCTION
    if name == "stablehlo.dot_general":
        return count * contracted(one.op) * PER_MULTIPLICATION
    if one.op.regions or name in ("stablehlo.gather", "stablehlo.convolution", "stablehlo.sort", "chlo.top_k"):
        return sum(kept_bytes(operand, meshes) for operand in one.operands) + kept_bytes(one, meshes)
    return count * _PER_ELEMENT


def contracted(op: Op) -> int:
    """How many products a `stablehlo.dot_general` adds up for an element of its result."""
    return math.prod(shape_of(op.operand(0))[d] for d in dot_dimensions(op).left_contracting)


def _received(one: Expression, meshes: Meshes) -> float:
    """The bytes that another sharding brings to a device: what it did not have."""
    before, after = kept_bytes(one.operands[0], meshes), kept_bytes(one, meshes)
    return max(after - before, 0.0)
