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
from mpmd_trace.ir.flops import products_of
from mpmd_trace.ir.outlined import outlined_callee, outlined_work
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.shardings import bit_width, local_shape, mesh_of
from mpmd_trace.passes.fragment_info import Runs
from mpmd_trace.passes.hoisting.value_numbering import Expression
from mpmd_trace.passes.sharding.edges import CONSTRAINT
from mpmd_trace.passes.trivially_canonical import CHLO_UNARY

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
#: So many parts of an expression are added up, each once; of more, the costliest operand stands for all.
_PARTS = 32
_PER_ELEMENT, _PER_FUNCTION, PER_MULTIPLICATION, _PER_RECEIVED = 0.125, 4.0, 0.01, 8.0


class HoistCost:
    """What expressions take on the devices of some meshes, each looked at once."""

    def __init__(self, meshes: Mapping[str, MeshAttr], runs: Runs) -> None:
        """Take the meshes, and what counts how often fragments run in a step."""
        self.runs = runs
        self._meshes = dict(meshes)
        self._seen: set[Expression] = set()
        self._bytes: dict[Expression, float] = {}
        #: What computing it takes when its operands are there.
        self._own: dict[Expression, float] = {}
        #: It and all that it is made of, operands first; None where these are many.
        self._parts: dict[Expression, dict[Expression, None] | None] = {}
        self._work: dict[Expression, float] = {}
        self._gathers: set[Expression] = set()
        #: What only presents values differently.
        self._layouts: set[Expression] = set()

    def bytes(self, one: Expression) -> float:
        """Return the bytes that the value takes on a device."""
        self._look_at(one)
        return self._bytes[one]

    def work(self, one: Expression) -> float:
        """Return what computing it takes, in bytes of memory traffic: nothing for what only changes the layout."""
        self._look_at(one)
        return 0.0 if one in self._layouts else self._work[one]

    def gathers(self, one: Expression) -> bool:
        """Return whether computing it takes a collective."""
        self._look_at(one)
        return one in self._gathers

    def _look_at(self, one: Expression) -> None:
        for part in postorder([one], lambda part: part.operands, self._seen):
            self._bytes[part] = self._count_bytes(part)
            self._own[part] = self._count_work(part)
            parts = self._parts[part] = self._add_parts(part)
            if parts is not None:
                self._work[part] = sum(map(self._own.__getitem__, parts))
            else:
                self._work[part] = self._own[part] + max(map(self._work.__getitem__, part.operands))
            if (part.is_reshard and self._received(part)) or not self._gathers.isdisjoint(part.operands):
                self._gathers.add(part)
            is_layout = part.op is not None and part.op.name in LAYOUT and self._layouts.issuperset(part.operands)
            if part.value is not None or is_layout:
                self._layouts.add(part)

    def _add_parts(self, one: Expression) -> dict[Expression, None] | None:
        added: dict[Expression, None] = {}
        for operand in one.operands:
            parts = self._parts[operand]
            if parts is None:
                return None
            added |= parts
        added[one] = None
        return added if len(added) <= _PARTS else None

    def _count_elements(self, one: Expression) -> int:
        mesh = None if one.sharding is None else mesh_of(one.sharding, self._meshes)
        return math.prod(local_shape(one.type, one.sharding, mesh))

    def _count_bytes(self, one: Expression) -> float:
        try:
            return self._count_elements(one) * bit_width(one.type.element) / 8
        except ValueError:  # no element of known size
            return math.inf

    def _count_work(self, one: Expression) -> float:
        if one.value is not None:
            return self._bytes[one]
        if one.op is None or one.op.name == CONSTRAINT:
            return self._received(one) * _PER_RECEIVED
        name = one.op.name
        if name in LAYOUT:
            return 0.0
        count = self._count_elements(one)
        if outlined_callee(one.op) is not None:
            return outlined_work(one.op) * _PER_ELEMENT
        if name in _TRANSCENDENTAL:
            return count * _PER_FUNCTION
        products = None if name == "stablehlo.convolution" else products_of(one.op)
        if products is not None:
            return count * products * PER_MULTIPLICATION
        if one.op.regions or name in ("stablehlo.gather", "stablehlo.convolution", "stablehlo.sort", "chlo.top_k"):
            return sum(map(self._bytes.__getitem__, one.operands)) + self._bytes[one]
        return count * _PER_ELEMENT

    def _received(self, one: Expression) -> float:
        """Return the bytes that another sharding brings to a device: what it did not have."""
        return max(self._bytes[one] - self._bytes[one.operands[0]], 0.0)
