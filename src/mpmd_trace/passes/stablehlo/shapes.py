"""Simplification of StableHLO ops that move elements around: reshape, transpose, broadcast, slice ...

The rules are those of StableHLO's own pass, found by experiment.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from mpmd_trace.ir.attributes import Attribute, IntegerAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.stablehlo_attributes import integer, integers, listed, ranked, shape_of
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.greedy import Pattern, Rewriter, rewrites
from mpmd_trace.passes.stablehlo.elements import (
    constant_of,
    integer_of,
    is_foldable,
    make_constant,
    splat_text,
    with_shape,
    zeros_like,
)
from mpmd_trace.passes.stablehlo.rules import (
    BROADCAST,
    Declared,
    New,
    Result,
    Rule,
    constant,
    ints,
    replace,
    same_type,
    static,
)

_RESHAPE = "stablehlo.reshape"


def _producer(value: Value, name: str) -> Op | None:
    op = value.defining_op
    return op if op is not None and op.name == name else None


def _reshape(op: Op, value: Value) -> Result:
    """Fold a reshape to the same type, and join two reshapes."""
    inner = _producer(value, op.name)
    return same_type(op, value) or (New(op.name, inner.operands, op.props) if inner is not None else None)


def _transpose(op: Op, value: Value) -> Result:
    """Fold the identity, join two transposes, and make a reshape of one that keeps the elements in order."""
    permutation = integers(op, "permutation")
    if value.type is op.result.type and list(permutation) == sorted(permutation):
        return Declared(value)
    inner = _producer(value, op.name)
    if inner is not None:
        first = integers(inner, "permutation")
        return New(op.name, inner.operands, {"permutation": ints([first[i] for i in permutation])})
    shape = shape_of(value)
    moved = [i for i in permutation if shape[i] != 1]
    return New(_RESHAPE, [value], keep_attrs=False) if static(value) and moved == sorted(moved) else None


def _is_reshape(op: Op, value: Value) -> bool:
    """Return whether a broadcast of the value leaves its elements as many and in order."""
    dims = list(integers(op, "broadcast_dimensions"))
    return dims == sorted(dims) and math.prod(shape_of(value)) == math.prod(shape_of(op.result))


def _broadcast(op: Op, value: Value) -> Result:
    """Fold the identity, join two broadcasts unless the inner one is a reshape, or make a reshape or transpose."""
    if not static(op.result):
        return None
    dims = integers(op, "broadcast_dimensions")
    if value.type is op.result.type and list(dims) == sorted(dims):
        return Declared(value)
    inner = _producer(value, op.name)
    if inner is not None and not _is_reshape(inner, inner.operand(0)):
        through = ints([dims[i] for i in integers(inner, "broadcast_dimensions")])
        return New(op.name, inner.operands, {"broadcast_dimensions": through})
    if _is_reshape(op, value):
        return New(_RESHAPE, [value])
    before, after = shape_of(value), shape_of(op.result)
    if len(before) == len(after) and all(after[d] == n for n, d in zip(before, dims, strict=True)):
        return New("stablehlo.transpose", [value], {"permutation": ints([dims.index(i) for i in range(len(dims))])})
    return None


@rewrites("stablehlo.iota")
def _iota(op: Op, rewriter: Rewriter) -> bool:
    """Make an iota one of one dimension, and one along a dimension of size 1 zeros."""
    type_ = ranked(op.result)
    if type_ is None or not static(op.result):
        return False
    shape, dim = type_.shape or (), integer(op, "iota_dimension")
    if shape[dim] == 1 and is_foldable(type_):
        return replace(op, zeros_like(type_), rewriter)
    if len(shape) == 1:
        return False
    types, props = [with_shape(type_, (shape[dim],))], {"iota_dimension": IntegerAttr.get(0)}
    line = rewriter.insert_before(op, make_op(op.name, [], types, props=props, loc=op.loc))
    return replace(op, New(BROADCAST, line.results, {"broadcast_dimensions": ints([dim])}, False), rewriter)


# Parts.


@rewrites("stablehlo.concatenate")
def _concatenate(op: Op, rewriter: Rewriter) -> bool:
    """Drop empty parts, flatten concatenations that are used only here, and join equal splats that are neighbors."""
    parts, dim = op.operands, integer(op, "dimension")
    if len(parts) == 1 and parts[0].type is op.result.type:
        return replace(op, parts[0], rewriter)
    filled = [p for p in parts if shape_of(p)[dim] != 0]
    if filled and len(filled) < len(parts):
        return replace(op, New(op.name, filled, op.props), rewriter)
    flat: list[Value] = []
    for part in parts:
        inner = _producer(part, op.name)
        if inner is not None and part.has_one_use and integer(inner, "dimension") == dim:
            flat += inner.operands
        else:
            flat.append(part)
    if len(flat) == len(parts) and flat == parts:
        return _joined_splats(op, dim, rewriter)
    return replace(op, New(op.name, flat, op.props), rewriter)


def _joined_splats(op: Op, dim: int, rewriter: Rewriter) -> bool:
    """Make one constant of neighbors in a concatenation that are the same splat."""
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
        element, size = splat_text(run[0]), shape_of(run[0])[dim] * len(run)
        assert element is not None
        joined += rewriter.insert_before(op, make_constant(element, _resized(run[0], dim, size), op.loc)).results
    return replace(op, New(op.name, joined, op.props, keep_attrs=False), rewriter)


def _resized(value: Value, dim: int, size: int) -> TensorType:
    """Return the type of the value with another size of a dimension."""
    type_, shape = ranked(value), list(shape_of(value))
    assert type_ is not None
    shape[dim] = size
    return with_shape(type_, tuple(shape))


def _splat(value: Value) -> Attribute | None:
    """Return the attribute of the constant that defines the value, if it repeats one element."""
    op = value.defining_op
    return None if op is None or splat_text(value) is None else op.props["value"]


@rewrites("stablehlo.slice")
def _slice_of_concatenation(op: Op, rewriter: Rewriter) -> bool:
    """Slice only the parts of a concatenation that a slice touches."""
    value = op.operand(0)
    whole = _producer(value, "stablehlo.concatenate")
    if whole is None:
        return False
    dim = integer(whole, "dimension")
    start, limit = list(integers(op, "start_indices")), list(integers(op, "limit_indices"))
    touched: list[Value] = []
    offset = position = 0
    for part in whole.operands:
        size = shape_of(part)[dim]
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
        types = [_resized(value, dim, sum(shape_of(p)[dim] for p in touched))]
        join = make_op(whole.name, touched, types, props=whole.props, loc=whole.loc)
        source = rewriter.insert_before(op, join).result
    start[dim] -= offset
    limit[dim] -= offset
    props = {**op.props, "start_indices": ints(start), "limit_indices": ints(limit)}
    return replace(op, New(op.name, [source], props, keep_attrs=False), rewriter)


def _clamped(index: int, size: int, wanted: int) -> int:
    """Return the start of a slice of size `wanted`, moved into the array as StableHLO does."""
    return max(0, min(index, size - wanted))


def _slice_props(start: list[int], sizes: tuple[int, ...]) -> dict[str, Attribute]:
    limit = [s + n for s, n in zip(start, sizes, strict=True)]
    return {"start_indices": ints(start), "limit_indices": ints(limit), "strides": ints([1] * len(start))}


def _dynamic_slice(op: Op, value: Value, *at: Value) -> Result:
    """Replace a dynamic slice at known indices by a slice."""
    known = [i for i in map(integer_of, at) if i is not None]
    if len(known) != len(at):
        return None
    sizes = integers(op, "slice_sizes")
    start = [_clamped(*x) for x in zip(known, shape_of(value), sizes, strict=True)]
    return New("stablehlo.slice", [value], _slice_props(start, sizes))


def _dynamic_update_slice(op: Op, value: Value, update: Value, *at: Value) -> Result:
    """Replace an update of nothing by the operand, and one of everything (at index 0) by the update."""
    if static(update) and 0 in shape_of(update):
        return Declared(value)
    return Declared(update) if value.type is update.type and all(integer_of(v) == 0 for v in at) else None


def _pad(op: Op, value: Value, padding: Value) -> Result:
    """Fold padding by nothing, and make a broadcast of padding of nothing."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    if value.type is op.result.type and not any(any(integers(op, n)) for n in names):
        return value
    if not static(value) or 0 not in shape_of(value):
        return None
    return New(BROADCAST, [padding], {"broadcast_dimensions": ints([])}, keep_attrs=False)


