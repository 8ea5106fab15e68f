"""How an op wants its operands to be sharded, given how its result is.

XLA computes a product with a weight that is sharded over an axis over which the result is sharded otherwise by
gathering the weight: the activations have the axis.  (The method of FSDP: Zhao et al., arXiv:2304.11277.)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.shardings import sharding_like
from mpmd_trace.ir.stablehlo_attributes import integer, integers, listed
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.sharding.plain_bodies import EXPRESSIONS

#: The sharding of a value in a body.
ShardingOf = Callable[[Value], TensorShardingAttr | None]
#: The names of the axes that shard each dimension.
Axes = tuple[tuple[str, ...], ...]


@functools.lru_cache(maxsize=1 << 16)
def axes_of(sharding: TensorShardingAttr | None, rank: int) -> Axes | None:
    """Return the axes of each dimension; None where a part of an axis is among them, or something is unreduced."""
    if sharding is None:
        return ((),) * rank
    dim_axes = [sharding.dim_axes(i) for i in range(len(sharding.dims))]
    if sharding.unreduced or any(axis.size is not None for axes in dim_axes for axis in axes):
        return None
    return tuple(tuple(axis.name for axis in axes) for axes in dim_axes)


def axes_of_value(value: Value, of: ShardingOf) -> Axes | None:
    """Return the axes of each dimension of a value in a body; None where they cannot be said."""
    type = value.type
    return axes_of(of(value), type.rank) if isinstance(type, TensorType) and type.is_ranked else None


def same_axes(a: TensorShardingAttr | None, b: TensorShardingAttr | None, rank: int) -> bool:
    """Return whether the two mean the same for a value of that rank."""
    return a is b or (axes_of(a, rank) is not None and axes_of(a, rank) == axes_of(b, rank))


def with_axes(sharding: TensorShardingAttr, axes: Axes) -> TensorShardingAttr:
    """Return a closed sharding over the mesh of `sharding`."""
    dims = ["{" + ", ".join(f'"{name}"' for name in names) + "}" for names in axes]
    return sharding_like(sharding, dims=dims)


class Dot(NamedTuple):
    """The dimensions of a `stablehlo.dot_general`."""

    left_batch: tuple[int, ...]
    right_batch: tuple[int, ...]
    left_contracting: tuple[int, ...]
    right_contracting: tuple[int, ...]

    def free(self, which: int, rank: int) -> list[int]:
        """Return the dimensions of operand 0 or 1 that neither batch nor contract."""
        taken = (*self[which], *self[2 + which])
        return [i for i in range(rank) if i not in taken]


_NUMBERS = "lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting"


def dot_dimensions(op: Op) -> Dot:
    """Return the dimensions of a `stablehlo.dot_general`."""
    return Dot(*(listed(op, "dot_dimension_numbers", f"{name}_dimensions") for name in _NUMBERS))


class Scatter(NamedTuple):
    """The dimensions of a `stablehlo.scatter`, as its attribute names them."""

    update_window: tuple[int, ...]
    inserted_window: tuple[int, ...]
    input_batching: tuple[int, ...]
    to_operand: tuple[int, ...]
    index_vector: int


def scatter_dimensions(op: Op) -> Scatter:
    """Return the dimensions of a `stablehlo.scatter`."""
    numbers = functools.partial(listed, op, "scatter_dimension_numbers")
    return Scatter(
        numbers("update_window_dims"),
        numbers("inserted_window_dims"),
        numbers("input_batching_dims"),
        numbers("scatter_dims_to_operand_dims"),
        next(iter(numbers("index_vector_dim")), 0),
    )


class Convolution(NamedTuple):
    """The dimensions of a `stablehlo.convolution` that are not those of its window.

    It sums over the features of its left operand, which are the input dimension of the right one, in groups.
    """

    left_batch: int
    left_feature: int
    right_input: int
    right_output: int
    batch: int
    feature: int
    feature_groups: int
    batch_groups: int


def convolution_dimensions(op: Op) -> Convolution | None:
    """Return the dimensions of a `stablehlo.convolution`, if it has them all."""
    groups = [integer(op, name, absent=1) for name in ("feature_group_count", "batch_group_count")]
    attribute = op.props.get("dimension_numbers")
    match = _CONVOLUTION.search("" if attribute is None else attribute.text)
    if match is None:
        return None
    left, right, result = ([name.strip() for name in part.split(",")] for part in match.groups())
    places = (left.index("b"), left.index("f"), right.index("i"), right.index("o"), result.index("b"))
    return Convolution(*places, result.index("f"), *groups)


_CONVOLUTION = re.compile(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]")


class _Link(NamedTuple):
    """What a dimension of an operand goes with: one of the result, one of another operand, or none (`looked_up`)."""

    in_result: int | None = None
    other: tuple[int, int] | None = None
    looked_up: bool = False


def wanted_sharding(op: Op, index: int, own: TensorShardingAttr | None, of: ShardingOf) -> TensorShardingAttr | None:
    """Return how operand `index`, which has the sharding `own`, is sharded where the op computes; None if it can stay.

    Only axes go, never come: those over which the result, or what the operand is multiplied with, is sharded in
    another way.
    """
    if own is None or len(op.results) != 1:
        return None
    links = list(_links(op, index))
    axes, result = axes_of(own, len(links)), axes_of_value(op.results[0], of)
    if not links or axes is None or result is None or not any(axes):
        return None
    used = {name for names in result for name in names}
    # Where activations have the axis of a weight, too, XLA gathers the weight, whichever of the two the result has.
    rows = _rows_of_other(op, index, of)
    kept: list[tuple[str, ...]] = []
    for names, link in zip(axes, links, strict=True):
        if link.in_result is not None:
            there = result[link.in_result]
            kept.append(tuple(name for name in names if name in there and name not in rows))
            continue
        if link.looked_up:
            kept.append(tuple(name for name in names if name not in used))
            continue
        if link.other is None:
            return None
        other = axes_of_value(op.operand(link.other[0]), of)
        if other is None:
            return None
        there = other[link.other[1]]
        busy = used.union(*other).difference(there)
        kept.append(tuple(name for name in names if name not in busy))
    return None if tuple(kept) == axes else with_axes(own, tuple(kept))


def _rows_of_other(op: Op, index: int, of: ShardingOf) -> set[str]:
    """Return the axes of the free dimensions of the other operand of a product."""
    if op.name != "stablehlo.dot_general":
        return set()
    other = axes_of_value(op.operand(1 - index), of)
    if other is None:
        return set()
    return {name for d in dot_dimensions(op).free(1 - index, len(other)) for name in other[d]}


def _links(op: Op, index: int) -> Iterator[_Link]:
    """Yield where each dimension of an operand goes; nothing for ops that are not known."""
    operand, result = op.operand(index).type, op.results[0].type
    if not isinstance(operand, TensorType) or not isinstance(result, TensorType) or not operand.is_ranked:
        return
    if op.name == "stablehlo.dot_general":
        yield from _links_of_dot(op, index, operand.rank)
    elif op.name == "stablehlo.convolution":
        yield from _links_of_convolution(op, index, operand.rank)
    elif op.name == "stablehlo.gather" and index == 0:
        yield from _links_of_table(op, operand)
    elif op.name == "stablehlo.broadcast_in_dim":
        yield from map(_Link, integers(op, "broadcast_dimensions"))
    elif op.name == "stablehlo.transpose":
        order = integers(op, "permutation")
        yield from (_Link(order.index(d)) for d in range(operand.rank))
    elif (op.name in EXPRESSIONS or op.name == "stablehlo.reverse") and operand.shape == result.shape:
        yield from map(_Link, range(operand.rank))


def _links_of_convolution(op: Op, index: int, rank: int) -> Iterator[_Link]:
    """Dimensions of its window, over which nothing may be sharded, are those that are looked up, as are groups."""
    dims = convolution_dimensions(op)
    if dims is None or dims.batch_groups != 1:
        return
    summed = _Link(looked_up=True), _Link(looked_up=True)
    if dims.feature_groups == 1:
        summed = _Link(other=(1, dims.right_input)), _Link(other=(0, dims.left_feature))
    left = {dims.left_batch: _Link(dims.batch), dims.left_feature: summed[0]}
    right = {dims.right_output: _Link(dims.feature), dims.right_input: summed[1]}
    of = right if index else left
    yield from (of.get(d, _Link(looked_up=True)) for d in range(rank))


def _links_of_table(op: Op, table: TensorType) -> Iterator[_Link]:
    """Of a table from which a `stablehlo.gather` takes rows, as an embedding does."""
    numbers = functools.partial(listed, op, "dimension_numbers")
    if numbers("operand_batching_dims"):
        return
    collapsed, whole = numbers("collapsed_slice_dims"), iter(numbers("offset_dims"))
    for d, (size, all_of_it) in enumerate(zip(integers(op, "slice_sizes"), table.shape or (), strict=True)):
        if d in collapsed:
            yield _Link(looked_up=True)
        else:
            in_result = next(whole)
            yield _Link(in_result) if size == all_of_it else _Link()


def _links_of_dot(op: Op, index: int, rank: int) -> Iterator[_Link]:
    dims = dot_dimensions(op)
    other = op.operand(1 - index).type
    assert isinstance(other, TensorType)
    batch, contracting = dims[index], dims[2 + index]
    free = dims.free(index, rank)
    before = len(batch) + (len(dims.free(0, other.rank)) if index else 0)
    for d in range(rank):
        if d in batch:
            yield _Link(batch.index(d))
        elif d in contracting:
            yield _Link(other=(1 - index, dims[3 - index][contracting.index(d)]))
        else:
            yield _Link(before + free.index(d))
