"""Kinds of ops and values: what sharding propagation cannot tell apart.

Two ops are of one kind when they look the same (mesh, body, types, given shardings), their operands are of
the same kinds and their results are read by ops of the same kinds.  Edges from one microbatch to the next one
(an accumulated gradient, say) are the exception: there only the look of the neighbour counts, because
otherwise every microbatch would be a kind of its own, being one step farther from the first.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable

from mpmd_trace.ir.core import Op, OpResult, Region, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, local_type
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.equal_bodies import first_equal
from mpmd_trace.passes.sharding.body_labels import abstract_text, operand_labels, result_labels

__all__ = ["Kinds", "is_scalar"]

_MOST_ROUNDS = 8


def is_scalar(value: Value) -> bool:
    """Whether the value has no dimension that could be sharded."""
    return _has_no_dims(value.type)


@functools.cache
def _has_no_dims(type: Type) -> bool:
    inner = local_type(type)
    return not isinstance(inner, TensorType) or inner.shape == ()


class _Numbers:
    """Small numbers for hashable keys, so that comparing keys of keys stays cheap."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}

    def __call__(self, key: Hashable) -> int:
        return self._of.setdefault(key, len(self._of))


class Kinds:
    """The kinds of a function of fragments and transfers, as numbers."""

    ops: list[Op]
    op: dict[Op, int]
    value: dict[Value | int, int]  # the kind of a fixed number is that number
    #: One of the equal bodies that ops of one kind can still differ from each other in.
    body: dict[Op, Region]
    #: Whether members of a kind really have neighbours of the same kinds.
    stable: bool

    def __init__(self, function: FuncOp) -> None:
        self._number = _Numbers()
        self._terminator = function.body.terminator
        self._results = [self._number(("result", d)) for d in function.res_attrs]
        self.ops = [op for op in function.body if op is not self._terminator]
        self._look_around()
        self._args = function.args
        for arg, attributes in zip(self._args, function.arg_attrs, strict=True):
            self.value[arg] = self._number(
                ("scalar", arg.type) if is_scalar(arg) else ("argument", arg.type, attributes)
            )
        self._refine()

    @staticmethod
    def apart(function: FuncOp) -> Kinds:
        """Every op and every value is of its own kind."""
        kinds = Kinds.__new__(Kinds)
        terminator = function.body.terminator
        kinds.ops = [op for op in function.body if op is not terminator]
        kinds.op = {op: i for i, op in enumerate(kinds.ops)}
        values = [*function.args, *(r for op in kinds.ops for r in op.results)]
        kinds.value = {v: i for i, v in enumerate(values)}
        kinds.body = {}
        kinds.stable = True
        return kinds

    def _look_around(self) -> None:
        """What each op is by itself, and which microbatch it belongs to."""
        self.op, self.value, self.body = {}, {}, {}
        self._labels: dict[Op, tuple[int, ...]] = {}
        self._roles: dict[Op, tuple[int, ...]] = {}
        self._counter: dict[Op, int | None] = {}
        same = first_equal(op.body for op in self.ops if isinstance(op, FragmentOp))
        for op in self.ops:
            types = tuple([r.type for r in op.results])
            if isinstance(op, FragmentOp):
                self.body[op] = same[op.body]
                text = abstract_text(same[op.body])
                look: Hashable = (op.mesh, op.in_shardings, op.out_shardings, types, text)
                self._labels[op] = result_labels(same[op.body])
                self._roles[op] = operand_labels(same[op.body])
                self._counter[op] = op.call_counter
            else:
                look = ("transfer", op.attrs.get("sdy.sharding"), types, op.operand(0).type)
                self._labels[op] = self._roles[op] = (0,)
                source = op.operand(0).defining_op
                self._counter[op] = None if source is None else self._counter[source]
            self.op[op] = self._number(look)
        self._look = dict(self.op)
        self._read_by: dict[Value, int] = {}
        self._inputs = {op: self._inputs_of(op) for op in self.ops}

    def _inputs_of(self, op: Op) -> list[Value | int]:
        """The operands, or fixed numbers for those that come from another microbatch."""
        found: list[Value | int] = op.operands  # type: ignore[assignment]  # a fresh list
        for i, v in enumerate(op.operands):
            if isinstance(v, OpResult) and self._crosses(v.op, op) and not is_scalar(v):
                fixed = self._number(("from", self._look[v.op], self._labels[v.op][v.index]))
                found[i] = self.value[fixed] = fixed
        return found

    def _crosses(self, producer: Op, consumer: Op) -> bool:
        """Whether an edge leads from one microbatch to another."""
        a, b = self._counter[producer], self._counter[consumer]
        if a is not None and b is not None and a != b:
            return True
        return self._look[producer] == self._look[consumer] and isinstance(producer, FragmentOp)

    # Refinement: a pass in program order sees everything that leads to an op, one in reverse order everything
    # that comes from it.

    def _refine(self) -> None:
        count = -1
        for _ in range(_MOST_ROUNDS):
            self._forward()
            self._backward()
            found = len(set(self.op.values()))
            if found == count:
                self.stable = True
                self._forward()
                return
            count = found
        self.stable = False

    def _forward(self) -> None:
        number, kinds, values = self._number, self.op, self.value
        for op in self.ops:
            inputs = tuple(map(values.__getitem__, self._inputs[op]))
            kind = kinds[op] = number((kinds[op], inputs))
            for result, label in zip(op.results, self._labels[op], strict=True):
                if is_scalar(result):
                    values[result] = number(("scalar", result.type))
                else:
                    values[result] = number(("value", kind, label, self._read_by.get(result)))

    def _backward(self) -> None:
        kinds = self.op
        for op in reversed(self.ops):
            readers = [self._readers(r) for r in op.results]
            self._read_by.update(zip(op.results, readers, strict=True))
            kinds[op] = self._number((kinds[op], tuple(readers)))
        for arg in self._args:
            if not is_scalar(arg):
                self.value[arg] = self._number((self.value[arg], self._readers(arg)))

    def _readers(self, value: Value) -> int:
        if is_scalar(value):
            return -1
        found: set[tuple[int, int]] = set()
        kinds, terminator, inputs = self.op, self._terminator, self._inputs
        use = value._first
        while use is not None:
            owner = use.owner
            if owner is terminator:
                found.add((-1, self._results[use.index]))
            elif isinstance(inputs[owner][use.index], int):
                found.add((-2 - self._look[owner], self._roles[owner][use.index]))
            else:
                found.add((kinds[owner], self._roles[owner][use.index]))
            use = use.next
        return self._number(frozenset(found))
