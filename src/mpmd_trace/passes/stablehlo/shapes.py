"""Simplification of StableHLO ops that move elements around: reshape, transpose, broadcast, slice ...

Source: section 3.8 of the specification of sharding propagation; the rules were found by experiment.
"""

from __future__ import annotations

import math
import re

import numpy as np

from mpmd_trace.ir.attributes import Attribute, IntegerAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.greedy import Pattern, Rewriter
from mpmd_trace.passes.stablehlo.build import (
    integer,
    integers,
    ints,
    is_static,
    ranked,
    replace_by_constant,
    replace_by_new,
    replace_by_value,
)
from mpmd_trace.passes.stablehlo.elements import (
    constant_of,
    is_foldable,
    make_constant,
    splat_text,
    with_shape,
    zeros_like,
)

__all__ = ["shape_patterns"]


def _shape(value: Value) -> tuple[int, ...]:
    """The shape of a ranked tensor."""
    found = ranked(value)
    assert found is not None
    return found.shape or ()


def _producer(value: Value, name: str) -> Op | None:
    op = value.defining_op
    return op if op is not None and op.name == name else None


def _replace(op: Op, value: Value, rewriter: Rewriter) -> bool:
    rewriter.replace_op(op, [value])
    return True


class _Reshape:
    """No reshape to the same type, and none of a reshape."""

    op_name: str | None = "stablehlo.reshape"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value = op.operand(0)
        if value.type is op.result.type:
            return replace_by_value(op, value, rewriter)
        inner = _producer(value, op.name)
        if inner is None:
            return False
        return replace_by_new(op, op.name, inner.operands, op.props, rewriter)


class _Transpose:
    """No transpose that keeps the order of the elements, and none of a transpose."""

    op_name: str | None = "stablehlo.transpose"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, permutation = op.operand(0), integers(op, "permutation")
        if value.type is op.result.type and list(permutation) == sorted(permutation):
            return replace_by_value(op, value, rewriter)
        inner = _producer(value, op.name)
        if inner is not None:
            first = integers(inner, "permutation")
            both = ints([first[i] for i in permutation])
            return replace_by_new(
                op, op.name, inner.operands, {"permutation": both}, rewriter
            )
        shape = _shape(value)
        moved = [i for i in permutation if shape[i] != 1]
        if is_static(value) and moved == sorted(moved):
            return replace_by_new(op, "stablehlo.reshape", [value], {}, rewriter, keep_attrs=False)
        return False


class _Broadcast:
    """No broadcast that is the identity, a reshape or a transpose, and none of a broadcast."""

    op_name: str | None = "stablehlo.broadcast_in_dim"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, dims = op.operand(0), integers(op, "broadcast_dimensions")
        if not is_static(value) or not is_static(op.result):
            return False
        is_sorted = list(dims) == sorted(dims)
        if value.type is op.result.type and is_sorted:
            return replace_by_value(op, value, rewriter)
        inner = _producer(value, op.name)
        if inner is not None:
            through = ints([dims[i] for i in integers(inner, "broadcast_dimensions")])
            props: dict[str, Attribute] = {"broadcast_dimensions": through}
            return replace_by_new(op, op.name, inner.operands, props, rewriter)
        before, after = _shape(value), _shape(op.result)
        if is_sorted and math.prod(before) == math.prod(after):
            return replace_by_new(op, "stablehlo.reshape", [value], {}, rewriter)
        if len(before) == len(after) and all(after[d] == n for n, d in zip(before, dims, strict=True)):
            permutation = ints([dims.index(i) for i in range(len(dims))])
            return replace_by_new(
                op, "stablehlo.transpose", [value], {"permutation": permutation}, rewriter
            )
        return False


class _Iota:
    """An iota has one dimension, of more than one element."""

    op_name: str | None = "stablehlo.iota"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        type_ = ranked(op.result)
        if type_ is None or not is_static(op.result):
            return False
        shape, dim = type_.shape or (), integer(op, "iota_dimension")
        if shape[dim] == 1 and is_foldable(type_):
            return replace_by_constant(op, zeros_like(type_), rewriter)
        if len(shape) == 1:
            return False
        line = make_op(
            op.name,
            [],
            [with_shape(type_, (shape[dim],))],
            props={"iota_dimension": IntegerAttr.get(0)},
            loc=op.loc,
        )
        rewriter.insert_before(op, line)
        props: dict[str, Attribute] = {"broadcast_dimensions": ints([dim])}
        name = "stablehlo.broadcast_in_dim"
        return replace_by_new(op, name, line.results, props, rewriter, keep_attrs=False)


