"""Simplification of arithmetic and logical StableHLO ops: neutral elements, equal and ordered operands.

The rules are those of StableHLO's own pass, found by experiment.
"""

from __future__ import annotations

import numpy as np

from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.stablehlo_attributes import integer
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Pattern
from mpmd_trace.passes.stablehlo.elements import is_foldable, splat_text, zeros_like
from mpmd_trace.passes.stablehlo.folding import comparison
from mpmd_trace.passes.stablehlo.rules import (
    New,
    Result,
    Rule,
    any_value,
    constant,
    made_by,
    of_integers,
    other_than_constant,
    same_type,
    splat,
    static,
)


def _zero_if_equal(op: Op, left: Value, right: Value) -> Result:
    type_ = op.result.type
    if left is not right or not static(op.result) or not isinstance(type_, TensorType):
        return None
    return zeros_like(type_) if is_foldable(type_) else None


_SWAPPED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
_ONE, _ZERO = splat(1), splat(0)


def _compare(op: Op, left: Value, right: Value) -> Result:
    """Integers: equal operands decide; `p == true` is `p`; a constant is the second operand."""
    kind = op.props.get("compare_type")
    if kind is None or "FLOAT" in kind.text or "TOTALORDER" in kind.text:
        return None
    direction = comparison(op)
    if left is right and static(op.result):
        return np.array(direction in ("EQ", "LE", "GE"))
    if left.type is op.result.type:  # of booleans
        neutral = {"EQ": _ONE, "NE": _ZERO}.get(direction)
        if neutral is not None and neutral(right):
            return left
    if constant(left) and not constant(right):
        swapped = parse_attribute(f"#stablehlo<comparison_direction {_SWAPPED[direction]}>")
        return New(op.name, [right, left], {**op.props, "comparison_direction": swapped})
    return None


def _select(op: Op, predicate: Value, true: Value, false: Value) -> Result:
    """Equal cases, or a known predicate, decide; a negated predicate swaps the cases."""
    if true is false:
        return true
    known = splat_text(predicate)
    if known is not None:
        return true if known == "true" else false
    negation = predicate.defining_op
    if negation is None or negation.name != "stablehlo.not":
        return None
    return New(op.name, [negation.operand(0), false, true], op.props)


def _part(whole: Value, index: int) -> Value:
    """Return what `whole` was made of."""
    maker = whole.defining_op
    assert maker is not None
    return maker.operand(index)


def _untabled(op: Op, value: Value) -> Result:
    return value if value.type is op.result.type else None


_COMMUTATIVE = ("add", "and", "maximum", "minimum", "multiply", "or", "xor")

ARITHMETIC: list[Pattern] = [
    # A constant is the second operand.
    *(
        Rule(name, (constant, other_than_constant), lambda op, c, x: New(op.name, [x, c], op.props))
        for name in _COMMUTATIVE
    ),
    # x op c is x.
    Rule("add", (any_value, splat(0)), lambda op, x, _: same_type(op, x)),
    Rule("subtract", (any_value, splat(0)), lambda op, x, _: same_type(op, x)),
    Rule("multiply", (any_value, splat(1)), lambda op, x, _: same_type(op, x)),
    Rule("and", (any_value, splat(-1)), lambda op, x, _: same_type(op, x)),
    Rule("or", (any_value, splat(0)), lambda op, x, _: same_type(op, x)),
    Rule("xor", (any_value, splat(0)), lambda op, x, _: _untabled(op, x)),
    # x op c is c, for integers.
    Rule("multiply", (of_integers, splat(0)), lambda op, _, c: same_type(op, c)),
    Rule("and", (of_integers, splat(0)), lambda op, _, c: _untabled(op, c)),
    Rule("or", (of_integers, splat(-1)), lambda op, _, c: same_type(op, c)),
    # x op x is 0, for integers.
    Rule("subtract", (of_integers,), _zero_if_equal),
    Rule("xor", (of_integers,), _zero_if_equal),
    Rule("compare", (), _compare),
    Rule("select", (), _select),
    Rule("convert", (), same_type),
    Rule("real", (made_by("complex"),), lambda op, whole: _part(whole, 0)),
    Rule("imag", (made_by("complex"),), lambda op, whole: _part(whole, 1)),
    Rule("get_tuple_element", (made_by("tuple"),), lambda op, whole: _part(whole, integer(op, "index"))),
]
