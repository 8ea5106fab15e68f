"""Which values of a body are sums over devices that need not be finished yet.

A product over rows that are sharded over an axis is a sum of one part for each device of the axis.  The *partial form*
of such a value has a new first dimension, sharded over the axes, with one part for each device; what is linear may be
applied to the parts.

    %g = dot_general %x, %dy, contracting [0] x [0]      %x, %dy sharded <[{"data"}, {}]>
    partial form of %g:  the products of the rows of each device, sharded <[{"data"}, {}, {}]>
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.semantics import is_exact_conversion, region_reduction_kind
from mpmd_trace.ir.stablehlo_attributes import integers, shape_of
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.sharding.axes import (
    ShardingOf,
    axes_of_value,
    convolution_dimensions,
    dot_dimensions,
    scatter_dimensions,
)
from mpmd_trace.passes.sharding.edges import CONSTRAINT

#: The axes over which a value is a sum; none for zero, which is a sum over any.
Form = tuple[str, ...]
ZERO: Form = ()
_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_ZEROS = re.compile(r"dense<\(?-?0(\.0+e\+00)?\)?> : ")
_LAYOUT = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "negate", "reshape", "reverse", "slice", "transpose")
) | {CONSTRAINT}
SUMS = ("stablehlo.add", "stablehlo.subtract")


@dataclasses.dataclass(frozen=True)
class Base:
    """An op that sums over a dimension that is sharded: of its operands, which are split there."""

    axes: Form
    dims: tuple[int, ...]


def is_zero(op: Op | None) -> bool:
    """Return whether the op is a constant of zeros."""
    value = op.props.get("value") if op is not None and op.name in _CONSTANTS else None
    return value is not None and _ZEROS.match(value.text) is not None


def _is_sum(op: Op) -> bool:
    """Return whether the op sums over dimensions, beginning with zero."""
    return (
        op.name == "stablehlo.reduce"
        and op.num_operands == 2
        and is_zero(op.operand(1).defining_op)
        and region_reduction_kind(op.regions[0]) == "add"
    )


def _base_of(op: Op, of: ShardingOf, sizes: Mapping[str, int]) -> Base | None:
    """Return the dimension over which the op sums that is sharded over most devices."""
    pairs: list[tuple[int, ...]] = []
    if op.name == "stablehlo.dot_general":
        dims = dot_dimensions(op)
        pairs = list(zip(dims.left_contracting, dims.right_contracting, strict=True))
    elif op.name == "stablehlo.scatter":
        return _scattered(op, of, sizes)
    elif op.name == "stablehlo.convolution":
        return _convolved(op, of, sizes)
    elif _is_sum(op):
        pairs = [(d,) for d in integers(op, "dimensions")]
    candidates: list[tuple[int, Base]] = []
    for pair in pairs:
        shardings = [axes_of_value(op.operand(i), of) for i in range(len(pair))]
        names = {None if axes is None else axes[d] for axes, d in zip(shardings, pair, strict=True)}
        only = names.pop()
        if names or not only or any(name not in sizes for name in only):
            continue
        count = math.prod(sizes[name] for name in only)
        if count > 1 and shape_of(op.operand(0))[pair[0]] % count == 0:
            candidates.append((count, Base(only, pair)))
    return max(candidates, key=lambda one: one[0])[1] if candidates else None


def _scattered(op: Op, of: ShardingOf, sizes: Mapping[str, int]) -> Base | None:
    """Return the dimensions of indices and updates that are sharded alike, where rows are added to zeros.

    That is the gradient of an embedding: a sum over tokens.
    """
    if not _adds_to_zeros(op):
        return None
    dims = scatter_dimensions(op)
    of_rows, of_updates = (axes_of_value(op.operand(i), of) for i in (1, 2))
    if of_rows is None or of_updates is None:
        return None
    rows = [d for d in range(len(of_rows)) if d != dims.index_vector]
    updates = [d for d in range(len(of_updates)) if d not in dims.update_window]
    for row, update in zip(rows, updates, strict=False):
        only = of_updates[update]
        count = math.prod(sizes.get(name, 0) for name in only)
        if only and of_rows[row] == only and count > 1 and shape_of(op.operand(2))[update] % count == 0:
            return Base(only, (row, update))
    return None


def _adds_to_zeros(op: Op) -> bool:
    """Return whether a scatter adds one array of rows to zeros."""
    return (
        op.num_operands == 3
        and not scatter_dimensions(op).input_batching
        and is_zero(op.operand(0).defining_op)
        and region_reduction_kind(op.regions[0]) == "add"
    )


def parts_of(op: Op) -> tuple[int, ...]:
    """Return the operands of a linear op that are in partial form, if its result is."""
    if op.name in SUMS:
        return 0, 1
    if op.name == "stablehlo.concatenate":
        return tuple(range(op.num_operands))
    return (0, 2) if op.name == "stablehlo.scatter" else (0,)


def _convolved(op: Op, of: ShardingOf, sizes: Mapping[str, int]) -> Base | None:
    """Return the features of both operands, where they are sharded alike: examples, if it is the gradient of a kernel.

    Each device can do that alone with its examples if no dimension of the window is sharded, and each axis shards one
    dimension of the result.
    """
    dims = convolution_dimensions(op)
    left, right = (axes_of_value(op.operand(i), of) for i in (0, 1))
    if dims is None or left is None or right is None or dims.feature_groups != 1:
        return None
    only, rows, columns = left[dims.left_feature], left[dims.left_batch], right[dims.right_output]
    if not only or right[dims.right_input] != only or (dims.batch_groups != 1 and (rows or columns)):
        return None
    names = [*only, *rows, *columns]
    if len(set(names)) < len(names) or sum(map(len, (*left, *right))) > len(names) + len(only):
        return None
    shapes = [shape_of(value) for value in op.operands]
    split = [(only, shapes[0][dims.left_feature]), (rows, shapes[0][dims.left_batch])]
    split.append((columns, shapes[1][dims.right_output]))
    counts = [(math.prod(sizes.get(name, 0) for name in axes), size) for axes, size in split]
    if any(count == 0 or size % count for count, size in counts) or counts[0][0] == 1:
        return None
    return Base(only, (dims.left_feature, dims.right_input))


class Forms:
    """The partial forms of the values of a body.

    `given`: the axes of arguments that come in partial form.
    """

    def __init__(self, block_ops: Sequence[Op], given: Mapping[Value, Form], of: ShardingOf, sizes: Mapping[str, int]):
        self.of = of
        self.sizes = sizes
        self.form: dict[Value, Form] = dict(given)
        self.base: dict[Op, Base] = {}
        for op in block_ops:
            if len(op.results) == 1 and not op.is_terminator:
                forms_of_op = self._of_op(op)
                if forms_of_op is not None:
                    self.form[op.results[0]] = forms_of_op

    def _of_op(self, op: Op) -> Form | None:
        result = op.results[0].type
        if not isinstance(result, TensorType) or "f" not in result.element or "complex" in result.element:
            return None  # sums of integers are not worth it, and are rarely sharded
        if is_zero(op):
            return ZERO
        operands = [self.form.get(value) for value in op.operands]
        linear = self._linear(op, operands)
        if linear is not None:
            return linear
        base = _base_of(op, self.of, self.sizes)
        if base is None:
            return None
        self.base[op] = base
        return base.axes

    def _linear(self, op: Op, forms: list[Form | None]) -> Form | None:
        """Return the form of what the op makes of parts, if it may be applied to each of them."""
        if not forms or forms[0] is None:
            return None
        if op.name in _LAYOUT:
            return forms[0]
        if op.name == "stablehlo.convert":
            return forms[0] if is_exact_conversion(op) else None
        if op.name == "stablehlo.reduce":
            return forms[0] if _is_sum(op) and forms[0] != ZERO else None
        if op.name in SUMS or op.name == "stablehlo.concatenate":
            nonzero = {form for form in forms if form != ZERO}
            return None if None in nonzero or len(nonzero) > 1 else nonzero.pop() if nonzero else ZERO
        if op.name == "stablehlo.pad":
            return forms[0] if is_zero(op.operand(1).defining_op) else None
        if op.name == "stablehlo.scatter":
            return (forms[2] or None) if _adds_to_zeros(op) else None
        if op.name in ("stablehlo.multiply", "stablehlo.divide") and forms[0] != ZERO:
            return forms[0] if self._scales(op.operand(1), forms[0]) else None
        return None

    def _scales(self, value: Value, axes: Form) -> bool:
        """Return whether every device of the axes has the value, so that it may multiply its part."""
        if value in self.form:
            return is_zero(value.defining_op)
        if value.defining_op is not None and value.defining_op.name in _CONSTANTS:
            return True
        own_axes = axes_of_value(value, self.of)
        return own_axes is not None and not any(name in axes for names in own_axes for name in names)