class _Concatenate:
    """Several parts: none empty, none a concatenation used only here, no splat beside an equal one of its type."""

    op_name: str | None = "stablehlo.concatenate"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        parts, dim = op.operands, integer(op, "dimension")
        if len(parts) == 1 and parts[0].type is op.result.type:
            return _replace(op, parts[0], rewriter)
        filled = [p for p in parts if _shape(p)[dim] != 0]
        if filled and len(filled) < len(parts):
            return replace_by_new(op, op.name, filled, op.props, rewriter)
        flat: list[Value] = []
        for part in parts:
            inner = _producer(part, op.name)
            if inner is not None and part.has_one_use and integer(inner, "dimension") == dim:
                flat += inner.operands
            else:
                flat.append(part)
        if len(flat) == len(parts) and flat == parts:
            return _joined_splats(op, dim, rewriter)
        return replace_by_new(op, op.name, flat, op.props, rewriter)


def _joined_splats(op: Op, dim: int, rewriter: Rewriter) -> bool:
    """Make one constant of neighbours in a concatenation that are the same splat."""
    runs: list[list[Value]] = []
    for part in op.operands:
        value = _splat(part)
        if runs and value is not None and value is _splat(runs[-1][0]):
            runs[-1].append(part)
        else:
            runs.append([part])
    if len(runs) == op.num_operands:
        return False
    joined: list[Value] = []
    for run in runs:
        if len(run) == 1:
            joined += run
            continue
        type_, element = ranked(run[0]), splat_text(run[0])
        assert type_ is not None and element is not None
        shape = list(type_.shape or ())
        shape[dim] *= len(run)
        constant = make_constant(element, with_shape(type_, tuple(shape)), op.loc)
        joined += rewriter.insert_before(op, constant).results
    return replace_by_new(op, op.name, joined, op.props, rewriter, keep_attrs=False)


def _splat(value: Value) -> Attribute | None:
    """The attribute of the constant that defines the value, if it repeats one element."""
    op = value.defining_op
    return None if op is None or splat_text(value) is None else op.props["value"]


class _Slice:
    """No slice of everything; a slice of a concatenation is one of the parts that it touches."""

    op_name: str | None = "stablehlo.slice"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value = op.operand(0)
        if value.type is op.result.type and is_static(value):
            return replace_by_value(op, value, rewriter)
        whole = _producer(value, "stablehlo.concatenate")
        if whole is None:
            return False
        dim = integer(whole, "dimension")
        start, limit = list(integers(op, "start_indices")), list(integers(op, "limit_indices"))
        touched: list[Value] = []
        offset = position = 0
        for part in whole.operands:
            size = _shape(part)[dim]
            if position < limit[dim] and start[dim] < position + size:
                if not touched:
                    offset = position
                touched.append(part)
            position += size
        if not touched or len(touched) == whole.num_operands:
            return False
        source = touched[0]
        if len(touched) > 1:
            if not value.has_one_use:
                return False
            type_ = ranked(value)
            assert type_ is not None
            shape = list(type_.shape or ())
            shape[dim] = sum(_shape(p)[dim] for p in touched)
            smaller = make_op(
                whole.name,
                touched,
                [with_shape(type_, tuple(shape))],
                props=whole.props,
                loc=whole.loc,
            )
            rewriter.insert_before(op, smaller)
            source = smaller.result
        start[dim] -= offset
        limit[dim] -= offset
        props = {**op.props, "start_indices": ints(start), "limit_indices": ints(limit)}
        return replace_by_new(op, op.name, [source], props, rewriter, keep_attrs=False)


def _clamped(index: int, size: int, wanted: int) -> int:
    return max(0, min(index, size - wanted))


def _index(value: Value) -> int | None:
    constant = constant_of(value)
    return None if constant is None else int(constant.full.reshape(-1)[0])


class _DynamicSlice:
    """A dynamic slice at known indices is a slice."""

    op_name: str | None = "stablehlo.dynamic_slice"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, *at = op.operands
        indices = [_index(v) for v in at]
        known = [i for i in indices if i is not None]
        if len(known) != len(indices) or not is_static(value):
            return False
        sizes = integers(op, "slice_sizes")
        start = [_clamped(*x) for x in zip(known, _shape(value), sizes, strict=True)]
        props = _slice_props(start, sizes)
        return replace_by_new(op, "stablehlo.slice", [value], props, rewriter)


def _slice_props(start: list[int], sizes: tuple[int, ...]) -> dict[str, Attribute]:
    limit = [s + n for s, n in zip(start, sizes, strict=True)]
    return {
        "start_indices": ints(start),
        "limit_indices": ints(limit),
        "strides": ints([1] * len(start)),
    }


