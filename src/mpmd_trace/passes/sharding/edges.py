"""Shardings while they are attributes: of function arguments, fragment edges, transfers and loops.

Source: sections 3.4 and 3.5 of the specification of sharding propagation, 4.4 of the dialect.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import Attribute, TensorShardingAttr, TensorShardingPerValueAttr, parse_sharding_body
from mpmd_trace.ir.core import BlockArg, OpResult, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, tensor_of
from mpmd_trace.ir.shardings import fully_open

__all__ = [
    "SHARDING",
    "UnsetSharding",
    "ValueShardings",
    "per_value",
    "set_fragment_sharding",
    "set_result_shardings",
    "sharding_list",
    "user_sharding",
]

SHARDING = "sdy.sharding"


def user_sharding(found: Attribute | None) -> TensorShardingAttr | None:
    """The attribute if it is a sharding."""
    return found if isinstance(found, TensorShardingAttr) else None


def per_value(found: Attribute | None, index: int) -> TensorShardingAttr | None:
    """Entry `index` of a list of shardings; None when there is no list or the entry says nothing."""
    if isinstance(found, TensorShardingPerValueAttr) and index < len(found.shardings):
        sharding = found.shardings[index]
        return None if isinstance(sharding, UnsetSharding) else sharding
    return None


class ValueShardings:
    """The shardings of values by the attributes of whatever defines them."""

    def __init__(self, function: FuncOp) -> None:
        self._entry = function.body
        self._arguments = [user_sharding(d.entries.get(SHARDING)) for d in function.arg_attrs]

    def of(self, value: Value) -> TensorShardingAttr | None:
        """The sharding of `value` at this moment; arguments as they were when this object was made."""
        if isinstance(value, BlockArg):
            if value.owner is self._entry:
                return self._arguments[value.index]
            loop = value.owner.parent_op
            return None if loop is None else per_value(loop.attr(SHARDING), value.index)
        op = cast(OpResult, value).op
        if isinstance(op, FragmentOp):
            return per_value(op.out_shardings, value.index)
        return per_value(op.attr(SHARDING), value.index)


class UnsetSharding(TensorShardingAttr):
    """An entry of a list that says nothing, which MLIR's text has no word for: it prints as fully open."""

    __slots__ = ()


@functools.cache
def unset_sharding(mesh_ref: str, rank: int) -> UnsetSharding:
    """The entry that says nothing, for a value of this rank."""
    shown = fully_open(mesh_ref, rank)
    unset = UnsetSharding(shown.text)
    for name in TensorShardingAttr.__slots__:
        setattr(unset, name, getattr(shown, name))
    return unset


@functools.lru_cache(maxsize=1 << 14)
def sharding_list(shardings: tuple[TensorShardingAttr, ...]) -> TensorShardingPerValueAttr:
    """The list attribute of these shardings; cheap for a list that occurred before."""
    if not any(isinstance(s, UnsetSharding) for s in shardings):
        return TensorShardingPerValueAttr.get(shardings)
    shown = TensorShardingPerValueAttr.get(parse_sharding_body(s.stripped) for s in shardings)
    attribute = TensorShardingPerValueAttr(shown.text)  # prints as `shown`, but is another attribute
    attribute.shardings = shardings
    return attribute


def _rank(value: Value) -> int:
    tensor = tensor_of(value)
    return tensor.rank if tensor is not None else 0


def set_fragment_sharding(
    op: FragmentOp, which: str, index: int, sharding: TensorShardingAttr, *, others_open: bool = True
) -> None:
    """Set entry `index` of `in_shardings` or `out_shardings`.

    The other entries of a new list are fully open, or say nothing if not `others_open`.
    """
    found = op.props.get(which)
    if isinstance(found, TensorShardingPerValueAttr):
        shardings = list(found.shardings)
    else:
        values: Sequence[Value] = op.operands if which == "in_shardings" else op.results
        other = fully_open if others_open else unset_sharding
        shardings = [other(sharding.mesh, _rank(v)) for v in values]
    shardings[index] = sharding
    op.props[which] = sharding_list(tuple(shardings))


def set_result_shardings(value: Value, sharding: TensorShardingAttr) -> None:
    """Set the sharding of a value that a fragment or a transfer produces."""
    op = cast(OpResult, value).op
    if isinstance(op, FragmentOp):
        set_fragment_sharding(op, "out_shardings", value.index, sharding)
    else:
        op.attrs[SHARDING] = sharding_list((sharding,))
