"""Which of the values that a forward leaves can be made again, at which cost, and the bodies that do it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mpmd_trace.ir.bodies import BodyBuilder, effective_operands, remembered
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.reading import shape_of
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.shardings import bit_width
from mpmd_trace.ir.types import TensorType
from mpmd_trace.ir.work import RAGGED_DOT, products_of_ragged_dot
from mpmd_trace.passes.hoisting.cost import PER_MULTIPLICATION, contracted
from mpmd_trace.passes.reachable import reachable
from mpmd_trace.passes.sharding.edges import CONSTRAINT
from mpmd_trace.passes.sharding.plain_bodies import EXPRESSIONS

#: What is made again without a product: what is done element by element, with sums over dimensions.
_CHEAP = (
    EXPRESSIONS
    | {f"stablehlo.{name}" for name in ("concatenate", "pad", "reduce", "reverse", "transpose")}
    | {"sdy.constant", CONSTRAINT}
)


class Recomputed(NamedTuple):
    """A body that makes results of a forward again.

    arguments: those of the forward that it reads; results: those that it reads behind them.
    work: what that takes, in bytes of memory traffic of all devices together.
    """

    body: Region
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    work: float


def work_of(body: Region) -> float:
    """Return what a body takes, in bytes of memory traffic of all devices together."""
    ops = [op for op in body.block if not op.is_terminator]
    return remembered(body, "work", lambda: _work(ops, body.returned))


def has_checkpoint(body: Region) -> bool:
    """Return whether the body recomputes something by `jax.checkpoint`, whose barriers keep XLA from undoing it."""

    def find() -> bool:
        return any(op.name == "stablehlo.optimization_barrier" for op in body.walk())

    return remembered(body, "has checkpoint", find)


def cheap_results(body: Region, results: frozenset[int]) -> frozenset[int]:
    """Return those among the results that are made of arguments and of the others without a product."""

    def find() -> frozenset[int]:
        kept = {body.returned[i] for i in results}
        known: dict[Value, bool] = {}

        def is_cheap(value: Value) -> bool:
            if value not in known:
                op = value.defining_op
                known[value] = op is None or (op.name in _CHEAP and all(map(is_at_hand, effective_operands(op))))
            return known[value]

        def is_at_hand(value: Value) -> bool:
            return is_cheap(value) or value in kept

        for op in body.block:  # producers first, so that the recursion is not deep
            for value in op.results:
                is_cheap(value)
        return frozenset(i for i in results if is_cheap(body.returned[i]))

    return remembered(body, ("cheap results", results), find)


def recomputed(body: Region, results: tuple[int, ...], given: frozenset[int]) -> Recomputed | None:
    """The body that makes `results` again, of arguments and the results `given`; None where effects forbid that."""

    def make() -> Recomputed | None:
        block = body.block
        at_hand = {body.returned[i]: i for i in sorted(given, reverse=True)}

        def needed(value: Value) -> list[Value]:
            op = None if value in at_hand else value.defining_op
            return [] if op is None else effective_operands(op)

        wanted = reachable([body.returned[i] for i in results], needed)
        ops = [op for op in block if not op.is_terminator and any(r in wanted and r not in at_hand for r in op.results)]
        if not all(is_removable(op) or op.name == CONSTRAINT for op in ops):
            return None
        builder = BodyBuilder()
        arguments = tuple(a.index for a in block.args if a in wanted and a not in at_hand)
        mapping: dict[Value, Value] = {a: builder.arg(a.type, a.loc) for a in map(block.args.__getitem__, arguments)}
        read = tuple(sorted(i for value, i in at_hand.items() if value in wanted))
        for i in read:
            value = body.returned[i]
            mapping[value] = builder.arg(value.type, value.location)
        for op in ops:
            kept: dict[Value, Value] = {r: mapping[r] for r in op.results if r in mapping}
            builder.add(op, mapping)
            mapping.update(kept)
        made = builder.finish([mapping[body.returned[i]] for i in results])
        return Recomputed(made, arguments, read, _work(ops, [body.returned[i] for i in (*results, *read)]))

    return remembered(body, ("recomputed", results, given), make)


def _elements(value: Value) -> int:
    return math.prod(value.type.shape or ()) if isinstance(value.type, TensorType) else 0


def _bytes(value: Value) -> float:
    try:
        return _elements(value) * bit_width(value.type.element) / 8 if isinstance(value.type, TensorType) else 0.0
    except ValueError:
        return 0.0


def _work(ops: Sequence[Op], written: Sequence[Value]) -> float:
    """Products by their multiplications; all else by the bytes that are read and written, since XLA fuses it."""
    total = sum(map(_bytes, written))
    for op in ops:
        if op.name == "stablehlo.dot_general":
            total += _elements(op.results[0]) * contracted(op) * PER_MULTIPLICATION + sum(map(_bytes, op.operands))
        elif op.name == RAGGED_DOT:
            total += _elements(op.results[0]) * products_of_ragged_dot(op) * PER_MULTIPLICATION
            total += sum(map(_bytes, op.operands))
        elif op.name == "stablehlo.convolution":
            kernel = _elements(op.operand(1)) / max(1, (shape_of(op.operand(1)) or (1,))[-1])
            total += _elements(op.results[0]) * kernel * PER_MULTIPLICATION + sum(map(_bytes, op.operands))
        elif op.name not in _CHEAP:
            total += sum(map(_bytes, [*op.operands, *op.results]))
            inner: list[Op] = [one for region in op.regions for one in region.walk()]
            if inner:
                total += _work(inner, [])
    return total
