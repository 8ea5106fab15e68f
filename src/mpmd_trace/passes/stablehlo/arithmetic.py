"""Simplification of arithmetic and logical StableHLO ops: neutral elements, equal and ordered operands.

Source: section 3.8 of the specification of sharding propagation; the rules were found by experiment.
"""

from __future__ import annotations

import numpy as np

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Pattern, Rewriter
from mpmd_trace.passes.stablehlo.build import is_static, replace_by_constant, replace_by_new, replace_by_value
from mpmd_trace.passes.stablehlo.elements import Array, constant_of, is_foldable, splat_text, zeros_like
from mpmd_trace.passes.stablehlo.folding import comparison

__all__ = ["arithmetic_patterns"]


def _splat(value: Value) -> Array | None:
    """The element that a splat constant repeats."""
    constant = constant_of(value)
    return constant.values if constant is not None and constant.is_splat else None


def _is(value: Value, what: int) -> bool:
    """Whether `value` is a splat of 0, of 1, or (-1) of all bits set."""
    element = _splat(value)
    if element is None:
        return False
    if element.dtype == bool:
        return bool(element) is (what != 0)
    if what == -1:
        return element.dtype.kind in "iu" and bool(element == ~element.dtype.type(0))
    return bool(element == what)


def _is_constant(value: Value) -> bool:
    op = value.defining_op
    return op is not None and op.name == "stablehlo.constant"


def _element(value: Value) -> str:
    type_ = value.type
    return type_.element if isinstance(type_, TensorType) else ""


def _is_integer(value: Value) -> bool:
    return _element(value)[:1] in ("i", "u")


def _take_operand(op: Op, operand: Value, in_tables: bool, rewriter: Rewriter) -> bool:
    """Put an operand in the place of an op by a rule that StableHLO declares in its tables, or does not."""
    if in_tables:
        return replace_by_value(op, operand, rewriter)
    rewriter.replace_op(op, [operand])
    return True


class _ConstantToTheRight:
    """A constant is the second operand of a commutative op."""

    needs_constant = True

    def __init__(self, op_name: str) -> None:
        self.op_name: str | None = op_name

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        left, right = op.operands
        if not _is_constant(left) or _is_constant(right):
            return False
        return replace_by_new(op, op.name, [right, left], op.props, rewriter)


class _Neutral:
    """`x op c` is `x`."""

    needs_constant = True

    def __init__(self, op_name: str, element: int) -> None:
        self.op_name: str | None = op_name
        self.element = element

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        left, right = op.operands
        if not _is(right, self.element) or left.type is not op.result.type:
            return False
        return _take_operand(op, left, op.name != "stablehlo.xor", rewriter)


class _Absorbing:
    """`x op c` is `c`, for integers."""

    needs_constant = True

    def __init__(self, op_name: str, element: int) -> None:
        self.op_name: str | None = op_name
        self.element = element

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        right = op.operand(1)
        if not _is_integer(right) or not _is(right, self.element):
            return False
        if right.type is not op.result.type:
            return False
        return _take_operand(op, right, op.name != "stablehlo.and", rewriter)


class _EqualOperands:
    """`x - x` and `x xor x` are zero, for integers."""

    def __init__(self, op_name: str) -> None:
        self.op_name: str | None = op_name

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        left, right = op.operands
        if left is not right or not _is_integer(left) or not is_static(op.result):
            return False
        type_ = op.result.type
        assert isinstance(type_, TensorType)
        return is_foldable(type_) and replace_by_constant(op, zeros_like(type_), rewriter)


_SWAPPED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


class _Compare:
    """Integers: equal operands decide; a constant is the second operand; `p == true` is `p`."""

    op_name: str | None = "stablehlo.compare"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        from mpmd_trace.ir.attributes import parse_attribute

        kind = op.props.get("compare_type")
        if kind is None or "FLOAT" in kind.text or "TOTALORDER" in kind.text:
            return False
        left, right = op.operands
        direction = comparison(op)
        if left is right and is_static(op.result):
            return replace_by_constant(op, np.array(direction in ("EQ", "LE", "GE")), rewriter)
        if _element(left) == "i1" and left.type is op.result.type:
            neutral = {"EQ": 1, "NE": 0}.get(direction)
            if neutral is not None and _is(right, neutral):
                rewriter.replace_op(op, [left])
                return True
        if _is_constant(left) and not _is_constant(right):
            swapped = f"#stablehlo<comparison_direction {_SWAPPED[direction]}>"
            props = {**op.props, "comparison_direction": parse_attribute(swapped)}
            return replace_by_new(op, op.name, [right, left], props, rewriter)
        return False


class _Select:
    """A known predicate, or equal cases, decide; a negated predicate swaps the cases."""

    op_name: str | None = "stablehlo.select"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        predicate, true, false = op.operands
        chosen: Value | None = None
        if true is false:
            chosen = true
        elif (known := splat_text(predicate)) is not None:
            chosen = true if known == "true" else false
        if chosen is not None:
            rewriter.replace_op(op, [chosen])
            return True
        negation = predicate.defining_op
        if negation is None or negation.name != "stablehlo.not":
            return False
        return replace_by_new(op, op.name, [negation.operand(0), false, true], op.props, rewriter)


class _Part:
    """The real and the imaginary part of a complex number made of two parts; an element of a tuple."""

    def __init__(self, op_name: str, source: str, index: int | None) -> None:
        self.op_name: str | None = op_name
        self.source = source
        self.index = index

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        from mpmd_trace.passes.stablehlo.build import integer

        source = op.operand(0).defining_op
        if source is None or source.name != self.source:
            return False
        index = integer(op, "index") if self.index is None else self.index
        rewriter.replace_op(op, [source.operand(index)])
        return True


class _SameType:
    """A conversion to the type that the value has."""

    def __init__(self, op_name: str) -> None:
        self.op_name: str | None = op_name

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if op.operand(0).type is not op.result.type:
            return False
        return replace_by_value(op, op.operand(0), rewriter)


def arithmetic_patterns() -> list[Pattern]:
    """The rules of this file."""
    commutative = ("add", "and", "maximum", "minimum", "multiply", "or", "xor")
    patterns: list[Pattern] = [_ConstantToTheRight(f"stablehlo.{name}") for name in commutative]
    neutral = {"add": 0, "subtract": 0, "multiply": 1, "and": -1, "or": 0, "xor": 0}
    patterns += [_Neutral(f"stablehlo.{name}", element) for name, element in neutral.items()]
    absorbing = {"multiply": 0, "and": 0, "or": -1}
    patterns += [_Absorbing(f"stablehlo.{name}", element) for name, element in absorbing.items()]
    patterns += [_EqualOperands("stablehlo.subtract"), _EqualOperands("stablehlo.xor")]
    patterns += [_Compare(), _Select(), _SameType("stablehlo.convert")]
    patterns += [
        _Part("stablehlo.real", "stablehlo.complex", 0),
        _Part("stablehlo.imag", "stablehlo.complex", 1),
        _Part("stablehlo.get_tuple_element", "stablehlo.tuple", None),
    ]
    return patterns
