"""Shardings while they are attributes: of function arguments, fragment edges, transfers and loops.

Those that say nothing are open shardings; `UNSET` lists which ones, so that the text tells them from given ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import cast

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, DictAttr, TensorShardingAttr, TensorShardingPerValueAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import BlockArg, OpResult, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, tensor_of
from mpmd_trace.ir.shardings import fully_closed, fully_open

SHARDING = "sdy.sharding"
CONSTRAINT = "sdy.sharding_constraint"
#: The operands of a fragment of which its `in_shardings` says nothing, whatever it shows: MLIR's text has no word
#: for an entry without a sharding.
UNSET = "mpmd.unset_in_shardings"


def user_sharding(attributes: DictAttr) -> TensorShardingAttr | None:
    """Return the sharding among the attributes of an argument or a result of a function."""
    sharding = attributes.entries.get(SHARDING)
    return sharding if isinstance(sharding, TensorShardingAttr) else None


def per_value(shardings: Attribute | None, index: int) -> TensorShardingAttr | None:
    """Entry `index` of a list of shardings; None when there is no list or the entry says nothing."""
    if isinstance(shardings, TensorShardingPerValueAttr) and index < len(shardings.shardings):
        return shardings.shardings[index]
    return None


class ValueShardings:
    """The shardings of values by the attributes of whatever defines them."""

    def __init__(self, function: FuncOp) -> None:
        self._entry = function.body
        self._arguments = [user_sharding(attributes) for attributes in function.arg_attrs]

    def of(self, value: Value) -> TensorShardingAttr | None:
        """Return the sharding of `value` at this moment; arguments as they were when this object was made."""
        if isinstance(value, BlockArg):
            if value.owner is self._entry:
                return self._arguments[value.index]
            loop = value.owner.parent_op
            return None if loop is None else per_value(loop.attr(SHARDING), value.index)
        op = cast(OpResult, value).op
        shardings = op.props.get("out_shardings") if isinstance(op, FragmentOp) else op.attr(SHARDING)
        return None if shardings is None else per_value(shardings, value.index)


def in_sharding(op: FragmentOp, index: int) -> TensorShardingAttr | None:
    """Return the sharding that the fragment wants for an operand; None when its list says nothing."""
    return None if index in _unset(op) else per_value(op.in_shardings, index)


def body_sharding(fragment: FragmentOp, value: Value) -> TensorShardingAttr | None:
    """Return the sharding of a value in the body of the fragment."""
    op = value.defining_op
    if op is None:
        return in_sharding(fragment, value.index)
    if op.name == CONSTRAINT:
        sharding = op.attr("sharding")
        return sharding if isinstance(sharding, TensorShardingAttr) else None
    return per_value(op.attrs.get(SHARDING), value.index)


def _unset(op: FragmentOp) -> tuple[int, ...]:
    unset = op.attrs.get(UNSET)
    return unset.values if isinstance(unset, DenseArrayAttr) else ()


@functools.lru_cache(maxsize=1 << 14)
def sharding_list(shardings: tuple[TensorShardingAttr, ...]) -> TensorShardingPerValueAttr:
    """Return the list attribute of these shardings; cheap for a list that occurred before."""
    return TensorShardingPerValueAttr.get(shardings)


def rank_of(value: Value) -> int:
    """Return the number of dimensions of a tensor or mesh tensor; 0 for others."""
    tensor = tensor_of(value)
    return 0 if tensor is None else len(tensor.shape or ())


def set_fragment_shardings(
    op: FragmentOp, which: str, entries: Mapping[int, TensorShardingAttr], *, others_open: bool = True
) -> None:
    """Set entries of `in_shardings` or `out_shardings`.

    The other entries of a new list are fully open; if not `others_open`, `UNSET` says that they say nothing.
    """
    if not entries:
        return
    result = op.props.get(which)
    unset: set[int] = set(_unset(op)) if which == "in_shardings" else set()
    if isinstance(result, TensorShardingPerValueAttr):
        shardings = list(result.shardings)
    else:
        values: Sequence[Value] = op.operands if which == "in_shardings" else op.results
        mesh = next(iter(entries.values())).mesh
        shardings = [fully_open(mesh, rank_of(v)) for v in values]
        unset = set() if others_open else set(range(len(shardings)))
    for index, sharding in entries.items():
        shardings[index] = sharding
    op.props[which] = sharding_list(tuple(shardings))
    if which == "in_shardings":
        unset.difference_update(entries)
        if unset:
            op.attrs[UNSET] = DenseArrayAttr.get(sorted(unset))
        else:
            op.attrs.pop(UNSET, None)


def take_over_shardings(old: FragmentOp, new: FragmentOp, used: Sequence[bool], keep_results: Sequence[bool]) -> None:
    """Give a fragment the shardings of what it has of another one; operands behind these are replicated."""
    for which in ("in_shardings", "out_shardings"):
        new.props.pop(which, None)
    if old.out_shardings is not None and new.results:
        given = zip(old.out_shardings.shardings, keep_results, strict=True)
        new.props["out_shardings"] = sharding_list(tuple(s for s, keep in given if keep))
    if old.in_shardings is None or not new.num_operands:
        new.attrs.pop(UNSET, None)
        return
    mesh = old.in_shardings.shardings[0].mesh
    shardings = [s for s, flag in zip(old.in_shardings.shardings, used, strict=True) if flag]
    shardings += [fully_closed(mesh, rank_of(value)) for value in new.operands[len(shardings) :]]
    new.props["in_shardings"] = sharding_list(tuple(shardings))
    unset = old.attrs.get(UNSET)
    if isinstance(unset, DenseArrayAttr):
        at = {i: n for n, i in enumerate(itertools.compress(range(len(used)), used))}
        left = [at[i] for i in unset.values if i in at]
        new.attrs.pop(UNSET)
        if left:
            new.attrs[UNSET] = DenseArrayAttr.get(left)


def constrained(builder: BodyBuilder, value: Value, sharding: TensorShardingAttr, loc: Location = UNKNOWN) -> Value:
    """Return the value with a constraint that is appended to a body."""
    return builder.op(CONSTRAINT, [value], [value.type], props={"sharding": sharding}, loc=loc).results[0]


def set_result_shardings(value: Value, sharding: TensorShardingAttr) -> None:
    """Set the sharding of a value that a fragment or a transfer produces."""
    op = cast(OpResult, value).op
    if isinstance(op, FragmentOp):
        set_fragment_shardings(op, "out_shardings", {value.index: sharding})
    else:
        op.attrs[SHARDING] = sharding_list((sharding,))
