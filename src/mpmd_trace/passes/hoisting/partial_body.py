"""Bodies whose sums over devices come in, grow and go out in partial form: see `partial_forms.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from mpmd_trace.ir.attributes import TensorShardingAttr
from mpmd_trace.ir.bodies import BodyBuilder, free_values, without_dead_ops
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.hoisting.partial_forms import SUMS, ZERO, Form, Forms, is_zero, parts_of
from mpmd_trace.passes.hoisting.partial_ops import PartialOps, partial_sharding, partial_type
from mpmd_trace.passes.reachable import reachable
from mpmd_trace.passes.sharding.axes import axes_of
from mpmd_trace.passes.sharding.edges import rank_of


@dataclasses.dataclass(frozen=True)
class Growth:
    """What happens in a body to sums that are not finished.

    results: for each that is returned in partial form its axes.
    reads: for each of these the arguments that it grows from, and whether it grows by something here.
    ends: arguments that are finished here, each with whether something is added to it before.
    ops: those that are applied to parts.
    """

    results: dict[int, Form]
    reads: dict[int, tuple[frozenset[int], bool]]
    ends: dict[int, bool]
    ops: frozenset[Op]


def growth(body: Region, forms: Forms, given: Mapping[int, Form], allowed: Collection[int]) -> Growth:
    """Return the largest set of results that can be returned in partial form: nothing else reads what they are made of.

    `given`: the arguments in partial form; `allowed`: the results that may be.
    """
    block = body.block
    terminator = block.terminator
    wanted_forms = {j: forms.form.get(v, ZERO) for j, v in enumerate(terminator.operands) if j in allowed}
    wanted = {j: axes for j, axes in wanted_forms.items() if axes != ZERO}
    slices = {j: _slice(terminator.operands[j], forms) for j in wanted}
    while True:
        ops = {op for j in wanted for op in slices[j][0]}
        values = {v for j in wanted for v in slices[j][1]}
        bad = {v for v in values if not _is_inside(v, ops, terminator, wanted)}
        left = {j: axes for j, axes in wanted.items() if bad.isdisjoint(slices[j][1])}
        if left == wanted:
            break
        wanted = left
    reads = {
        j: (frozenset(v.index for v in slices[j][1] if v.defining_op is None), _has_base(slices[j][0], forms))
        for j in wanted
    }
    taken = {v for j in wanted for v in slices[j][1]}
    ends: dict[int, bool] = {}
    for i, axes in given.items():
        arg = block.args[i]
        if arg not in taken and axes != ZERO:
            grown = _grown(arg, forms, terminator)
            ops |= grown
            ends[i] = _has_base(grown, forms)
    return Growth(wanted, reads, ends, frozenset(ops))


def _slice(value: Value, forms: Forms) -> tuple[set[Op], set[Value]]:
    """Return the ops that make the partial form of a value, and the values in partial form on the way; zeros aside."""

    def parts(one: Value) -> list[Value]:
        op = one.defining_op
        return [] if op is None or op in forms.base else [v for v in op.operands if v in forms.form]

    values = {one for one in reachable([value], parts) if not is_zero(one.defining_op)}
    return {one.defining_op for one in values if one.defining_op is not None}, values


def _is_inside(value: Value, ops: set[Op], terminator: Op, wanted: Mapping[int, Form]) -> bool:
    """Return whether all that reads the value takes its parts."""
    return all(use.index in wanted if use.owner is terminator else use.owner in ops for use in value.uses)


def _has_base(ops: Iterable[Op], forms: Forms) -> bool:
    return any(op in forms.base for op in ops)


def _grown(arg: Value, forms: Forms, terminator: Op) -> set[Op]:
    """Return the ops that add parts to an argument before it is finished."""
    result: set[Op] = set()
    value = arg
    while value.has_one_use:
        op = value.users[0]
        if op.name not in SUMS or op is terminator or forms.form.get(op.results[0]) != forms.form[arg]:
            break
        more: set[Op] = set()
        for other in op.operands:
            if other is not value:
                ops, values = _slice(other, forms)
                if not all(_is_inside(v, ops | {op}, terminator, {}) for v in values):
                    return result
                more |= ops
        result |= {op} | more
        value = op.results[0]
    return result


def with_parts(
    body: Region,
    forms: Forms,
    growth: Growth,
    given: Mapping[int, Form],
    like: TensorShardingAttr,
    zeros: Iterable[TensorType],
) -> Region:
    """Return the body with the arguments in `given` and the results in `growth` in partial form, then `zeros`."""
    builder = BodyBuilder()
    ops = PartialOps(builder, forms.sizes, like)
    whole: dict[Value, Value] = {}
    parts: dict[Value, Value] = {}
    for arg in body.block.args:
        axes = given.get(arg.index, ZERO)
        if axes == ZERO:
            whole[arg] = builder.arg(arg.type, arg.loc)
        else:
            parts[arg] = builder.arg(partial_type(arg, axes, forms.sizes), arg.loc)

    def get(value: Value) -> Value:
        """Return the finished sum."""
        if value not in whole and value in parts:
            whole[value] = ops.total(parts[value], value, forms.of(value))
        return whole.get(value, value)

    def part(value: Value, axes: Form) -> Value:
        return parts[value] if value in parts else ops.zero(partial_type(value, axes, forms.sizes), value.location)

    for op in body.block:
        if op.is_terminator:
            continue
        if op not in growth.ops:
            for value in (*op.operands, *free_values(op)):
                get(value)
            builder.add(op, whole)
            continue
        result = op.results[0]
        axes = forms.form[result]
        if axes == ZERO:  # the sum that it is part of starts from zeros of its own
            continue
        if op in forms.base:
            dims = [axes_of(forms.of(v), rank_of(v)) or () for v in op.operands]
            made = ops.base(op, forms.base[op], [get(v) for v in op.operands], dims)
            wanted = axes_of(partial_sharding(result, forms.of(result), axes, like), rank_of(result) + 1)
            parts[result] = made if wanted is None else ops.constrained(made, wanted)
        else:
            in_parts = parts_of(op)
            operands = [part(v, axes) if i in in_parts else get(v) for i, v in enumerate(op.operands)]
            parts[result] = ops.linear(op, operands, axes)
    returned = [parts[v] if j in growth.results else get(v) for j, v in enumerate(body.block.terminator.operands)]
    returned += [ops.zero(type, body.block.terminator.loc) for type in zeros]
    return without_dead_ops(builder.finish(returned))
