"""Folding of StableHLO ops whose operands are constants.

What folds, and what does not, is what StableHLO's own folder does (found by experiment).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.semantics import region_reduction_kind
from mpmd_trace.ir.stablehlo_attributes import integer, integers, shape_of
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Pattern, Rewriter
from mpmd_trace.passes.stablehlo.elements import Array, Constant, constant_of, is_foldable, splat_text, zeros_like
from mpmd_trace.passes.stablehlo.rules import Result, Rule, of_integers, replace, static

_Unary = Callable[[float], float]


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _periodic(function: _Unary) -> _Unary:
    """Return a function that is defined at infinity, where C's library gives a NaN with its sign bit set."""
    return lambda x: -math.nan if math.isinf(x) else function(x)


#: Float functions, computed in double precision; the second entry says where they are defined.
_FLOAT_UNARY: dict[str, tuple[_Unary, Callable[[float], bool]]] = {
    "cosine": (_periodic(math.cos), lambda x: True),
    "exponential": (math.exp, lambda x: True),
    "log": (math.log, lambda x: x > 0),
    "logistic": (_logistic, lambda x: True),
    "rsqrt": (lambda x: 1.0 / math.sqrt(x), lambda x: x > 0),
    "sine": (_periodic(math.sin), lambda x: True),
    "sqrt": (math.sqrt, lambda x: x >= 0),
    "tan": (_periodic(math.tan), lambda x: True),
    "tanh": (math.tanh, lambda x: True),
}


def _is_float(values: Array) -> bool:
    return values.dtype.kind not in "biu"


def _float_function(name: str) -> Callable[[Array], Array | None]:
    function, defined = _FLOAT_UNARY[name]

    def folded(values: Array) -> Array | None:
        numbers = [float(v) for v in values.reshape(-1)]
        if not _is_float(values) or not all(math.isnan(v) or defined(v) for v in numbers):
            return None
        try:
            negates = name == "logistic"  # its operand, before anything else
            results = [(-v if negates else v) if math.isnan(v) else function(v) for v in numbers]
        except OverflowError:
            return None
        return np.array(results, np.float64).astype(values.dtype).reshape(values.shape)

    return folded


_UNARY: dict[str, Callable[[Array], Array | None]] = {
    "negate": lambda x: -x if x.dtype != bool else None,
    "abs": np.abs,
    "not": lambda x: ~x if not _is_float(x) else None,
    "sign": np.sign,
    "round_nearest_even": lambda x: np.rint(x) if _is_float(x) else None,
    **{name: _float_function(name) for name in _FLOAT_UNARY},
}


