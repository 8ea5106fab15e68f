"""`mpmd-repeat-steady-state` (ours): the microbatches that the passes before went without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from mpmd_trace.ir.attributes import IntegerAttr, integer_in
from mpmd_trace.ir.core import Op, OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OMITTED, STACKS, FragmentOp, FuncOp, Module, before_transfers
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.microbatches.indices import number_of, with_more_numbers
from mpmd_trace.passes.microbatches.stacks import Stack, set_parts, stack_of

_COUNTER = "call_counter"


class RepeatSteadyState(FunctionPass):
    """Repeat what the schedule does again and again between the first and the last microbatches.

    `mpmd-repeat-calls` makes only some of many iterations of a loop, so that the passes up to here handle few
    microbatches; `mpmd.omitted_iterations` says how many are missing. Here, the ops are in the order of the schedule,
    and all programs are what they will be. Three periods in a row show what changes from one to the next: the
    microbatch, by the same number for all ops; operands, which are the values of one period later, or constants that
    grow. Copies of the last period are put behind it. What follows is for later microbatches then, and reads what the
    last copies give. A stack of results gets those of the copies, too. It is an error if there are no such periods;
    `mpmd_trace.jit` then compiles all microbatches.

    Before:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes, mpmd.omitted_iterations = 1 : ui32} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 1 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1) {call_counter = 2 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2) {call_counter = 3 : ui32} (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %3 : !a
        }

    After:

        func.func public @main(%arg0: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg0) {call_counter = 0 : ui32} (%arg1: !t) {
            %5 = stablehlo.negate %arg1 : !t
            mpmd.return %5 : !t
          } : (!a) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) {call_counter = 1 : ui32} (%arg1: !t) {
            %5 = stablehlo.negate %arg1 : !t
            mpmd.return %5 : !t
          } : (!a) -> !a
          %2 = mpmd.fragment<mesh="a", origin=["f"]> (%1) {call_counter = 2 : ui32} (%arg1: !t) {
            %5 = stablehlo.negate %arg1 : !t
            mpmd.return %5 : !t
          } : (!a) -> !a
          %3 = mpmd.fragment<mesh="a", origin=["f"]> (%2) {call_counter = 3 : ui32} (%arg1: !t) {
            %5 = stablehlo.negate %arg1 : !t
            mpmd.return %5 : !t
          } : (!a) -> !a
          %4 = mpmd.fragment<mesh="a", origin=["f"]> (%3) {call_counter = 4 : ui32} (%arg1: !t) {
            %5 = stablehlo.negate %arg1 : !t
            mpmd.return %5 : !t
          } : (!a) -> !a
          return %4 : !a
        }
    """

    name = "mpmd-repeat-steady-state"
    summary = "put in the microbatches between the first and the last ones"
    mpmd_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        omitted = integer_in(function.attrs, OMITTED)
        if omitted is None:
            return False
        expected = integer_in(function.attrs, STACKS) or 0
        ops = function.body.ops[:-1]
        keys, stacks = _keys(ops), _stacks(ops, omitted) if expected else []
        periods = _periods(ops, keys, omitted) if len(stacks) == expected else ()
        if not any(_Repetition(ops, keys, stacks, period, omitted).succeeds() for period in periods):
            raise diagnostics.fatal(function.loc, "no ops are repeated for one microbatch after the other")
        del function.attrs[OMITTED]
        function.attrs.pop(STACKS, None)
        return True


#: What an operand is, compared with that of the same op one period before: the same value, that of one period later,
#: or an integer that is greater by this.
_Relation: TypeAlias = Literal["same", "later"] | int


class _Link(NamedTuple):
    """The difference of an op from the same one a period before: by how many microbatches, and in each operand.

    `step` is None if it is of no microbatch.
    """

    step: int | None
    operands: tuple[_Relation, ...]


class _Period(NamedTuple):
    """Ops that are there again and again, from `start` up to `end`: each time `length` ops, for `step` microbatches."""

    start: int
    end: int
    length: int
    step: int
    #: Of the ops of the last period.
    links: Sequence[_Link]


def _keys(ops: Sequence[Op]) -> list[int]:
    """Return a number for each op, the same for those that differ only in what they read and in their microbatch."""
    same = first_equal([region for op in ops for region in op.regions if region.frozen])
    numbers: dict[Hashable, int] = {}
    keys = []
    for op in ops:
        attrs = {name: value for name, value in op.attrs.items() if name != _COUNTER}
        regions = [same.get(region, region) for region in op.regions]
        types = [result.type for result in op.results]
        key = (op.name, *op.props.items(), *attrs.items(), *regions, *types, op.num_operands, _COUNTER in op.attrs)
        keys.append(numbers.setdefault(key, len(numbers)))
    return keys


def _periods(ops: Sequence[Op], keys: Sequence[int], omitted: int) -> Iterator[_Period]:
    """Yield what may be repeated until there are so many microbatches more, the shortest periods first."""
    place = {op: i for i, op in enumerate(ops)}
    for length in range(1, len(ops) // 3 + 1):
        links: dict[int, _Link] = {}
        start = 0
        for i in range(len(ops) - length + 1):
            link = None
            if i + length < len(ops) and keys[i] == keys[i + length]:
                link = _link(ops[i], ops[i + length], place, length)
            if link is not None and links.get(i - length, link) == link:
                links[i] = link
                continue
            if i - start >= 2 * length:
                last = [links[j] for j in range(i - length, i)]
                steps = {one.step for one in last if one.step is not None}
                if len(steps) == 1 and (step := steps.pop()) > 0 and omitted % step == 0:
                    period = _Period(start, i + length, length, step, last)
                    if _has_all(ops, period):
                        yield period
            links, start = {}, i + 1


def _link(before: Op, op: Op, place: Mapping[Op, int], length: int) -> _Link | None:
    """Return how an op differs from one of the same key so many places before it, if it may be the next one of it."""
    operands: list[_Relation] = []
    for old, new in zip(before.operands, op.operands, strict=True):
        if old is new:
            operands.append("same")
        elif not isinstance(old, OpResult) or not isinstance(new, OpResult):
            return None
        elif new.index == old.index and place[new.op] - place[old.op] == length:
            operands.append("later")
        elif new.op is old.op and (number := number_of(new)) is not None and (last := number_of(old)) is not None:
            operands.append(number - last)
        else:
            return None
    counter, last_counter = integer_in(op.attrs, _COUNTER), integer_in(before.attrs, _COUNTER)
    return _Link(None if counter is None or last_counter is None else counter - last_counter, tuple(operands))


def _has_all(ops: Sequence[Op], period: _Period) -> bool:
    """Return whether a period has its part of all that there is for microbatches, on each mesh and of each name."""
    microbatches = 1 + max(counter for op in ops if (counter := integer_in(op.attrs, _COUNTER)) is not None)
    own = Counter(_named(ops[period.end - period.length : period.end]))
    return all(own[name] * microbatches == count * period.step for name, count in Counter(_named(ops)).items())


def _named(ops: Sequence[Op]) -> Iterator[Hashable]:
    for op in ops:
        if isinstance(op, FragmentOp) and _COUNTER in op.attrs:
            for origin in op.origin or (None,):
                yield op.mesh, origin


def _stacks(ops: Sequence[Op], omitted: int) -> list[Stack]:
    """Return the stacks of all iterations, in which the last one stands for those that are omitted, too."""
    fragments = [op for op in ops if isinstance(op, FragmentOp)]
    stacks = [stack_of(fragment, op, 1 + omitted) for fragment in fragments for op in fragment.body.block]
    return [stack for stack in stacks if stack is not None]


class _Indices(NamedTuple):
    """Integers that a fragment returns, and by how much that of a microbatch is greater than that of the one before."""

    fragment: FragmentOp
    type: Type
    step: int


class _Repetition:
    """Copies of the last period behind it."""

    def __init__(
        self, ops: Sequence[Op], keys: Sequence[int], stacks: Sequence[Stack], period: _Period, omitted: int
    ) -> None:
        self.ops, self.keys, self.stacks, self.period, self.omitted = ops, keys, stacks, period, omitted
        self.place = {op: i for i, op in enumerate(ops)}
        self.last = ops[period.end - period.length : period.end]
        #: The operands that are indices: those of the last period, with their numbers, and of ops behind the copies.
        self.indices: dict[tuple[Op, int], tuple[_Indices, int]] = {}
        #: Operands behind the copies that are to be what the last copy gives in their place.
        self.values: list[tuple[Op, int, OpResult]] = []
        #: How many parts each stack has before those of the copies, and what they are in the last period.
        self.stacked: list[tuple[int, list[OpResult]]] = []

    def succeeds(self) -> bool:
        """Repeat the period, if it is known what the copies and the ops behind them read; return whether it is."""
        if not self._read_period() or not self._read_stacks() or not self._read_following():
            return False
        numbers = self._more_numbers()
        if numbers is None:
            return False
        self._write(numbers)
        return True

    def _read_period(self) -> bool:
        for op, link in zip(self.last, self.period.links, strict=True):
            for i, relation in enumerate(link.operands):
                if isinstance(relation, int):
                    if relation % self.period.step:
                        return False
                    self._note_index(op, i, relation)
        return True

    def _note_index(self, op: Op, operand: int, growth: int) -> None:
        value, step = op.operand(operand), growth // self.period.step
        number = number_of(value)
        assert number is not None and isinstance(value, OpResult) and isinstance(value.op, FragmentOp)
        self.indices[op, operand] = _Indices(value.op, value.type, step), number

    def _read_stacks(self) -> bool:
        _, end, length, step, _ = self.period
        for stack in self.stacks:
            operands = [stack.fragment.operand(i) for i in stack.operands]
            values = [value for value in operands if isinstance(value, OpResult)]
            places = [self.place[value.op] for value in values]
            last = sum(place < end for place in places)
            if len(values) < len(operands) or last < 2 * step or max(places[:last]) >= end:
                return False
            for i in range(last - step, last):
                is_later = places[i] - places[i - step] == length and values[i].index == values[i - step].index
                if not is_later or places[i] < end - length:
                    return False
            self.stacked.append((last, values[last - step : last]))
        return True

    def _read_following(self) -> bool:
        start, end = self.period.start, self.period.end
        links: dict[int, set[_Link]] = {}
        for key, link in zip(self.keys[end - self.period.length : end], self.period.links, strict=True):
            links.setdefault(key, set()).add(link)
        integers = {(indices.fragment, indices.type) for indices, _ in self.indices.values()}
        terminator = self.ops[-1].next_op
        assert terminator is not None
        stacked = {(stack.fragment, i) for stack in self.stacks for i in stack.operands}
        parts = [stack.fragment.operand(i) for stack in self.stacks for i in stack.operands]
        sources = {before_transfers(value) for value in parts}
        for op, key in zip((*self.ops[end:], terminator), (*self.keys[end:], -1), strict=True):
            for i, value in enumerate(op.operands):
                if not isinstance(value, OpResult) or (op, i) in stacked:
                    continue
                if before_transfers(value) in sources and sources.isdisjoint(map(before_transfers, op.results)):
                    return False  # it may be that of a certain microbatch, which was taken out of a stack
                if self.place[value.op] >= end:
                    continue
                if self.place[value.op] >= start:
                    self.values.append((op, i, value))
                    continue
                relations = {link.operands[i] for link in links.get(key, ())}
                relation = relations.pop() if len(relations) == 1 else None
                if isinstance(relation, int) and number_of(value) is not None:
                    self._note_index(op, i, relation)
                elif relation != "same":
                    # It must not be that of a certain microbatch.
                    maker = before_transfers(value).defining_op
                    if maker is not None and _COUNTER in maker.attrs:
                        return False
                    if _COUNTER in op.attrs and (value.op, value.type) in integers:
                        return False
        return True

    def _more_numbers(self) -> dict[_Indices, dict[int, Value]] | None:
        """Return the indices of all microbatches, by their numbers; those of later ones come behind those before.

        None if the fragment has one of the later ones already, as with indices that count up and down: which result
        that would be of all microbatches is not known.
        """
        results_of: dict[_Indices, dict[int, int]] = {}  # results by number
        more: dict[FragmentOp, dict[int, list[int]]] = {}
        known: dict[tuple[FragmentOp, Type], set[int]] = {}
        for indices, last in dict.fromkeys(self.indices.values()):
            fragment, type, step = indices
            if indices not in results_of:
                results_of[indices] = _integers(indices)
            results = results_of[indices]
            while last + step in results:
                last += step
            later = [last + i * step for i in range(1, self.omitted + 1)]
            behind = more.setdefault(fragment, {})
            if behind.get(results[last]) == later:
                continue
            numbers = known.setdefault((fragment, type), set(results))
            if results[last] in behind or not numbers.isdisjoint(later):
                return None
            behind[results[last]] = later
            numbers.update(later)
        made: dict[_Indices, dict[int, Value]] = {}
        for fragment, behind in more.items():
            groups = with_more_numbers(fragment, behind)
            for indices in [one for one in results_of if one.fragment is fragment]:
                made[indices] = {}
                for number, result in results_of[indices].items():
                    made[indices].update(zip((number, *behind.get(result, ())), groups[result], strict=True))
        return made

    def _write(self, numbers: Mapping[_Indices, Mapping[int, Value]]) -> None:
        _, end, length, step, links = self.period
        copies = self.omitted // step
        # The operands of each op of the period, and which of them change: where to find the result, or the integers.
        changing: list[tuple[list[tuple[int, int, int]], list[tuple[int, list[Value]]]]] = []
        for op, link in zip(self.last, links, strict=True):
            results, integers = [], []
            for i, (value, relation) in enumerate(zip(op.operands, link.operands, strict=True)):
                if relation == "later":
                    assert isinstance(value, OpResult)
                    results.append((i, self.place[value.op], value.index))
                elif relation != "same":
                    indices, number = self.indices[op, i]
                    more = [numbers[indices][number + copy * relation] for copy in range(copies + 1)]
                    integers.append((i, more))
            changing.append((results, integers))
        made = list(self.ops[:end])
        for copy in range(1, copies + 1):
            for op, (results, integers) in zip(self.last, changing, strict=True):
                operands = op.operands
                for i, place, result in results:
                    operands[i] = made[place + copy * length].results[result]
                for i, values in integers:
                    operands[i] = values[copy]
                new = op.clone(operands=operands)
                _add_to_counter(new, copy * step)
                made.append(new)
        following, block = self.last[-1].next_op, self.last[-1].block
        assert following is not None and block is not None
        block.insert_all_before(following, made[end:])
        parts_of: dict[Stack, list[Value]] = {}
        for stack, (last, of_period) in zip(self.stacks, self.stacked, strict=True):
            parts = [stack.fragment.operand(i) for i in stack.operands]
            parts[last:last] = [
                made[self.place[value.op] + copy * length].results[value.index]
                for copy in range(1, copies + 1)
                for value in of_period
            ]
            parts_of[stack] = parts
        for op, i, value in self.values:
            op.set_operand(i, made[self.place[value.op] + copies * length].results[value.index])
        for op in self.ops[end:]:
            _add_to_counter(op, self.omitted)
            for i in range(op.num_operands):
                if (op, i) in self.indices:
                    indices, number = self.indices[op, i]
                    op.set_operand(i, numbers[indices][number + self.omitted * indices.step])
        set_parts(parts_of)


def _integers(indices: _Indices) -> dict[int, int]:
    """Return which results of the fragment are integers of the type."""
    of_type = [result for result in indices.fragment.results if result.type == indices.type]
    return {number: result.index for result in of_type if (number := number_of(result)) is not None}


def _add_to_counter(op: Op, more: int) -> None:
    counter = integer_in(op.attrs, _COUNTER)
    if counter is not None:
        op.attrs[_COUNTER] = IntegerAttr.get(counter + more, "ui32")
