"""Rewrites of ops as data: which op, with which operands, and what stands in its place.

    Rule("add", (any_value, splat(0)), lambda op, x, zero: same_type(op, x))

A rule is asked about every op of its name whose operands match, one by one.  Its result is None, where it does not
apply after all, or what replaces the op: a value (or `Declared`), an array or the spelling of a splat for a constant,
or `New` for another op with the same result type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.stablehlo_attributes import ranked
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Rewriter

if TYPE_CHECKING:
    from mpmd_trace.passes.stablehlo.elements import Array

Matcher = Callable[[Value], bool]
BROADCAST = "stablehlo.broadcast_in_dim"


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """An existing value whose producer takes over the attributes of the op.

    That is what the rules do that StableHLO declares in tables; those written out leave the producer alone.
    """

    value: Value


@dataclasses.dataclass(frozen=True, slots=True)
class New:
    """A new op with the result type of the old one, and with its attributes beside the properties."""

    name: str
    operands: Sequence[Value]
    props: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    keep_attrs: bool = True


Result = Union[Value, Declared, "Array", str, New, None]


class Rule:
    """A rewrite of `stablehlo.{name}`, or of an op of another dialect by its full name; see the head of the file.

    `operands` may be shorter than those of the op; those behind are not looked at.  With `when_constant` the rule is
    for ops that read a constant only, which saves asking most ops of a program.
    """

    def __init__(
        self, name: str, operands: Sequence[Matcher], result: Callable[..., Result], *, when_constant: bool = False
    ) -> None:
        self.op_name: str | None = _full(name)
        self.needs_constant = when_constant or any(getattr(m, "needs_constant", False) for m in operands)
        self._matchers = [(i, m) for i, m in enumerate(operands) if m is not any_value]
        self._result = result

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        values = op.operands
        for i, matches in self._matchers:
            if i >= len(values) or not matches(values[i]):
                return False
        return replace(op, self._result(op, *values), rewriter)


def _full(name: str) -> str:
    return name if "." in name else f"stablehlo.{name}"


def replace(op: Op, result: Result, rewriter: Rewriter) -> bool:
    """Put the result of a rule in the place of an op; says whether there is one."""
    if result is None:
        return False
    if isinstance(result, Declared):
        rewriter.replace_op(op, [result.value])
        producer = result.value.defining_op
        if producer is not None:
            producer.attrs.update(op.attrs)
    elif isinstance(result, New):
        attrs = op.attrs if result.keep_attrs else None
        new = make_op(result.name, result.operands, [op.result.type], props=result.props, attrs=attrs, loc=op.loc)
        rewriter.insert_before(op, new)
        rewriter.replace_op(op, new.results)
    elif isinstance(result, Value):
        rewriter.replace_op(op, [result])
    else:
        type_ = op.result.type
        assert isinstance(type_, TensorType)
        from mpmd_trace.passes.stablehlo.elements import make_constant  # NumPy, which is slow to import

        made = make_constant(result, type_, op.loc)
        rewriter.insert_before(op, made)
        rewriter.replace_op(op, made.results)
    return True


# Operands.


def any_value(value: Value) -> bool:
    return True


def of_integers(value: Value) -> bool:
    """Return whether this is a tensor of integers (or booleans)."""
    type_ = value.type
    return isinstance(type_, TensorType) and type_.element[:1] in ("i", "u")


def static(value: Value) -> bool:
    """Return whether this is a tensor all of whose dimensions are known."""
    type = ranked(value)
    return type is not None and -1 not in (type.shape or ())


def _needing_constant(matches: Matcher) -> Matcher:
    matches.needs_constant = True  # type: ignore[attr-defined]
    return matches


@_needing_constant
def constant(value: Value) -> bool:
    """Return whether this is a constant of any type."""
    op = value.defining_op
    return op is not None and op.name == "stablehlo.constant"


def other_than_constant(value: Value) -> bool:
    return not constant(value)


def splat(what: int) -> Matcher:
    """Match a constant that repeats 0, 1, or (-1) all bits set."""
    from mpmd_trace.passes.stablehlo.elements import constant_of  # NumPy, which is slow to import

    def matches(value: Value) -> bool:
        constant = constant_of(value)
        if constant is None or not constant.is_splat:
            return False
        element: Any = constant.values
        if element.dtype == bool:
            return bool(element) is (what != 0)
        if what == -1:
            return element.dtype.kind in "iu" and bool(element == ~element.dtype.type(0))
        return bool(element == what)

    return _needing_constant(matches)


def made_by(name: str) -> Matcher:
    """Match the result of `stablehlo.{name}`, or of an op by its full name."""
    wanted = _full(name)

    def matches(value: Value) -> bool:
        op = value.defining_op
        return op is not None and op.name == wanted

    return matches


# What rules read and write.


def same_type(op: Op, value: Value) -> Declared | None:
    """Return the value, if it has the type of the op's result."""
    return Declared(value) if value.type is op.result.type else None


def ints(values: Sequence[int]) -> DenseArrayAttr:
    """`array<i64: ...>`."""
    return DenseArrayAttr.get(values)