def _divide(a: Array, b: Array) -> Array | None:
    """Of integers with rounding towards zero; None where the divisor is zero."""
    if _is_float(a):
        return a / b
    if a.dtype == bool or (b == 0).any():
        return None
    if a.dtype.kind == "u":
        return np.asarray(a // b)
    return np.asarray((np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b))


def _remainder(a: Array, b: Array) -> Array | None:
    if _is_float(a):
        return np.fmod(a, b)
    quotient = _divide(a, b)
    return None if quotient is None else np.asarray(a - quotient * b)


def _integers_only(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array | None]:
    return lambda a, b: None if _is_float(a) else function(a, b)


_BINARY: dict[str, Callable[[Array, Array], Array | None]] = {
    "add": lambda a, b: np.logical_or(a, b) if a.dtype == bool else a + b,
    "subtract": lambda a, b: None if a.dtype == bool else a - b,
    "multiply": lambda a, b: np.logical_and(a, b) if a.dtype == bool else a * b,
    "divide": _divide,
    "remainder": _remainder,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": _integers_only(np.bitwise_and),
    "or": _integers_only(np.bitwise_or),
    "xor": _integers_only(np.bitwise_xor),
}

_COMPARISONS: dict[str, Callable[[Array, Array], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def comparison(op: Op) -> str:
    """EQ, NE, LT, LE, GT or GE."""
    direction: Attribute = op.props["comparison_direction"]
    return direction.text.rstrip(">").rsplit(" ", 1)[-1]


def _constants(op: Op) -> list[Constant] | None:
    """Return the constants that are the operands; None unless all are."""
    if not all(static(r) and is_foldable(_type(r.type)) for r in op.results):
        return None
    result = []
    for value in op.operands:
        constant = constant_of(value)
        if constant is None:
            return None
        result.append(constant)
    return result


def _type(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _operands(constants: Sequence[Constant]) -> list[Array]:
    """Return the values, as scalars when all are splats."""
    if all(c.is_splat for c in constants):
        return [c.values for c in constants]
    return [c.full for c in constants]


def _new_nans_positive(result: Array, operands: Sequence[Array]) -> Array:
    """Return a NaN that no operand brought in has no sign, whatever the processor makes of it."""
    new = np.isnan(result)
    for operand in operands:
        new &= ~np.isnan(operand)
    return np.where(new, result.dtype.type(math.nan), result) if new.any() else result


# Folds: from the op and the constants that it reads to its value.

_Function = Callable[[Op, list[Constant]], Array | None]


class _Fold:
    """An op of constants is a constant, of at most `limit` elements; without `floats` only one of integers."""

    needs_constant = True

    def __init__(self, name: str, function: _Function, *, floats: bool = True, limit: int | None = None) -> None:
        self.op_name: str | None = f"stablehlo.{name}"
        self.function = function
        self.floats = floats
        self.limit = limit

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if not self.floats and not all(map(of_integers, (*op.operands, *op.results))):
            return False
        if self.limit is not None and _type(op.result.type).num_elements > self.limit:
            return False
        constants = _constants(op)
        return constants is not None and replace(op, self.function(op, constants), rewriter)


def _elementwise(function: Callable[..., Array | None]) -> _Function:
    def folded(op: Op, constants: list[Constant]) -> Array | None:
        values = _operands(constants)
        with np.errstate(all="ignore"):
            result = function(*values)
            if result is not None and len(values) == 2 and _is_float(result):
                result = _new_nans_positive(result, values)
        return result

    return folded


def _compare(op: Op, constants: list[Constant]) -> Array:
    return np.asarray(_COMPARISONS[comparison(op)](*_operands(constants)))


def _clamp(op: Op, constants: list[Constant]) -> Array | None:
    """Bounds and operand must have one type."""
    low, value, high = _operands(constants)
    return np.minimum(np.maximum(value, low), high) if len({c.type for c in constants}) == 1 else None


def _slice(op: Op, constants: list[Constant]) -> Array:
    names = ("start_indices", "limit_indices", "strides")
    index = tuple(slice(*s) for s in zip(*(integers(op, n) for n in names), strict=True))
    return constants[0].full[index]


def _bitwise_reduce(op: Op, constants: list[Constant]) -> Array | None:
    """`and` or `or` over a splat, however many elements, is that of the element and the initial value."""
    kind = region_reduction_kind(op.regions[0]) if len(op.results) == 1 else None
    if kind not in ("and", "or") or not all(c.is_splat for c in constants):
        return None
    element, start = (c.values for c in constants)
    return np.asarray(element & start if kind == "and" else element | start)


def _convert(op: Op, constants: list[Constant]) -> Array | None:
    source = constants[0].values
    if _is_float(source) and _type(op.result.type).element[0] not in "fb":
        if not np.isfinite(source.astype(np.float64)).all():
            return None
        source = np.trunc(source.astype(np.float64))
    with np.errstate(all="ignore"):
        return source.astype(zeros_like(_type(op.result.type)).dtype)


def _select_one(op: Op, constants: list[Constant]) -> Array | None:
    """Return a constant of its own in the place of the op; the next round merges it with equal ones in front."""
    predicate, true, false = constants
    return (true if predicate.values else false).full if predicate.is_splat else None


def _select(op: Op, constants: list[Constant]) -> Array | None:
    predicate, true, false = (c.full for c in constants)
    return None if constants[0].is_splat else np.where(predicate, true, false)


def _splat_shape(op: Op, value: Value) -> Result:
    """Fold a broadcast, reshape or transpose of a splat to a splat, whatever the element type."""
    return splat_text(value) if static(op.result) else None


def folding_patterns(limit: int, floats: bool) -> list[Pattern]:
    """Return the folds.

    `limit` is the number of elements up to which constants that grow the program are made; without `floats`,
    floating point values are not folded, except by functions of one operand, transposes, compares and selects.
    """

    def gated(name: str, function: _Function, limit: int | None = None) -> _Fold:
        return _Fold(name, function, floats=floats, limit=limit)

    splats = () if floats else (of_integers,)
    return [
        *(_Fold(name, _elementwise(function)) for name, function in _UNARY.items()),
        Rule("transpose", (), _splat_shape, when_constant=True),
        _Fold("transpose", lambda op, constants: constants[0].full.transpose(integers(op, "permutation"))),
        _Fold("compare", _compare),
        _Fold("reduce", _bitwise_reduce),
        _Fold("select", _select_one),
        _Fold("select", _select, limit=limit),
        *(gated(name, _elementwise(function)) for name, function in _BINARY.items()),
        Rule("broadcast_in_dim", splats, _splat_shape, when_constant=True),
        Rule("reshape", splats, _splat_shape, when_constant=True),
        gated("reshape", lambda op, constants: constants[0].full.reshape(shape_of(op.result))),
        gated("slice", _slice),
        gated("clamp", _clamp),
        gated("convert", _convert, limit),
        gated("concatenate", lambda op, cs: np.concatenate([c.full for c in cs], integer(op, "dimension")), limit),
    ]
