"""`mpmd-accumulate-in-calls` (ours): a sum over the microbatches is added up by the calls themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.ir.attributes import DictAttr
from mpmd_trace.ir.core import Op, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import calls_by_callee
from mpmd_trace.passes.placement.zeros import can_be_zero, make_zero

_ADD = "stablehlo.add"


class AccumulateInCalls(Pass):
    """Move sums over the results of calls into the callee: each call adds its result to the sum so far.

    A Python loop that sums gradients is an example. Outside of the calls, the sums would be a program after the last
    microbatch, and all gradients would be in memory until then. Instead, each call receives the sum so far, as in loops
    that carry it; the first call receives the start value, or zeros. The order of the additions does not change, but
    -0.0 becomes 0.0 when it is added to zero.

    This applies only to sums of the results of all calls of which only the total is used. The calls then depend on each
    other, so they must be in the order of the microbatches.

    Before:

        func.func public @main(%x: !t, %y: !t) -> !t attributes {topology = #meshes} {
          %0 = mpmd.call @f(%x) {call_counter = 0 : ui32} : (!t) -> !t
          %1 = mpmd.call @f(%y) {call_counter = 1 : ui32} : (!t) -> !t
          %2 = stablehlo.add %0, %1 : !t
          return %2 : !t
        }
        func.func private @f(%u: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %u : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !t, %arg1: !t) -> !t attributes {topology = #meshes} {
          %cst = stablehlo.constant dense<0.000000e+00> : !t
          %0 = mpmd.call @f(%arg0, %cst) {call_counter = 0 : ui32} : (!t, !t) -> !t
          %1 = mpmd.call @f(%arg1, %0) {call_counter = 1 : ui32} : (!t, !t) -> !t
          return %1 : !t
        }
        func.func private @f(%arg0: !t, %arg1: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %arg0 : !t
          %1 = stablehlo.add %arg1, %0 : !t
          return %1 : !t
        }
    """

    name = "mpmd-accumulate-in-calls"
    summary = "accumulate sums over calls inside the calls"
    only_with = ("mpmd.call",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        functions = {f.sym_name: f for f in module.functions}
        for name, calls in calls_by_callee(module).items():
            function = functions.get(name)
            if function is None or function.is_declaration or not function.is_mpmd or len(calls) < 2:
                continue
            if len({call.block for call in calls}) == 1 and _in_order(calls):
                changed = _accumulate(function, calls) or changed
        return changed


def _in_order(calls: Sequence[CallOp]) -> bool:
    counters = [call.call_counter for call in calls if call.call_counter is not None]
    return counters == sorted(counters)


@dataclasses.dataclass(frozen=True)
class _Sum:
    """Additions of one result of all calls, in their order; `start` is what the first of them adds to, if anything."""

    index: int
    additions: tuple[Op, ...]
    start: Value | None


def _accumulate(function: FuncOp, calls: Sequence[CallOp]) -> bool:
    order = {op: i for i, op in enumerate(calls[0].block or ())}
    sums = [one for i in range(len(calls[0].results)) if (one := _sum(i, calls, order)) is not None]
    for one in sums:
        _take_in(function, calls, one)
    if sums:
        function.refresh_type()
    return bool(sums)


def _sum(index: int, calls: Sequence[CallOp], order: dict[Op, int]) -> _Sum | None:
    values = [call.results[index] for call in calls]
    if not isinstance(values[0].type, TensorType):
        return None
    additions: list[Op] = []
    so_far: Value | None = None
    start: Value | None = None
    for value in values:
        add = _addition(value)
        other = None if add is None else _other(add, value)
        if so_far is None and add is not None and other is not None and other not in values:
            start = other
            if not _is_there(start, calls[0], order):
                return None
            additions.append(add)
            so_far = add.result
        elif so_far is None:
            so_far = value
        elif add is None or other is not so_far or not so_far.has_one_use:
            return None
        else:
            additions.append(add)
            so_far = add.result
    if start is None and not can_be_zero(values[0].type):
        return None
    return _Sum(index, tuple(additions), start)


def _addition(value: Value) -> Op | None:
    """Return the addition that is all that the value is used for."""
    if not value.has_one_use:
        return None
    (user,) = value.users
    return user if user.name == _ADD and user.result.type is value.type else None


def _other(add: Op, value: Value) -> Value:
    left, right = add.operands
    return right if left is value else left


def _is_there(value: Value, call: CallOp, order: dict[Op, int]) -> bool:
    """Return whether the value exists before the call, or can be made again there."""
    op = value.defining_op
    if op is None:
        return value.block is call.block
    return op.block is call.block and (is_negligible(op) or order[op] < order[call])


def _take_in(function: FuncOp, calls: Sequence[CallOp], one: _Sum) -> None:
    """Add in the callee, and pass the sum from call to call."""
    first, block = calls[0], calls[0].block
    type = first.results[one.index].type
    assert block is not None and isinstance(type, TensorType)
    maker = None if one.start is None else one.start.defining_op
    if one.start is None:
        made = block.insert_before(first, make_zero(type, first.loc))
        start: Value = made.result
    elif maker is not None and is_negligible(maker):
        start = block.insert_before(first, maker.clone()).result
    else:
        start = one.start
    last = one.additions[-1]
    attributes = [*function.arg_attrs, DictAttr.get({})]
    so_far = function.body.add_arg(type)
    terminator = function.body.terminator
    own = terminator.operand(one.index)
    addition = make_op(_ADD, [so_far, own], [type], loc=last.loc)
    function.body.insert_before(terminator, addition)
    terminator.set_operand(one.index, addition.result)
    function.refresh_type()
    function.set_all_arg_attrs(attributes)
    last.result.replace_all_uses_with(calls[-1].results[one.index])
    for add in reversed(one.additions):
        add.erase()
    if one.start is not None and maker is not None and is_negligible(maker) and not maker.has_uses:
        maker.erase()
    for call in calls:
        call.append_operands([start])
        start = call.results[one.index]