class _DynamicUpdateSlice:
    """An update of nothing is the operand, one of everything (at index 0) the update."""

    op_name: str | None = "stablehlo.dynamic_update_slice"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, update, *at = op.operands
        if is_static(update) and 0 in _shape(update):
            return replace_by_value(op, value, rewriter)
        if value.type is update.type and all(_index(v) == 0 for v in at):
            return replace_by_value(op, update, rewriter)
        return False


class _Static:
    """An op with a dynamic result shape whose result type is static after all."""

    def __init__(self, dynamic: str, static: str, kept: tuple[str, ...]) -> None:
        self.op_name: str | None = dynamic
        self.static = static
        self.kept = kept

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if not is_static(op.result) or not is_static(op.operand(0)):
            return False
        props = {k: v for k, v in op.props.items() if k in self.kept}
        return replace_by_new(op, self.static, [op.operand(0)], props, rewriter, keep_attrs=False)


class _Pad:
    """No padding by nothing; padding of nothing is a broadcast."""

    op_name: str | None = "stablehlo.pad"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, padding = op.operands
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        if value.type is op.result.type and not any(any(integers(op, n)) for n in names):
            return _replace(op, value, rewriter)
        if not is_static(value) or 0 not in _shape(value):
            return False
        name = "stablehlo.broadcast_in_dim"
        props: dict[str, Attribute] = {"broadcast_dimensions": ints([])}
        return replace_by_new(op, name, [padding], props, rewriter, keep_attrs=False)


class _Gather:
    """One slice gathered at known indices is a slice."""

    op_name: str | None = "stablehlo.gather"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value, at = op.operands
        indices, type_ = constant_of(at), ranked(value)
        numbers = op.props["dimension_numbers"].text
        if indices is None or type_ is None or not is_static(value) or "batching" in numbers:
            return False
        if len(indices.full.shape) != 1 or _listed(numbers, "index_vector_dim") not in ([], [0]):
            return False
        offsets = _listed(numbers, "offset_dims")
        if offsets != list(range(len(_shape(op.result)))):
            return False
        sizes = integers(op, "slice_sizes")
        start = [0] * len(sizes)
        for number, dim in enumerate(_listed(numbers, "start_index_map")):
            wanted = int(indices.full[number])
            start[dim] = _clamped(wanted, _shape(value)[dim], sizes[dim])
        piece = make_op(
            "stablehlo.slice",
            [value],
            [with_shape(type_, sizes)],
            props=_slice_props(start, sizes),
            loc=op.loc,
        )
        rewriter.insert_before(op, piece)
        if piece.result.type is op.result.type:
            return _replace(op, piece.result, rewriter)
        return replace_by_new(op, "stablehlo.reshape", piece.results, {}, rewriter, keep_attrs=False)


def _listed(numbers: str, name: str) -> list[int]:
    match = re.search(rf"\b{name} = \[?([-0-9, ]*)\]?", numbers)
    return [int(n) for n in match.group(1).split(",") if n.strip()] if match else []


class _DimensionSize:
    """The size of a static dimension is a constant."""

    op_name: str | None = "stablehlo.get_dimension_size"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        value = op.operand(0)
        if ranked(value) is None:
            return False
        size = _shape(value)[integer(op, "dimension")]
        return size >= 0 and replace_by_constant(op, np.array(size), rewriter)


class _Empty:
    """A value without elements is a constant."""

    op_name: str | None = None

    @staticmethod
    def suits(type: Type | None) -> bool:
        """Whether a tensor of this type has no element."""
        return isinstance(type, TensorType) and 0 in (type.shape or ()) and -1 not in (type.shape or ())

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if len(op.results) != 1 or not op.name.startswith("stablehlo."):
            return False
        if op.name == "stablehlo.constant" or not is_pure(op):
            return False
        return replace_by_constant(op, "", rewriter)


def shape_patterns() -> list[Pattern]:
    """The rules of this file."""
    return [
        _Reshape(),
        _Transpose(),
        _Broadcast(),
        _Iota(),
        _Concatenate(),
        _Slice(),
        _DynamicSlice(),
        _DynamicUpdateSlice(),
        _Static("stablehlo.dynamic_reshape", "stablehlo.reshape", ()),
        _Static(
            "stablehlo.dynamic_broadcast_in_dim",
            "stablehlo.broadcast_in_dim",
            ("broadcast_dimensions",),
        ),
        _Static("stablehlo.dynamic_iota", "stablehlo.iota", ("iota_dimension",)),
        _Pad(),
        _Gather(),
        _DimensionSize(),
        _Empty(),
    ]