@rewrites("stablehlo.gather")
def _gather(op: Op, rewriter: Rewriter) -> bool:
    """Replace a gather of one slice at known indices by a slice."""
    value, at = op.operands
    indices, type_ = constant_of(at), ranked(value)
    numbers = functools.partial(listed, op, "dimension_numbers")
    if indices is None or type_ is None or not static(value) or "batching" in op.props["dimension_numbers"].text:
        return False
    if len(indices.full.shape) != 1 or numbers("index_vector_dim") not in ((), (0,)):
        return False
    if numbers("offset_dims") != tuple(range(len(shape_of(op.result)))):
        return False
    sizes = integers(op, "slice_sizes")
    start = [0] * len(sizes)
    for number, dim in enumerate(numbers("start_index_map")):
        start[dim] = _clamped(int(indices.full[number]), shape_of(value)[dim], sizes[dim])
    types, props = [with_shape(type_, sizes)], _slice_props(start, sizes)
    piece = rewriter.insert_before(op, make_op("stablehlo.slice", [value], types, props=props, loc=op.loc)).result
    same = piece.type is op.result.type
    return replace(op, piece if same else New(_RESHAPE, [piece], keep_attrs=False), rewriter)


# Shapes that turn out to be known.


def _static(name: str, *kept: str) -> Rule:
    """Return a rule that replaces `dynamic_{name}` by `name` where the type of the result is static."""

    def made_static(op: Op, value: Value, *rest: Value) -> Result:
        props = {k: v for k, v in op.props.items() if k in kept}
        return New(f"stablehlo.{name}", [value], props, keep_attrs=False) if static(op.result) else None

    return Rule(f"dynamic_{name}", (static,), made_static)


