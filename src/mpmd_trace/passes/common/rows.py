"""Arrays of one type as the rows of one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, IntegerAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.types import TensorType, tensor

__all__ = ["of_rows", "row_of", "rows_type"]


def rows_type(row: TensorType, count: int) -> TensorType:
    """Return the type of an array of so many rows, each of type `row`."""
    assert row.shape is not None
    return tensor((count, *row.shape), row.element, row.encoding)


def of_rows(values: Sequence[Value]) -> list[Op]:
    """Ops, the last of which gives the array with these values of one type as its rows."""
    type = cast(TensorType, values[0].type)
    rows = [make_op("stablehlo.reshape", [value], [rows_type(type, 1)]) for value in values]
    whole = rows_type(type, len(values))
    props: dict[str, Attribute] = {"dimension": IntegerAttr.get(0, "i64")}
    return [*rows, make_op("stablehlo.concatenate", [row.result for row in rows], [whole], props=props)]


def row_of(whole: Value, number: int, type: TensorType) -> list[Op]:
    """Ops, the last of which gives row `number`, of type `type`."""
    assert type.shape is not None
    props: dict[str, Attribute] = {
        "start_indices": DenseArrayAttr.get((number, *[0] * len(type.shape))),
        "limit_indices": DenseArrayAttr.get((number + 1, *type.shape)),
        "strides": DenseArrayAttr.get([1] * (1 + len(type.shape))),
    }
    piece = make_op("stablehlo.slice", [whole], [rows_type(type, 1)], props=props)
    return [piece, make_op("stablehlo.reshape", [piece.result], [type])]
