"""The ops of a block that compute what can wait, and what they take from those that cannot."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import Block, BlockArg, Op, Value
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.fission.demand import BARRIER
from mpmd_trace.passes.placement.rematerializable import byte_size

#: Ops that give the same bits wherever XLA fuses them, and whose work is at most that of reading their operands.
_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("bitcast_convert", "broadcast_in_dim", "compare", "constant", "convert", "dynamic_slice", "iota", "negate"),
        *("reshape", "reverse", "select", "slice", "transpose"),
    )
)
_EXACT_ON_INTEGERS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "and", "clamp", "divide", "maximum", "minimum", "multiply", "not", "or", "remainder", "subtract"),
        "xor",
    )
)


class LatePart:
    """What of a block computes some values, when the `early` ones are there already.

    An early value is computed again where that costs nothing: from values around the block, and where what it takes is
    no larger than the value itself. Others are `residuals`.

    Args:
      block: whose ops are looked at; none of them is partly early.
      early: values that are there, also of other blocks.
      free: arguments of the block that are there at no cost.
      given: arguments of the block that are there, and take memory.
      counters: arguments that are counted again, with what the block returns for them.
    """

    def __init__(
        self,
        block: Block,
        early: Container[Value],
        *,
        free: Iterable[Value] = (),
        given: Iterable[Value] = (),
        counters: Mapping[Value, Value] | None = None,
    ) -> None:
        self._block = block
        self._early = early
        self._given = set(given)
        self._counters = counters or {}
        self._free: set[Value] = {*free, *self._counters}
        for op in block:
            if op.name == BARRIER:
                self._free.update(r for r, v in zip(op.results, op.operands, strict=True) if self._is_free(v))
            elif _is_exact(op) and all(map(self._is_free, op.operands)):
                self._free.update(op.results)
        self._ops: set[Op] = set()
        #: Results of early barriers are their operands.
        self.same: dict[Value, Value] = {}
        self._residuals: dict[Value, None] = {}
        self._seen: set[Value] = set()

    def collect(self, roots: Iterable[Value]) -> None:
        """Add what some values need."""
        stack = list(roots)[::-1]
        while stack:
            value = stack.pop()
            if value in self._seen or value.block is not self._block:
                continue
            self._seen.add(value)
            op = value.defining_op
            if value in self._counters:
                stack.append(self._counters[value])
            elif isinstance(value, BlockArg) or op is None:
                if value not in self._given and value not in self._free:
                    self._residuals[value] = None
            elif value not in self._early:
                self._ops.add(op)
                stack += effective_operands(op)[::-1]
            elif op.name == BARRIER:
                self.same[value] = op.operand(value.index)
                stack.append(op.operand(value.index))
            elif self._is_cheap(op):
                self._ops.add(op)
                stack += op.operands[::-1]
            else:
                self._residuals[value] = None

    @property
    def residuals(self) -> list[Value]:
        """The values that are kept."""
        return list(self._residuals)

    @property
    def ops(self) -> list[Op]:
        """The ops, in the order of the block."""
        return [op for op in self._block if op in self._ops]

    def reads(self, value: Value) -> bool:
        """Return whether an argument or a counter is needed."""
        return value in self._seen

    def clone(self, mapping: dict[Value, Value]) -> list[Op]:
        """Return copies of the ops; `mapping` has what stands for residuals and arguments, and gets the results."""
        copies: list[Op] = []
        for op in self._block:
            if op in self._ops:
                copies.append(op.clone(mapping))
            elif op.name == BARRIER:
                for result in op.results:
                    if result in self.same:
                        operand = self.same[result]
                        mapping[result] = mapping.get(operand, operand)
        return copies

    def _is_free(self, value: Value) -> bool:
        return value in self._free or value.block is not self._block

    def _is_cheap(self, op: Op) -> bool:
        if not _is_exact(op):
            return False
        costly = [value for value in dict.fromkeys(op.operands) if not self._is_free(value)]
        return not costly or (len(costly) == 1 and byte_size(costly[0].type) <= byte_size(op.results[0].type))


def _is_exact(op: Op) -> bool:
    if op.name in _EXACT:
        return True
    types: Sequence[object] = [value.type for value in (*op.operands, *op.results)]
    return op.name in _EXACT_ON_INTEGERS and all(
        isinstance(type, TensorType) and type.element.startswith(("i", "ui")) for type in types
    )
