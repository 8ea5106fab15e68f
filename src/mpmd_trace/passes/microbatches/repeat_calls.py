"""`mpmd-repeat-calls` (ours): a call that stands for several iterations of a loop becomes these."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.core import Op, OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OMITTED, REPEATS, STACKS, CallOp, FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.call_inline import check_callee, inlined
from mpmd_trace.passes.microbatches.indices import number_of, with_more_numbers
from mpmd_trace.passes.microbatches.stacks import Stack, set_parts, stack_of


@dataclasses.dataclass(frozen=True)
class RepeatCalls(FunctionPass):
    """Put the other iterations of a loop behind a call that stands for several: copies of the body of its callee.

    `mpmd_trace.jit` traces only the first three iterations of a loop with many microbatches, since the others differ
    only in the index; `mpmd.repeats` of the third call is the number of iterations that it stands for. The passes so
    far have seen only these three calls. The fourth iteration reads results of the third as the third reads those of
    the second, and so on; indices continue in the same way, and what follows the loop reads the last iteration. A stack
    of the results (of the first two calls, and of the third one repeated, followed by a barrier) becomes a stack of the
    results of all iterations. `mpmd-call-inline` inlines the three calls.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.call @f(%p) {call_counter = 0 : ui32} : (!a) -> !a
          %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
          %2 = mpmd.call @f(%1) {call_counter = 2 : ui32, mpmd.repeats = 2 : ui32} : (!a) -> !a
          return %2 : !a
        }
        func.func private @f(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %0 : !a
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.call @f(%arg0) {call_counter = 0 : ui32} : (!a) -> !a
          %1 = mpmd.call @f(%0) {call_counter = 1 : ui32} : (!a) -> !a
          %2 = mpmd.call @f(%1) {call_counter = 2 : ui32} : (!a) -> !a
          %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2) {call_counter = 3 : ui32} (%arg1: !t) {
            %4 = stablehlo.negate %arg1 : !t
            mpmd.return %4 : !t
          } : (!a) -> !a
          return %3 : !a
        }
        func.func private @f(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) (%arg1: !t) {
            %1 = stablehlo.negate %arg1 : !t
            mpmd.return %1 : !t
          } : (!a) -> !a
          return %0 : !a
        }
    """

    name = "mpmd-repeat-calls"
    summary = "put the other iterations of a loop behind a call that stands for several"
    only_with = ("mpmd.call",)
    mpmd_only = True

    keep: int = option(0, "how many iterations of a loop with many to make, if it is the only one; 0: all")
    omit: int = option(1, "leave out a multiple of so many")

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
            third = loop[-1]
            callee = module.lookup(third.callee)
            check_callee(third, function, callee, diagnostics)
            if diagnostics.failed or callee is None:
                break
            made = _Loop(*loop, callee, diagnostics)
            if self.keep and len(before) == 1 and (omitted := made.omit(self.keep, self.omit)):
                function.attrs[OMITTED] = IntegerAttr.get(omitted, "ui32")
            stacks = made.repeat()
            if stacks and OMITTED in function.attrs:
                function.attrs[STACKS] = IntegerAttr.get(stacks, "ui32")
        return bool(loops)


class _Index(NamedTuple):
    """A result of a fragment that is an index, and how much this grows from iteration to iteration."""

    fragment: FragmentOp
    result: int
    number: int
    step: int


class _Loop:
    """Three iterations, of which the last stands for several."""

    def __init__(self, first: CallOp, second: CallOp, third: CallOp, callee: FuncOp, diagnostics: Diagnostics) -> None:
        self.first, self.second, self.third, self.callee = first, second, third, callee
        self.diagnostics = diagnostics
        #: How many iterations are left out.
        self.omitted = 0
        #: Which operands of the third call are results of the second one, and which are indices; others stay the same.
        self.carried: list[tuple[int, int]] = []
        self.indices: list[tuple[int, _Index]] = []
        for i, (a, b) in enumerate(zip(second.operands, third.operands, strict=True)):
            self._compare(i, a, b)

    def omit(self, at_most: int, unit: int) -> int:
        """Stand for fewer iterations, by a multiple of `unit`, if there are twice as many; return by how many."""
        count = self.third.repeats
        if count >= 2 * at_most:
            self.omitted = (count - at_most) // unit * unit
            self.third.attrs[REPEATS] = IntegerAttr.get(count - self.omitted, "ui32")
        return self.omitted

    def repeat(self) -> int:
        """Put the other iterations behind the third; return how many stacks of results of all iterations there are."""
        third = self.third
        count = third.attrs.pop(REPEATS)
        assert isinstance(count, IntegerAttr)
        stacks = self._stacks(count.value + self.omitted)
        self._check_uses({(s.fragment, i) for s in stacks for i in s.operands[:2]})
        stacked = {(s.fragment, s.operands[2]) for s in stacks}
        behind = [[u for u in result.uses if (u.owner, u.index) not in stacked] for result in third.results]
        results = self._results(count.value)
        for uses, result in zip(behind, results[-1], strict=True):
            for use in reversed(uses):
                use.set(result)
        calls = [self.first.results, self.second.results, *results]
        set_parts({stack: [of_call[n] for of_call in calls] for stack, n in stacks.items()}, 1 + self.omitted)
        return len(stacks)

    def _results(self, count: int) -> list[Sequence[Value]]:
        """Return the results of the third call and of each iteration behind it, which are made here."""
        third, block, counter = self.third, self.third.block, self.third.call_counter
        assert block is not None and counter is not None
        more = _more_of(dict.fromkeys([index for _, index in self.indices]), count)
        indices = [(i, more[index]) for i, index in self.indices]
        operands = third.operands
        attrs = {**third.props, **third.attrs}
        results: list[Sequence[Value]] = [third.results]
        ops: list[Op] = []
        for i in range(1, count):
            for operand, result in self.carried:
                operands[operand] = results[-1][result]
            for operand, values in indices:
                operands[operand] = values[i - 1]
            attrs["call_counter"] = IntegerAttr.get(counter + i, "ui32")
            copies, returned = inlined(self.callee, operands, attrs)
            ops += copies
            results.append(returned)
        following = third.next_op
        assert following is not None
        block.insert_all_before(following, ops)
        return results

    def _compare(self, operand: int, second: Value, third: Value) -> None:
        """Record whether an operand is carried, an index or neither, by those of the second and the third call."""
        if second is third:
            return
        if not isinstance(second, OpResult) or not isinstance(third, OpResult):
            raise self._unlike(third)
        if second.op is self.first and third.op is self.second and second.index == third.index:
            self.carried.append((operand, third.index))
            return
        numbers = [number_of(value) for value in (second, third)]
        if numbers[0] is None or numbers[1] is None:
            raise self._unlike(third)
        assert isinstance(third.op, FragmentOp)
        self.indices.append((operand, _Index(third.op, third.index, numbers[1], numbers[1] - numbers[0])))

    def _stacks(self, count: int) -> dict[Stack, int]:
        """Return the places where results of the calls are stacked, with the numbers of these results.

        The last call stands for `count` iterations there: `concatenate(expand(first), expand(second), repeated)`.
        """
        stacks: dict[Stack, int] = {}
        for result in self.third.results:
            for use in result.uses:
                fragment = use.owner
                if isinstance(fragment, FragmentOp):
                    for reader in fragment.body.block.args[use.index].users:
                        stack = self._stack(fragment, reader, result.index, count)
                        if stack is not None:
                            stacks[stack] = result.index
        return stacks

    def _stack(self, fragment: FragmentOp, repeated: Op, result: int, count: int) -> Stack | None:
        """Return the stack of this result of the calls that ends with `repeated`; None if there is none."""
        users = repeated.results[0].users if repeated.results else ()
        stack = stack_of(fragment, users[0], count) if users else None
        if stack is None or [fragment.operand(i) for i in stack.operands] != [
            call.results[result] for call in (self.first, self.second, self.third)
        ]:
            return None
        barriers = stack.joined.result.users
        is_barrier = len(barriers) == 1 and barriers[0].name == "stablehlo.optimization_barrier"
        return stack if is_barrier and barriers[0].num_operands == 1 else None

    def _check_uses(self, stacked: Set[tuple[Op, int]]) -> None:
        """Check that the results of the first two calls are read only by the next one, and by stacks of all."""
        for call, following in ((self.first, self.second), (self.second, self.third)):
            for result in call.results:
                if not all(use.owner is following or (use.owner, use.index) in stacked for use in result.uses):
                    raise self._unlike(result)

    def _unlike(self, value: Value) -> Exception:
        return self.diagnostics.fatal(value.defining_op or self.third, "an iteration is another one than that before")


def _more_of(indices: Iterable[_Index], count: int) -> dict[_Index, Sequence[Value]]:
    """Return the indices of the iterations behind the third, `count` with that one, from the fragment that gives that.

    A new fragment takes its place.
    """
    by_fragment: dict[FragmentOp, list[_Index]] = {}
    for index in indices:
        by_fragment.setdefault(index.fragment, []).append(index)
    made: dict[_Index, Sequence[Value]] = {}
    for fragment, own in by_fragment.items():
        more: dict[int, list[int]] = {}
        for index in own:
            more.setdefault(index.result, []).extend(index.number + i * index.step for i in range(1, count))
        groups = with_more_numbers(fragment, more)
        for index in own:
            values = groups[index.result]
            made[index] = values[1:count]
            del values[1:count]
    return made
