"""Loops that count: how often they run, and the number of an iteration."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import BlockArg, Op, Value, make_op
from mpmd_trace.ir.types import TensorType

_INTEGERS = ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "i1")
_COUNTING = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("add", "and", "clamp", "compare", "constant", "convert", "divide", "maximum", "minimum", "multiply", "not"),
        *("or", "remainder", "reshape", "select", "subtract", "xor"),
    )
)


@dataclasses.dataclass(frozen=True)
class Counter:
    """Carried value `index` is `start`, `start + step`, ... in the `trips` iterations of a loop.

    `start + trips * step` and what is between the values do not overflow its type.
    """

    index: int
    start: int
    step: int
    trips: int

    def iteration(self, value: Value, ops: list[Op]) -> Value:
        """Return the number of the iteration from the carried value; ops that compute it are added to `ops`."""
        for name, number, neutral in (("subtract", self.start, 0), ("divide", self.step, 1)):
            if number != neutral:
                constant = make_index(number, value, ops)
                op = make_op(f"stablehlo.{name}", [value, constant], [value.type], loc=value.location)
                ops.append(op)
                value = op.results[0]
        return value


def make_index(number: int, like: Value, ops: list[Op]) -> Value:
    """Return a constant of the type of a counter, added to `ops`."""
    from mpmd_trace.passes.stablehlo.elements import make_constant  # NumPy, which is slow to import

    assert isinstance(like.type, TensorType)
    ops.append(make_constant(str(number), like.type, like.location))
    return ops[-1].results[0]


def counter_of(loop: Op) -> Counter | None:
    """Return the counter of a `stablehlo.while` that has at least one iteration; see `counter_of_any`."""
    counter = counter_of_any(loop)
    return None if counter is None or not counter.trips else counter


def counter_of_any(loop: Op) -> Counter | None:
    """Return the counter of a `stablehlo.while`, which may have no iteration.

    None unless its condition is that a carried integer is less than a constant, and its body adds another to it.
    """
    from mpmd_trace.passes.stablehlo.elements import integer_of  # NumPy, which is slow to import

    condition, body = loop.regions
    test = condition.returned[0].defining_op
    if test is None or test.name != "stablehlo.compare" or "LT" not in test.props["comparison_direction"].text:
        return None
    argument, limit = test.operand(0), _constant(test.operand(1), loop)
    if not isinstance(argument, BlockArg) or argument.owner is not condition.block or limit is None:
        return None
    if not _is_scalar_integer(argument):
        return None
    index = argument.index
    step_op = body.returned[index].defining_op
    if step_op is None or step_op.name != "stablehlo.add":
        return None
    carried = body.block.args[index]
    others = [value for value in step_op.operands if value is not carried]
    start = integer_of(loop.operand(index))
    step = _constant(others[0], loop) if len(others) == 1 else None
    if start is None or step is None or step <= 0:
        return None
    trips = max(-(-(limit - start) // step), 0)
    # A sum that overflows goes on counting from below; a difference that does gives the number of another iteration.
    fits = max(start + trips * step, trips * step) <= _largest(carried)
    return Counter(index, start, step, trips) if fits else None


def counters_of(loop: Op) -> list[int]:
    """Return the carried integers that need nothing but each other and values from outside."""
    body = loop.regions[1]
    block = body.block
    counted = {arg for arg in block.args if _is_scalar_integer(arg)}
    while True:
        known: set[Value] = set(counted)
        for op in block:
            if op.name in _COUNTING and all(v in known or v.block is not block for v in effective_operands(op)):
                known.update(op.results)
        kept = {
            arg for arg in counted if body.returned[arg.index] in known or body.returned[arg.index].block is not block
        }
        if kept == counted:
            return [arg.index for arg in block.args if arg in counted]
        counted = kept


def _constant(value: Value, loop: Op) -> int | None:
    """Return the integer that a value in a region of the loop is, also if the loop passes it on unchanged."""
    from mpmd_trace.passes.stablehlo.elements import integer_of  # NumPy, which is slow to import

    if isinstance(value, BlockArg) and value.owner.parent is not None and value.owner.parent.parent is loop:
        carried: Sequence[Value] = loop.regions[1].returned
        if carried[value.index] is not loop.regions[1].block.args[value.index]:
            return None
        value = loop.operand(value.index)
    return integer_of(value) if _is_scalar_integer(value) else None


def _largest(value: Value) -> int:
    """Return the largest number that a scalar integer can be."""
    assert isinstance(value.type, TensorType)
    element = value.type.element
    bits = int(element.lstrip("ui"))
    return (1 << bits) - 1 if element.startswith("u") or bits == 1 else (1 << (bits - 1)) - 1


def _is_scalar_integer(value: Value) -> bool:
    type = value.type
    return isinstance(type, TensorType) and type.shape == () and type.element in _INTEGERS
