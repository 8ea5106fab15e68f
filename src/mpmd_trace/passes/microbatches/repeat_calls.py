"""`mpmd-repeat-calls` (ours): a call that stands for several iterations of a loop becomes these."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence, Set
from typing import NamedTuple

from mpmd_trace.ir.attributes import IntegerAttr, parse_attribute
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import BlockArg, Op, OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import REPEATS, CallOp, FragmentOp, FuncOp, Module, make_fragment
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.base import FunctionPass

_NUMBER = re.compile(r"dense<(-?\d+)> : ")


class RepeatCalls(FunctionPass):
    """Replace calls that stand for several iterations of a loop by one call for each iteration.

    `mpmd_trace.jit` traces only the first three iterations of a loop with many microbatches, since the others differ
    only in the index; `mpmd.repeats` of the third call is the number of iterations that it stands for. The passes so
    far have seen only these three calls. The fourth call reads results of the third as the third reads those of the
    second, and so on; indices continue in the same way, and what follows the loop reads the last call. A stack of the
    results (of the first two calls, and of the third one repeated, followed by a barrier) becomes a stack of the
    results of all calls.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.call @f(%p) {call_counter = 0 : ui32} : (!a) -> !a
          %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
          %2 = mpmd.call @f(%1) {call_counter = 2 : ui32, mpmd.repeats = 2 : ui32} : (!a) -> !a
          return %2 : !a
        }
        func.func private @f(%p: !a) -> !a attributes {topology = #meshes} {
          return %p : !a
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg0) {call_counter = 0 : ui32} : (!a) -> !a
          %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
          %2 = mpmd.call @f(%1) {call_counter = 2 : ui32} : (!a) -> !a
          %3 = mpmd.call @f(%2) {call_counter = 3 : ui32} : (!a) -> !a
          return %3 : !a
        }
        func.func private @f(%arg0: !a) -> !a attributes {topology = #meshes} {
          return %arg0 : !a
        }
    """

    name = "mpmd-repeat-calls"
    summary = "replace calls that stand for several iterations of a loop by one call each"
    only_with = ("mpmd.call",)
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        before: dict[str, list[CallOp]] = {}
        loops: list[tuple[CallOp, CallOp, CallOp]] = []
        for op in function.body:
            if isinstance(op, CallOp):
                calls = before.setdefault(op.callee, [])
                calls.append(op)
                if op.repeats > 1 and len(calls) > 2:
                    loops.append((calls[-3], calls[-2], calls[-1]))
                elif op.repeats > 1:
                    raise diagnostics.fatal(op, "the two calls before the one that stands for several are missing")
        for loop in loops:
            _Loop(*loop, diagnostics).repeat()
        return bool(loops)


class _Index(NamedTuple):
    """A fragment of an index, and how much this grows from iteration to iteration."""

    fragment: FragmentOp
    number: int
    step: int


@dataclasses.dataclass(frozen=True)
class _Copied:
    """An op between two calls, and what its operands are; see `_Loop._value`."""

    op: Op
    operands: tuple[object, ...]


class _Stack(NamedTuple):
    """Where a fragment stacks a result of the three calls: `concatenate(expand(first), expand(second), repeated)`."""

    fragment: FragmentOp
    #: The number of the result, and of its operand of the fragment, for each of the three.
    result: int
    operands: tuple[int, int, int]
    #: The concatenation.  The third operand is there for it alone, and it is for a barrier alone.
    joined: Op


class _Loop:
    """Three iterations, of which the last stands for several.

    What a later iteration has in the place of a value of the third is written down as: the value, where all have the
    same; the number of a result of the call before; or a result of an `_Index` or a `_Copied` op, as a pair.
    """

    def __init__(self, first: CallOp, second: CallOp, third: CallOp, diagnostics: Diagnostics) -> None:
        self.first, self.second, self.third = first, second, third
        self.diagnostics = diagnostics
        #: What becomes of an op of the second iteration and the one that the third has in its place.
        self.made: dict[tuple[Op, Op], _Index | _Copied] = {}

    def repeat(self) -> None:
        third = self.third
        operands = [self._value(a, b) for a, b in zip(self.second.operands, third.operands, strict=True)]
        count = third.attrs.pop(REPEATS)
        assert isinstance(count, IntegerAttr)
        stacks = self._stacks(count.value)
        self._check_uses({(s.fragment, i) for s in stacks for i in s.operands[:2]})
        stacked = {(s.fragment, s.operands[2]) for s in stacks}
        behind = [[u for u in result.uses if (u.owner, u.index) not in stacked] for result in third.results]
        calls = self._calls(operands, count.value)
        for uses, result in zip(behind, calls[-1].results, strict=True):
            for use in reversed(uses):
                use.set(result)
        for fragment in dict.fromkeys(s.fragment for s in stacks):
            _stack_all(fragment, [s for s in stacks if s.fragment is fragment], calls)

    def _calls(self, operands: Sequence[object], count: int) -> list[CallOp]:
        """Return the third call and those that follow it, which are made with these operands."""
        third, block, counter = self.third, self.third.block, self.third.call_counter
        assert block is not None and counter is not None
        indices = {made: _more_of(made, count) for made in self.made.values() if isinstance(made, _Index)}
        copied = [made for made in self.made.values() if isinstance(made, _Copied)]
        # The numbers of what an iteration reads, in one list: what all have, the results of the call before, the
        # indices, the results of copies.
        read = [*operands, *[value for made in copied for value in made.operands]]
        same = list(dict.fromkeys([value for value in read if isinstance(value, Value)]))
        made_values = [*[(made, 0) for made in indices], *[(m, i) for m in copied for i in range(len(m.op.results))]]
        keys = [*same, *range(len(third.results)), *map(_key, made_values)]
        number = {key: i for i, key in enumerate(keys)}
        steps = [(made.op, [number[_key(value)] for value in made.operands]) for made in copied]
        own = [number[_key(value)] for value in operands]
        calls, ops = [third], list[Op]()
        for i in range(1, count):
            values: list[Value] = [*same, *calls[-1].results, *[more.results[i - 1] for more in indices.values()]]
            for op, numbers in steps:
                copy = op.clone(operands=[values[n] for n in numbers])
                values += copy.results
                ops.append(copy)
            call = third.clone(operands=[values[n] for n in own])
            call.attrs["call_counter"] = IntegerAttr.get(counter + i, "ui32")
            ops.append(call)
            calls.append(call)
        following = third.next_op
        assert following is not None
        block.insert_all_before(following, ops)
        return calls

    def _value(self, second: Value, third: Value) -> object:
        """Return what stands for a value of the third iteration, where the second has another one."""
        pending = [(second, third)]
        written: dict[tuple[Value, Value], object] = {}
        while pending:
            a, b = pending[-1]
            if (a, b) in written:
                pending.pop()
                continue
            if a is b:
                written[a, b] = b
                continue
            if not isinstance(a, OpResult) or not isinstance(b, OpResult) or a.index != b.index:
                raise self._unlike(b)
            if a.op is self.first and b.op is self.second:
                written[a, b] = b.index
                continue
            ops = a.op, b.op
            if ops not in self.made:
                if not _are_alike(a.op, b.op):
                    raise self._unlike(b)
                index = self._index(a.op, b.op)
                missing = [p for p in zip(a.op.operands, b.op.operands, strict=True) if p not in written]
                if index is None and missing:
                    pending += reversed(missing)
                    continue
                pairs = zip(a.op.operands, b.op.operands, strict=True)
                self.made[ops] = index or _Copied(b.op, tuple(written[p] for p in pairs))
            written[a, b] = (self.made[ops], b.index)
        return written[second, third]

    def _index(self, second: Op, third: Op) -> _Index | None:
        numbers = [_number_of(op) for op in (second, third)]
        if numbers[0] is None or numbers[1] is None:
            if second.regions and second.regions[0] is not third.regions[0]:
                raise self._unlike(third.results[0])
            return None
        assert isinstance(third, FragmentOp)
        return _Index(third, numbers[1], numbers[1] - numbers[0])

    def _stacks(self, count: int) -> list[_Stack]:
        """Return the places where results of the calls are stacked."""
        stacks = []
        for result in self.third.results:
            for use in result.uses:
                fragment = use.owner
                if isinstance(fragment, FragmentOp):
                    for reader in fragment.body.block.args[use.index].users:
                        stack = self._stack(fragment, reader, result.index, use.index, count)
                        if stack is not None:
                            stacks.append(stack)
        return stacks

    def _stack(self, fragment: FragmentOp, repeated: Op, result: int, operand: int, count: int) -> _Stack | None:
        """Return the stack that ends with `repeated`, which reads this operand and result; None if it is none."""
        type = repeated.results[0].type if repeated.name == "stablehlo.broadcast_in_dim" else None
        if not isinstance(type, TensorType) or not type.shape or type.shape[0] != count:
            return None
        if len(repeated.result.users) != 1:
            return None
        (joined,) = repeated.result.users
        barriers = joined.results[0].users if joined.name == "stablehlo.concatenate" else []
        if len(barriers) != 1 or barriers[0].name != "stablehlo.optimization_barrier" or joined.num_operands != 3:
            return None
        numbers = []
        for part, call in zip(joined.operands[:2], (self.first, self.second), strict=True):
            expand = part.defining_op
            if expand is None or expand.num_operands != 1 or len(part.users) != 1:
                return None
            argument = expand.operands[0]
            if not isinstance(argument, BlockArg) or len(argument.users) != 1:
                return None
            if fragment.operands[argument.index] is not call.results[result]:
                return None
            numbers.append(argument.index)
        if barriers[0].num_operands != 1 or len(fragment.body.block.args[operand].users) != 1:
            return None
        return _Stack(fragment, result, (numbers[0], numbers[1], operand), joined)

    def _check_uses(self, stacked: Set[tuple[Op, int]]) -> None:
        """See that what the first two iterations give is for the next one alone, and for stacks of all."""
        copied = [pair for pair, made in self.made.items() if isinstance(made, _Copied)]
        before: list[Op] = [self.first, self.second]
        for i, call in enumerate((self.second, self.third)):
            own = dict.fromkeys(pair[i] for pair in copied)
            readers = {call, *own}
            for op in (before[i], *own):
                uses = [use for result in op.results for use in result.uses]
                if not all(use.owner in readers or (use.owner, use.index) in stacked for use in uses):
                    raise self._unlike(op.results[0])

    def _unlike(self, value: Value) -> Exception:
        return self.diagnostics.fatal(value.defining_op or self.third, "an iteration is another one than that before")


def _key(value: object) -> object:
    """Return what to look for in a table instead of what stands for a value: copies are the same only as objects."""
    if not isinstance(value, tuple):
        return value
    made, number = value
    return (id(made) if isinstance(made, _Copied) else made), number


def _stack_all(fragment: FragmentOp, stacks: Sequence[_Stack], calls: Sequence[CallOp]) -> None:
    """Let the fragment stack the results of all these calls, of which it has had the first one alone."""
    by_operand = {stack.operands[2]: stack for stack in stacks}
    by_joined = {stack.joined: stack for stack in stacks}
    repeated = {stack.joined.operand(2) for stack in stacks}
    whole = {stack.joined.result for stack in stacks}
    builder = BodyBuilder()
    operands: list[Value] = []
    mapping: dict[Value, Value] = {}
    given: dict[_Stack, list[Value]] = {}
    for argument, operand in zip(fragment.body.block.args, fragment.operands, strict=True):
        stack = by_operand.get(argument.index)
        if stack is None:
            operands.append(operand)
            mapping[argument] = builder.arg(argument.type, argument.location)
        else:
            operands += [call.results[stack.result] for call in calls]
            given[stack] = [builder.arg(argument.type, argument.location) for _ in calls]
    for op in fragment.body.block.ops[:-1]:
        if op in by_joined:
            first, second, _ = op.operands
            expand = second.defining_op
            assert expand is not None
            rest = [builder.add(expand, {expand.operand(0): value}).result for value in given[by_joined[op]]]
            joined = builder.block.append(op.clone(operands=[mapping[first], mapping[second], *rest]))
            mapping[op.result] = joined.result
        elif op.num_operands and op.operand(0) in whole:  # the barrier
            mapping[op.result] = mapping[op.operand(0)]
        elif repeated.isdisjoint(op.results):
            copy = builder.add(op, mapping)
            mapping.update(zip(op.results, copy.results, strict=True))
    new = fragment.clone(operands=operands)
    assert isinstance(new, FragmentOp) and fragment.block is not None
    new.body = builder.finish([mapping[v] for v in fragment.body.returned])
    fragment.block.insert_before(fragment, new)
    fragment.replace_all_uses_with(new.results)
    fragment.erase()


def _are_alike(a: Op, b: Op) -> bool:
    """Return whether two ops differ in operands and bodies at most."""
    types = [result.type for result in a.results] == [result.type for result in b.results]
    return types and (a.name, a.props, a.attrs, len(a.operand_uses)) == (b.name, b.props, b.attrs, len(b.operand_uses))


def _number_of(op: Op) -> int | None:
    """Return the index that is all that a fragment makes."""
    if not isinstance(op, FragmentOp) or op.num_operands:
        return None
    constants = op.body.block.ops[:-1]
    if len(constants) != 1 or constants[0].name != "stablehlo.constant":
        return None
    match = _NUMBER.match(constants[0].props["value"].text)
    return None if match is None else int(match[1])


def _more_of(index: _Index, count: int) -> FragmentOp:
    """Return a fragment of the indices that come behind the one of the third iteration, `count` with that one."""
    fragment = index.fragment
    constant = fragment.body.block.first
    assert constant is not None and fragment.block is not None
    text = constant.props["value"].text
    builder = BodyBuilder()
    for i in range(1, count):
        new = builder.add(constant, {})
        new.props["value"] = parse_attribute(_NUMBER.sub(f"dense<{index.number + i * index.step}> : ", text))
    made = make_fragment(
        fragment.mesh,
        (),
        [fragment.results[0].type] * (count - 1),
        builder.finish([op.result for op in builder.block]),
        attrs=fragment.attrs,
        loc=fragment.loc,
    )
    fragment.block.insert_after(fragment, made)
    return made
