"""Constants that number the iterations of a loop: results of a fragment, from which they go to the iterations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mpmd_trace.ir.attributes import parse_attribute
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import Op, OpResult, Value, op_like
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.types import Type

_NUMBER = re.compile(r"dense<(-?\d+)> : ")


def number_of(value: Value) -> int | None:
    """Return the integer that is this result of a fragment."""
    if not isinstance(value, OpResult) or not isinstance(value.op, FragmentOp):
        return None
    constant = value.op.body.returned[value.index].defining_op
    if constant is None or constant.name != "stablehlo.constant":
        return None
    match = _NUMBER.match(constant.props["value"].text)
    return None if match is None else int(match[1])


def with_more_numbers(fragment: FragmentOp, more: Mapping[int, Sequence[int]]) -> list[list[Value]]:
    """Let a fragment return more integers, each behind one of its results, whose type it has.

    A new fragment takes its place.  Returns the values for each of its results: this one, and those behind it.
    """
    returned = fragment.body.returned
    by_constant: dict[Op | None, list[int]] = {}
    for result in more:
        by_constant.setdefault(returned[result].defining_op, []).append(result)
    builder = BodyBuilder()
    mapping: dict[Value, Value] = {arg: builder.arg(arg.type, arg.location) for arg in fragment.body.block.args}
    constants: dict[int, list[Value]] = {}
    for op in fragment.body.block.ops[:-1]:
        builder.add(op, mapping)
        for result in by_constant.get(op, ()):
            constants[result] = [builder.block.append(_constant_like(op, number)).result for number in more[result]]
    values: list[Value] = []
    types: list[Type] = []
    ends: list[int] = []
    for old, value in zip(fragment.results, returned, strict=True):
        values += [mapping[value], *constants.get(old.index, ())]
        types += [old.type] * (len(values) - len(types))
        ends.append(len(values))
    new = op_like(fragment, fragment.operands, types, regions=[builder.finish(values)])
    assert fragment.block is not None
    fragment.block.insert_before(fragment, new)
    groups = [new.results[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    fragment.replace_all_uses_with([group[0] for group in groups])
    fragment.erase()
    return [list(group) for group in groups]


def _constant_like(constant: Op, number: int) -> Op:
    """Return a constant of the same type."""
    new = constant.clone()
    new.props["value"] = parse_attribute(_NUMBER.sub(f"dense<{number}> : ", constant.props["value"].text))
    return new
