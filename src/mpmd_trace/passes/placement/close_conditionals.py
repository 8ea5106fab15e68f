"""Ops of opened conditionals become conditionals again: one for each mesh, and for each time values come back to it.

A conditional whose clipping needs the norm of all gradients is, on each mesh, one that computes the partial norm, and
one that uses the whole norm when that has arrived.  Values that leave a conditional for another one of it are zeros
when the branch that makes them is not taken; they are not read then.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Mapping, Sequence

from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import Block, Op, OpResult, Region, Value, make_op
from mpmd_trace.ir.ops import FuncOp
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.placement.open_conditionals import BRANCH, SELECTS, Branch, branch_of, conditions_of, selected_by
from mpmd_trace.passes.placement.zeros import make_zero


def close_conditionals(function: FuncOp, mesh_of: Mapping[Op, int], free: Mapping[Op, object]) -> dict[Op, int]:
    """Make conditionals of marked ops; gives their meshes.

    `mesh_of`: the mesh of each op that has one; `free`: the ops that are made wherever they are needed.
    """
    opened: dict[int, list[Op]] = {}
    for op in function.body:
        if BRANCH in op.attrs or SELECTS in op.attrs:
            opened.setdefault(_whole(op)[0][0], []).append(op)
    made: dict[Op, int] = {}
    for number, ops in opened.items():
        made.update(_Closing(number, ops, mesh_of, free).run())
    for ops in opened.values():
        for op in reversed(ops):
            op.attrs.pop(BRANCH, None)
            op.attrs.pop(SELECTS, None)
            if not op.has_uses:
                op.erase()
    return made


def _whole(op: Op) -> Branch:
    """Return the conditionals around an op, and the one whose result it selects, in no branch."""
    number = selected_by(op)
    return branch_of(op) if number is None else (*branch_of(op), (number, -1))


@dataclasses.dataclass
class _Group:
    """Ops of a conditional that run at one time on one mesh."""

    mesh: int
    ops: list[Op]
    #: The results that others need: those of selects, and those that other groups read.
    leaving: list[Value] = dataclasses.field(default_factory=list)


class _Closing:
    """Divides one outermost conditional."""

    def __init__(self, number: int, ops: Sequence[Op], mesh_of: Mapping[Op, int], free: Mapping[Op, object]) -> None:
        self.number = number
        self.free = free
        self.members = [op for op in ops if op not in free]
        self.inside = set(self.members)
        self.mesh_of = mesh_of
        #: What other groups have made of the values of members.
        self.outside: dict[Value, Value] = {}
        self.conditions = conditions_of(self.members)
        #: The members whose results each member reads, perhaps through free ops, and these results.
        self.read = {op: self._members_read(op) for op in self.members}
        #: The members that read a value of a member.
        self.readers: dict[Value, dict[Op, None]] = {}
        for op, makers in self.read.items():
            for values in makers.values():
                for value in values:
                    self.readers.setdefault(value, {})[op] = None

    def run(self) -> dict[Op, int]:
        """Make the conditionals."""
        anchor = next((op for op in self.members if selected_by(op) == self.number), None)
        if anchor is None:
            return {}
        made: dict[Op, int] = {}
        for group in self._groups():
            if not any(self.read[op] or selected_by(op) != self.number for op in group.ops):
                continue  # selects between values from outside stay what they are
            conditional = _Body(self, group.ops).conditional(self.number, group.ops, group.leaving)
            conditional.move_before(anchor)
            made[conditional] = group.mesh
            for value, result in zip(group.leaving, conditional.results, strict=True):
                self.outside[value] = result
                if isinstance(value, OpResult) and selected_by(value.op) == self.number:
                    value.replace_all_uses_with(result)
        return made

    def _groups(self) -> list[_Group]:
        """Return the members by time and mesh."""
        times: dict[Op, int] = {}
        groups: dict[tuple[int, int], _Group] = {}
        group_of: dict[Op, _Group] = {}
        for op in self.members:
            mesh = self.mesh_of[op]
            made_by = self.read[op]
            times[op] = max((times[maker] + (self.mesh_of[maker] != mesh) for maker in made_by), default=0)
            group = groups.setdefault((times[op], mesh), _Group(mesh, []))
            group.ops.append(op)
            group_of[op] = group
            for maker, values in made_by.items():
                if group_of[maker] is not group:
                    leaving = group_of[maker].leaving
                    leaving += [value for value in values if value not in leaving]
            if selected_by(op) == self.number:
                group.leaving.append(op.results[0])
        return [groups[key] for key in sorted(groups)]

    def _members_read(self, op: Op) -> dict[Op, list[Value]]:
        result: dict[Op, list[Value]] = {}
        inner = [number for number, _ in branch_of(op) if number != self.number]
        pending = [*effective_operands(op), *(self.conditions[number] for number in inner if number in self.conditions)]
        seen = set(pending)
        while pending:
            value = pending.pop()
            maker = value.defining_op
            if maker in self.inside:
                result.setdefault(maker, []).append(value)
            elif maker is not None and maker in self.free:
                new = [v for v in effective_operands(maker) if v not in seen]
                seen.update(new)
                pending += new
        return result


class _Body:
    """Builds the branches of one conditional, and of those in them."""

    def __init__(self, closing: _Closing, ops: Sequence[Op], around: _Body | None = None) -> None:
        self.closing = closing
        self.ops = set(ops)
        self.around = around
        self.block = Block()
        #: What stands for values here, and in the bodies around this one.
        self.values: ChainMap[Value, Value] = ChainMap() if around is None else around.values.new_child()

    def conditional(self, number: int, ops: Sequence[Op], leaving: Sequence[Value]) -> Op:
        """Return the conditional that runs these ops, and returns these values; detached."""
        depth = next(i for i, (other, _) in enumerate(_whole(ops[0])) if other == number)
        regions = []
        for taken in (1, 0):
            body = _Body(self.closing, [op for op in ops if _whole(op)[depth][1] == taken], self)
            body.fill(depth)
            body.block.append(make_op("stablehlo.return", [body.returned(v, number, taken) for v in leaving]))
            regions.append(Region([body.block]))
        condition = self.value(self.closing.conditions[number])
        return make_op("stablehlo.if", [condition], [v.type for v in leaving], regions=regions, loc=ops[0].loc)

    def fill(self, depth: int) -> None:
        """Add the ops of this branch, conditionals in it as one op each."""
        number_of: dict[Op, int | None] = {}
        inner: dict[int | None, list[Op]] = {}
        for op in self.closing.members:
            if op in self.ops:
                whole = _whole(op)
                number_of[op] = whole[depth + 1][0] if len(whole) > depth + 1 else None
                inner.setdefault(number_of[op], []).append(op)
        first_of = {op: op if number is None else inner[number][0] for op, number in number_of.items()}

        def together(first: Op) -> list[Op]:
            number = number_of[first]
            return [first] if number is None else inner[number]

        def makers(first: Op) -> list[Op]:
            return [first_of[maker] for op in together(first) for maker in self.closing.read[op] if maker in self.ops]

        for first in postorder(first_of.values(), makers):
            number = number_of[first]
            if number is None:
                self.copy(first)
                continue
            leaving = self._leaving(together(first), number)
            conditional = self.conditional(number, together(first), leaving)
            self.block.append(conditional)
            self.values.update(zip(leaving, conditional.results, strict=True))

    def _leaving(self, ops: Sequence[Op], number: int) -> list[Value]:
        """Return the values that leave a conditional inside: its results, and what other parts of it read elsewhere."""
        own = set(ops)
        readers = self.closing.readers
        return [
            result
            for op in ops
            for result in op.results
            if selected_by(op) == number or any(reader not in own for reader in readers.get(result, ()))
        ]

    def copy(self, op: Op) -> Op:
        """Append a copy of an op, which reads what it needs here."""
        mapping = {value: self.value(value) for value in effective_operands(op)}
        copy = self.block.append(op.clone(mapping))
        copy.attrs.pop(BRANCH, None)
        self.values.update(zip(op.results, copy.results, strict=True))
        return copy

    def value(self, value: Value) -> Value:
        """Return what stands for a value here."""
        if value not in self.values:
            for one in postorder([value], self._missing):
                maker = self._free_maker(one)
                if maker is not None:
                    self.copy(maker)
        return self.values.get(value) or self.closing.outside.get(value, value)

    def _free_maker(self, value: Value) -> Op | None:
        """Return the op that makes a value here, too, if it has not yet."""
        maker = value.defining_op
        is_missing = self.around is not None and maker in self.closing.free and value not in self.values
        return maker if is_missing else None

    def _missing(self, value: Value) -> list[Value]:
        maker = self._free_maker(value)
        return [] if maker is None else [v for v in effective_operands(maker) if v not in self.values]

    def returned(self, value: Value, number: int, taken: int) -> Value:
        """Return what a branch returns for a value that leaves: it, what a select takes, or zeros."""
        maker = value.defining_op
        assert maker is not None
        if selected_by(maker) == number:
            return self.value(maker.operand(1 if taken else 2))
        if maker in self.ops:
            return self.value(value)
        assert isinstance(value.type, TensorType)
        zero = self.block.append(make_zero(value.type, maker.loc))
        return zero.results[0]
