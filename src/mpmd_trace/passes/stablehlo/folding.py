"""Folding of StableHLO ops whose operands are constants.

What folds, and what does not, is what StableHLO's own folder does (found by experiment).  Source: section 3.8
of the specification of sharding propagation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.semantics import region_reduction_kind
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Pattern, Rewriter
from mpmd_trace.passes.stablehlo.build import integer, integers, is_static, replace_by_constant
from mpmd_trace.passes.stablehlo.elements import Array, Constant, constant_of, is_foldable, splat_text

__all__ = ["folding_patterns"]

_Unary = Callable[[float], float]


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _periodic(function: _Unary) -> _Unary:
    """The value of C's library at infinity is a NaN with its sign bit set."""
    return lambda x: -math.nan if math.isinf(x) else function(x)


#: Float functions, computed in double precision; the second entry says where they are defined.
_FLOAT_UNARY: dict[str, tuple[_Unary, Callable[[float], bool]]] = {
    "stablehlo.cosine": (_periodic(math.cos), lambda x: True),
    "stablehlo.exponential": (math.exp, lambda x: True),
    "stablehlo.log": (math.log, lambda x: x > 0),
    "stablehlo.logistic": (_logistic, lambda x: True),
    "stablehlo.rsqrt": (lambda x: 1.0 / math.sqrt(x), lambda x: x > 0),
    "stablehlo.sine": (_periodic(math.sin), lambda x: True),
    "stablehlo.sqrt": (math.sqrt, lambda x: x >= 0),
    "stablehlo.tan": (_periodic(math.tan), lambda x: True),
    "stablehlo.tanh": (math.tanh, lambda x: True),
}


def _is_float(values: Array) -> bool:
    return values.dtype.kind not in "biu"


def _unary(op: Op, values: Array) -> Array | None:
    name = op.name
    if name == "stablehlo.negate":
        return -values if values.dtype != bool else None
    if name == "stablehlo.abs":
        return np.abs(values)
    if name == "stablehlo.not":
        return ~values if not _is_float(values) else None
    if name == "stablehlo.sign":
        return np.sign(values)
    if name == "stablehlo.round_nearest_even":
        return np.rint(values) if _is_float(values) else None
    known = _FLOAT_UNARY.get(name)
    if known is None or not _is_float(values):
        return None
    function, defined = known
    numbers = [float(v) for v in values.reshape(-1)]
    if not all(math.isnan(v) or defined(v) for v in numbers):
        return None
    try:
        negates = name == "stablehlo.logistic"  # its operand, before anything else
        results = [(-v if negates else v) if math.isnan(v) else function(v) for v in numbers]
    except OverflowError:
        return None
    return np.array(results, np.float64).astype(values.dtype).reshape(values.shape)


def _truncated(quotient: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array | None]:
    """An integer division with rounding towards zero; None where the divisor is zero."""

    def divide(a: Array, b: Array) -> Array | None:
        if (b == 0).any():
            return None
        return np.asarray(quotient(a, b))

    return divide


def _int_quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "u":
        return a // b
    return (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)


def _divide(a: Array, b: Array) -> Array | None:
    if _is_float(a):
        return a / b
    return None if a.dtype == bool else _truncated(_int_quotient)(a, b)


def _remainder(a: Array, b: Array) -> Array | None:
    if _is_float(a):
        return np.fmod(a, b)
    if a.dtype == bool:
        return None
    return _truncated(lambda x, y: x - _int_quotient(x, y) * y)(a, b)


def _integers_only(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array | None]:
    return lambda a, b: None if _is_float(a) else function(a, b)


