"""Shardings while they are attributes: of function arguments, fragment edges, transfers and loops.

Those that say nothing are open shardings; `UNSET` lists which ones, so that the text tells them from given ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, TensorShardingAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.core import BlockArg, OpResult, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, tensor_of
from mpmd_trace.ir.shardings import fully_open

__all__ = [
    "SHARDING",
    "UNSET",
    "ValueShardings",
    "in_sharding",
    "per_value",
    "set_fragment_sharding",
    "set_result_shardings",
    "sharding_list",
    "user_sharding",
]

SHARDING = "sdy.sharding"
#: The operands of a fragment of which its `in_shardings` says nothing, whatever it shows: MLIR's text has no word
#: for an entry without a sharding.
UNSET = "mpmd.unset_in_shardings"


def user_sharding(found: Attribute | None) -> TensorShardingAttr | None:
    """The attribute if it is a sharding."""
    return found if isinstance(found, TensorShardingAttr) else None


def per_value(found: Attribute | None, index: int) -> TensorShardingAttr | None:
    """Entry `index` of a list of shardings; None when there is no list or the entry says nothing."""
    if isinstance(found, TensorShardingPerValueAttr) and index < len(found.shardings):
        return found.shardings[index]
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


def in_sharding(op: FragmentOp, index: int) -> TensorShardingAttr | None:
    """The sharding that the fragment wants for an operand; None when its list says nothing."""
    return None if index in _unset(op) else per_value(op.in_shardings, index)


def _unset(op: FragmentOp) -> tuple[int, ...]:
    found = op.attrs.get(UNSET)
    return found.values if isinstance(found, DenseArrayAttr) else ()


@functools.lru_cache(maxsize=1 << 14)
def sharding_list(shardings: tuple[TensorShardingAttr, ...]) -> TensorShardingPerValueAttr:
    """The list attribute of these shardings; cheap for a list that occurred before."""
    return TensorShardingPerValueAttr.get(shardings)


def _rank(value: Value) -> int:
    tensor = tensor_of(value)
    return tensor.rank if tensor is not None else 0


def set_fragment_sharding(
    op: FragmentOp, which: str, index: int, sharding: TensorShardingAttr, *, others_open: bool = True
) -> None:
    """Set entry `index` of `in_shardings` or `out_shardings`.

    The other entries of a new list are fully open; if not `others_open`, `UNSET` says that they say nothing.
    """
    found = op.props.get(which)
    unset: set[int] = set(_unset(op)) if which == "in_shardings" else set()
    if isinstance(found, TensorShardingPerValueAttr):
        shardings = list(found.shardings)
    else:
        values: Sequence[Value] = op.operands if which == "in_shardings" else op.results
        shardings = [fully_open(sharding.mesh, _rank(v)) for v in values]
        unset = set() if others_open else set(range(len(shardings)))
    shardings[index] = sharding
    op.props[which] = sharding_list(tuple(shardings))
    if which == "in_shardings":
        unset.discard(index)
        if unset:
            op.attrs[UNSET] = DenseArrayAttr.get(sorted(unset))
        else:
            op.attrs.pop(UNSET, None)


def set_result_shardings(value: Value, sharding: TensorShardingAttr) -> None:
    """Set the sharding of a value that a fragment or a transfer produces."""
    op = cast(OpResult, value).op
    if isinstance(op, FragmentOp):
        set_fragment_sharding(op, "out_shardings", value.index, sharding)
    else:
        op.attrs[SHARDING] = sharding_list((sharding,))
