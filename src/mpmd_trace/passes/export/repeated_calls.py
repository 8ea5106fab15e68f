"""Calls of one function for one microbatch after the other as a loop over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

from mpmd_trace.ir.attributes import Attribute, DenseArrayAttr, parse_attribute
from mpmd_trace.ir.bodies import copied_ops
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp
from mpmd_trace.ir.types import TensorType, tensor
from mpmd_trace.passes.common.rows import rows_type

__all__ = ["Item", "items_of", "loop_over"]

_INDEX = tensor((), "i32")


@dataclasses.dataclass(frozen=True)
class Item:
    """A call, or calls of one function, in order, of which each may read what the one before it gives.

    carried: for operands that are a result of the call before, the number of that result.
    stacked: the operands that are another value for each call, none of them a result of one of these.
    """

    calls: tuple[FragmentCallOp, ...]
    carried: Mapping[int, int] = dataclasses.field(default_factory=dict)
    stacked: tuple[int, ...] = ()

    @property
    def repeats(self) -> bool:
        return len(self.calls) > 1

    def wants_all(self, result: int) -> bool:
        """Whether anything reads a result of each call, but for what the next one and the last one pass on."""
        places = {place for place, r in self.carried.items() if r == result}
        for call, following in zip(self.calls, [*self.calls[1:], None], strict=True):
            uses = list(call.results[result].uses)
            if following is None and places:
                continue
            if any(use.owner is not following or use.index not in places for use in uses):
                return True
        return False


def items_of(calls: Sequence[FragmentCallOp]) -> list[Item]:
    """The calls, with those of one function together where that is a loop, in an order of their data."""
    by_callee: dict[str, list[FragmentCallOp]] = {}
    for call in calls:
        by_callee.setdefault(call.callee, []).append(call)
    items: list[Item] = []
    for alike in by_callee.values():
        item = _repeated(alike) if len(alike) > 1 else None
        items += [Item((call,)) for call in alike] if item is None else [item]
    return _in_order(items, calls) or [Item((call,)) for call in calls]


def _repeated(calls: Sequence[FragmentCallOp]) -> Item | None:
    number = {call: i for i, call in enumerate(calls)}
    if any(_zeros(result.type.tensor) is None for result in calls[0].results):  # type: ignore[attr-defined]
        return None
    carried: dict[int, int] = {}
    stacked: list[int] = []
    for place in range(calls[0].num_operands):
        values = [call.operand(place) for call in calls]
        if all(value is values[0] for value in values):
            continue
        makers = [number.get(cast(FragmentCallOp, value.defining_op)) for value in values]
        if makers == [None] * len(calls):
            stacked.append(place)
            continue
        results = {value.index for value in values[1:]}  # type: ignore[attr-defined]
        if makers != [None, *range(len(calls) - 1)] or len(results) != 1:
            return None
        carried[place] = results.pop()
    return Item(tuple(calls), carried, tuple(stacked))


def _in_order(items: Sequence[Item], calls: Sequence[FragmentCallOp]) -> list[Item] | None:
    """The items, each behind those that it reads, else in the order of their first calls; None if there is none."""
    item_of = {call: item for item in items for call in item.calls}
    reads = {
        id(item): {
            id(item_of[maker])
            for call in item.calls
            for value in call.operands
            if (maker := cast(FragmentCallOp, value.defining_op)) in item_of and item_of[maker] is not item
        }
        for item in items
    }
    place = {call: i for i, call in enumerate(calls)}
    left = sorted(items, key=lambda item: place[item.calls[0]])
    found: list[Item] = []
    done: set[int] = set()
    while left:
        ready = next((item for item in left if reads[id(item)] <= done), None)
        if ready is None:
            return None
        left.remove(ready)
        found.append(ready)
        done.add(id(ready))
    return found


def loop_over(
    block: Block, item: Item, function: FuncOp, given: Sequence[Value], kept: Sequence[int]
) -> tuple[dict[int, Value], dict[int, Value]]:
    """Append a loop that does what the calls of an item do.

    Args:
        block: where the loop comes.
        item: the calls.
        function: what they call.
        given: for each operand its value: that of the first call where it is carried, an array of all of them where it
            is stacked.
        kept: the results that are wanted of all calls.

    Returns:
        What the last call gives for results that are carried, by their numbers; and for the kept ones arrays of what
        all calls give.
    """
    places = list(item.carried)
    types = [cast(TensorType, value.type) for value in function.body.terminator.operands]
    whole = {r: rows_type(types[r], len(item.calls)) for r in kept}
    zero = block.append(_number(0)).result
    empty = [block.append(cast(Op, _zeros(whole[r]))).result for r in kept]
    init = [zero, *[given[place] for place in places], *empty]
    condition, body = Block(), Block()
    for region in (condition, body):
        for value in init:
            region.add_arg(value.type)
    limit = condition.append(_number(len(item.calls)))
    props: dict[str, Attribute] = {
        "comparison_direction": parse_attribute("#stablehlo<comparison_direction LT>"),
        "compare_type": parse_attribute("#stablehlo<comparison_type SIGNED>"),
    }
    operands: list[Value] = [condition.args[0], limit.result]
    test = condition.append(make_op("stablehlo.compare", operands, [tensor((), "i1")], props=props))
    condition.append(make_op("stablehlo.return", [test.result]))

    index, *rest = body.args
    start = body.append(_number(0)).result
    taken: list[Value] = []
    for place, arg in enumerate(function.args):
        if place in item.carried:
            taken.append(rest[places.index(place)])
        elif place in item.stacked:
            type = cast(TensorType, arg.type)
            at = [index, *[start] * len(type.shape or ())]
            sizes: dict[str, Attribute] = {"slice_sizes": DenseArrayAttr.get((1, *(type.shape or ())))}
            row = make_op("stablehlo.dynamic_slice", [given[place], *at], [rows_type(type, 1)], props=sizes)
            body.append(row)
            taken.append(body.append(make_op("stablehlo.reshape", [row.result], [type])).result)
        else:
            taken.append(given[place])
    copies, made = copied_ops(function.body, taken)
    body.append_all(copies)
    yielded = [made[item.carried[place]] for place in places]
    for r, array in zip(kept, rest[len(places) :], strict=True):
        piece = body.append(make_op("stablehlo.reshape", [made[r]], [rows_type(types[r], 1)])).result
        at = [index, *[start] * len(types[r].shape or ())]
        op = make_op("stablehlo.dynamic_update_slice", [array, piece, *at], [array.type])
        yielded.append(body.append(op).result)
    one = body.append(_number(1)).result
    following = body.append(make_op("stablehlo.add", [index, one], [_INDEX])).result
    body.append(make_op("stablehlo.return", [following, *yielded]))
    regions = [Region([condition]), Region([body])]
    loop = make_op("stablehlo.while", init, [value.type for value in init], regions=regions)
    block.append(loop)
    carried: dict[int, Value] = {item.carried[place]: loop.results[1 + i] for i, place in enumerate(places)}
    return carried, dict(zip(kept, loop.results[1 + len(places) :], strict=True))


def _number(value: int) -> Op:
    props = {"value": parse_attribute(f"dense<{value}> : tensor<i32>")}
    return make_op("stablehlo.constant", [], [_INDEX], props=props)


def _zeros(type: TensorType) -> Op | None:
    """An op that makes zeros of a type; None for types whose zeros are not known here."""
    element = type.element
    if element.startswith("complex<"):
        zero = "(0.000000e+00,0.000000e+00)"
    elif element[0] in "fb":
        zero = "0.000000e+00"
    elif element.lstrip("us").startswith("i"):
        zero = "false" if element == "i1" else "0"
    else:
        return None
    props = {"value": parse_attribute(f"dense<{zero}> : {type.text}")}
    return make_op("stablehlo.constant", [], [type], props=props)