_BINARY: dict[str, Callable[[Array, Array], Array | None]] = {
    "stablehlo.add": lambda a, b: np.logical_or(a, b) if a.dtype == bool else a + b,
    "stablehlo.subtract": lambda a, b: None if a.dtype == bool else a - b,
    "stablehlo.multiply": lambda a, b: np.logical_and(a, b) if a.dtype == bool else a * b,
    "stablehlo.divide": _divide,
    "stablehlo.remainder": _remainder,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.and": _integers_only(np.bitwise_and),
    "stablehlo.or": _integers_only(np.bitwise_or),
    "stablehlo.xor": _integers_only(np.bitwise_xor),
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
    found: Attribute = op.props["comparison_direction"]
    return found.text.rstrip(">").rsplit(" ", 1)[-1]


def _constants(op: Op) -> list[Constant] | None:
    """The constants that are the operands; None unless all are."""
    if not all(is_static(r) and is_foldable(_type(r.type)) for r in op.results):
        return None
    found = []
    for value in op.operands:
        constant = constant_of(value)
        if constant is None:
            return None
        found.append(constant)
    return found


def _type(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _operands(constants: Sequence[Constant]) -> list[Array]:
    """The values, as scalars when all are splats."""
    if all(c.is_splat for c in constants):
        return [c.values for c in constants]
    return [c.full for c in constants]


def _new_nans_positive(result: Array, operands: Sequence[Array]) -> Array:
    """A NaN that no operand brought in has no sign, whatever the processor makes of it."""
    new = np.isnan(result)
    for operand in operands:
        new &= ~np.isnan(operand)
    return np.where(new, result.dtype.type(math.nan), result) if new.any() else result


class _FoldElementwise:
    """An elementwise op of constants is a constant."""

    needs_constant = True

    def __init__(self, op_name: str, arity: int) -> None:
        self.op_name: str | None = op_name
        self.arity = arity

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None or len(constants) != self.arity:
            return False
        values = _operands(constants)
        with np.errstate(all="ignore"):
            if self.arity == 1:
                result = _unary(op, values[0])
            else:
                result = _BINARY[op.name](*values)
                if result is not None and _is_float(result):
                    result = _new_nans_positive(result, values)
        return result is not None and replace_by_constant(op, result, rewriter)


class _FoldCompare:
    needs_constant = True
    op_name: str | None = "stablehlo.compare"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None:
            return False
        result = np.asarray(_COMPARISONS[comparison(op)](*_operands(constants)))
        return replace_by_constant(op, result, rewriter)


class _FoldClamp:
    """Bounds and operand must have one type."""

    needs_constant = True
    op_name: str | None = "stablehlo.clamp"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None or len({c.type for c in constants}) != 1:
            return False
        low, value, high = _operands(constants)
        return replace_by_constant(op, np.minimum(np.maximum(value, low), high), rewriter)


class _FoldSplatShape:
    """A broadcast, reshape or transpose of a splat is a splat, whatever the element type."""

    needs_constant = True

    def __init__(self, op_name: str) -> None:
        self.op_name: str | None = op_name

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        text = splat_text(op.operand(0))
        return text is not None and is_static(op.result) and replace_by_constant(op, text, rewriter)


class _FoldReshape:
    needs_constant = True
    op_name: str | None = "stablehlo.reshape"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None:
            return False
        shape = _type(op.result.type).shape
        assert shape is not None
        return replace_by_constant(op, constants[0].full.reshape(shape), rewriter)


class _FoldTranspose:
    needs_constant = True
    op_name: str | None = "stablehlo.transpose"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None:
            return False
        values = constants[0].full.transpose(integers(op, "permutation"))
        return replace_by_constant(op, values, rewriter)


class _FoldSlice:
    needs_constant = True
    op_name: str | None = "stablehlo.slice"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = _constants(op)
        if constants is None:
            return False
        names = ("start_indices", "limit_indices", "strides")
        index = tuple(slice(*s) for s in zip(*(integers(op, n) for n in names), strict=True))
        return replace_by_constant(op, constants[0].full[index], rewriter)


class _FoldBitwiseReduce:
    """`and` or `or` over a splat, however many elements, is that of the element and the initial value."""

    needs_constant = True
    op_name: str | None = "stablehlo.reduce"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        kind = region_reduction_kind(op.regions[0]) if len(op.results) == 1 else None
        constants = _constants(op) if kind in ("and", "or") else None
        if constants is None or not all(c.is_splat for c in constants):
            return False
        element, start = (c.values for c in constants)
        return replace_by_constant(op, element & start if kind == "and" else element | start, rewriter)


class _Limited:
    """Folds that make a constant of at most `limit` elements."""

    needs_constant = True

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def constants(self, op: Op) -> list[Constant] | None:
        return _constants(op) if _type(op.result.type).num_elements <= self.limit else None


class _FoldConvert(_Limited):
    op_name: str | None = "stablehlo.convert"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = self.constants(op)
        if constants is None:
            return False
        source, target = constants[0].values, _type(op.result.type)
        to_float = target.element[0] in "fb"
        if _is_float(source) and not to_float:
            if not np.isfinite(source.astype(np.float64)).all():
                return False
            source = np.trunc(source.astype(np.float64))
        with np.errstate(all="ignore"):
            return replace_by_constant(op, source, rewriter)


class _FoldConcatenate(_Limited):
    op_name: str | None = "stablehlo.concatenate"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = self.constants(op)
        if constants is None:
            return False
        values = np.concatenate([c.full for c in constants], integer(op, "dimension"))
        return replace_by_constant(op, values, rewriter)


class _FoldSelect(_Limited):
    op_name: str | None = "stablehlo.select"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        constants = self.constants(op)
        if constants is None or constants[0].is_splat:
            return False
        predicate, true, false = (c.full for c in constants)
        return replace_by_constant(op, np.where(predicate, true, false), rewriter)


class _IntegersOnly:
    """A fold of values that are not floats."""

    needs_constant = True

    def __init__(self, fold: Pattern) -> None:
        self.op_name = fold.op_name
        self.fold = fold

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        for value in (*op.operands, *op.results):
            type_ = value.type
            if not isinstance(type_, TensorType) or type_.element[:1] not in ("i", "u"):
                return False
        return self.fold.match_and_rewrite(op, rewriter)


def folding_patterns(limit: int, floats: bool) -> list[Pattern]:
    """The folds.

    `limit` is the number of elements up to which constants that grow the program are made; without `floats`,
    floating point values are not folded, except by functions of one operand, transposes and selects.
    """
    unary = ["negate", "abs", "not", "sign", "round_nearest_even"]
    always: list[Pattern] = [_FoldElementwise(f"stablehlo.{name}", 1) for name in unary]
    always += [_FoldElementwise(name, 1) for name in _FLOAT_UNARY]
    always += [_FoldSplatShape("stablehlo.transpose"), _FoldTranspose(), _FoldCompare()]
    always += [_FoldBitwiseReduce(), _FoldSelect(limit)]
    gated: list[Pattern] = [_FoldElementwise(name, 2) for name in _BINARY]
    gated += [_FoldSplatShape(f"stablehlo.{name}") for name in ("broadcast_in_dim", "reshape")]
    gated += [_FoldReshape(), _FoldSlice(), _FoldClamp()]
    gated += [_FoldConvert(limit), _FoldConcatenate(limit)]
    return always + (gated if floats else [_IntegersOnly(fold) for fold in gated])
