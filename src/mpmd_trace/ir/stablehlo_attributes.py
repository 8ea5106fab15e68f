"""Readers of the attributes and types of StableHLO ops; without NumPy."""

from __future__ import annotations

import re

from mpmd_trace.ir.attributes import DenseArrayAttr, integer_in
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.types import TensorType


def integers(op: Op, name: str) -> tuple[int, ...]:
    """Return the values of an attribute such as `dimensions = array<i64: 0, 1>`."""
    attribute = op.props.get(name)
    return attribute.values if isinstance(attribute, DenseArrayAttr) else ()


def integer(op: Op, name: str, absent: int = 0) -> int:
    """Return the value of an integer attribute."""
    value = integer_in(op.props, name)
    return absent if value is None else value


def listed(op: Op, attribute: str, name: str) -> tuple[int, ...]:
    """Return the numbers behind `name = [` (or the one behind `name = `) in an attribute: `dot_dimension_numbers`."""
    attr = op.props.get(attribute)
    match = None if attr is None else re.search(rf"\b{name} = \[?([-\d, ]*)", attr.text)
    return tuple(int(n) for n in match[1].split(",") if n.strip()) if match else ()


def ranked(value: Value) -> TensorType | None:
    """Return the type of the value if it is a tensor of known rank."""
    type = value.type
    return type if isinstance(type, TensorType) and type.shape is not None else None


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the shape of a ranked tensor."""
    type = ranked(value)
    return () if type is None or type.shape is None else type.shape