def _dimension_size(op: Op, value: Value) -> Result:
    """Fold the size of a static dimension."""
    size = shape_of(value)[integer(op, "dimension")] if ranked(value) is not None else -1
    return np.array(size) if size >= 0 else None


class _Empty:
    """Replaces values without elements by constants."""

    op_name: str | None = None

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        results = [value for value in op.results if value.type.is_empty and value.has_uses]
        operands = [use.index for use in op.operand_uses if use.value.type.is_empty and not constant(use.value)]
        if not (results or operands) or not _reads_constants(op):
            return False
        for value in results:
            rewriter.replace_all_uses(value, _empty_constant(value, op, rewriter))
        for i in operands:
            op.set_operand(i, _empty_constant(op.operand(i), op, rewriter))
        if operands:
            rewriter.modified(op)
        return bool(results or operands)


def _reads_constants(op: Op) -> bool:
    """Return whether the op may have constants in place of its operands and results without elements."""
    return op.name.startswith("stablehlo.") and op.name != "stablehlo.constant" and is_removable(op)


def _empty_constant(value: Value, op: Op, rewriter: Rewriter) -> Value:
    assert isinstance(value.type, TensorType)
    return rewriter.insert_before(op, make_constant("", value.type, op.loc)).results[0]


SHAPES: list[Pattern] = [
    Rule("reshape", (), _reshape),
    Rule("transpose", (), _transpose),
    Rule("broadcast_in_dim", (static,), _broadcast),
    _iota,
    _concatenate,
    Rule("slice", (static,), same_type),
    _slice_of_concatenation,
    Rule("dynamic_slice", (static,), _dynamic_slice),
    Rule("dynamic_update_slice", (), _dynamic_update_slice),
    _static("reshape"),
    _static("broadcast_in_dim", "broadcast_dimensions"),
    _static("iota", "iota_dimension"),
    Rule("pad", (), _pad),
    _gather,
    Rule("get_dimension_size", (), _dimension_size),
    _Empty(),
]
