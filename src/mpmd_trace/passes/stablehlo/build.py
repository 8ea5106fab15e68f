"""Reads the attributes of StableHLO ops and makes new ops."""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, IntegerAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Rewriter
from mpmd_trace.passes.stablehlo.elements import Array, make_constant

__all__ = [
    "integer",
    "integers",
    "ints",
    "is_static",
    "ranked",
    "replace_by_constant",
    "replace_by_new",
    "replace_by_value",
]


def integers(op: Op, name: str) -> tuple[int, ...]:
    """The values of an attribute such as `dimensions = array<i64: 0, 1>`."""
    found = op.props.get(name)
    return found.values if isinstance(found, DenseArrayAttr) else ()


def integer(op: Op, name: str) -> int:
    """The value of an integer attribute (0 when it is absent)."""
    found = op.props.get(name)
    return found.value if isinstance(found, IntegerAttr) else 0


def ints(values: Sequence[int]) -> DenseArrayAttr:
    """`array<i64: ...>`."""
    return DenseArrayAttr.get(values)


def ranked(value: Value) -> TensorType | None:
    """The type of the value if it is a tensor of known rank."""
    found = value.type
    return found if isinstance(found, TensorType) and found.shape is not None else None


def is_static(value: Value) -> bool:
    """Whether the value is a tensor all of whose dimensions are known."""
    found = ranked(value)
    return found is not None and -1 not in (found.shape or ())


def replace_by_constant(op: Op, values: Array | str, rewriter: Rewriter) -> bool:
    """Put a constant in the place of an op with one result."""
    type_ = op.result.type
    assert isinstance(type_, TensorType)
    constant = make_constant(values, type_, op.loc)
    rewriter.insert_before(op, constant)
    rewriter.replace_op(op, constant.results)
    return True


def replace_by_value(op: Op, value: Value, rewriter: Rewriter) -> bool:
    """Put an existing value in the place of an op with one result; its producer takes over the attributes.

    That is what the rules do that StableHLO declares in tables; those written out leave the producer alone.
    """
    rewriter.replace_op(op, [value])
    producer = value.defining_op
    if producer is not None:
        producer.attrs.update(op.attrs)
    return True


def replace_by_new(
    op: Op,
    name: str,
    operands: Sequence[Value],
    props: dict[str, Attribute],
    rewriter: Rewriter,
    *,
    keep_attrs: bool = True,
) -> bool:
    """Put an op called `name` with the result type of `op` in its place."""
    new = make_op(
        name,
        operands,
        [op.result.type],
        props=props,
        attrs=op.attrs if keep_attrs else None,
        loc=op.loc,
    )
    rewriter.insert_before(op, new)
    rewriter.replace_op(op, new.results)
    return True
