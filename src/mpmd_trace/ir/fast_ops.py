"""Ops that passes make by the ten thousand, made faster than by the constructor, by replacing and erasing."""

from __future__ import annotations

from typing import TypeVar

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op, OpResult, Use, Value
from mpmd_trace.ir.types import Type

_SomeOp = TypeVar("_SomeOp", bound=Op)


def make_unary(
    cls: type[_SomeOp],
    value: Value,
    result_type: Type,
    props: dict[str, Attribute],
    loc: Location,
    use: Use | None = None,
) -> _SomeOp:
    """Return an op with one operand and one result, as `make_op`, but made faster; `props` is taken, not copied.

    `use`, a use of `value`, becomes that of the op, wherever it is in the list.
    Mesh inference makes an assign and an unassign for every value that calls pass, and removes them again.
    """
    op = cls.__new__(cls)
    assert cls.op_name is not None
    op.name, op.loc = cls.op_name, loc
    op.props, op.attrs, op.regions, op.successors = props, {}, [], []
    op.block = op._prev = op._next = None
    op._order = -1
    op.results = [OpResult(result_type, 0, op)]
    if use is None:
        use = Use(op, 0, value)
    else:
        use.owner, use.index = op, 0
    op.operand_uses = [use]
    op._capacity = 1
    return op


def take_over(op: Op, cls: type[_SomeOp], props: dict[str, Attribute], attrs: dict[str, Attribute]) -> _SomeOp:
    """A new op in the place of `op`, which is gone: with its operands, results and location, without its regions.

    All is as if the new op had been made before `op` with the same operands, had replaced it and let it be
    erased, use lists included, but without a new use for each operand and a new value for each result.
    """
    new = cls.__new__(cls)
    assert cls.op_name is not None
    new.name, new.loc = cls.op_name, op.loc
    new.props, new.attrs, new.regions, new.successors = props, attrs, [], []
    new.operand_uses, new.results = op.operand_uses, op.results
    new._capacity = len(new.operand_uses)
    op.operand_uses, op.results = [], []
    for use in new.operand_uses:
        use.owner = new
        value = use.value
        if value.first_use is not use:
            use.set(value)
    for result in new.results:
        result.op = new
        first = result.first_use
        if first is not None and first.next is not None:
            result.reverse_uses()
    block = op.block
    assert block is not None and not block.frozen
    new.block, new._order, new._prev, new._next = block, op._order, op._prev, op._next
    if new._prev is None:
        block._first = new
    else:
        new._prev._next = new
    if new._next is None:
        block._last = new
    else:
        new._next._prev = new
    op.block = op._prev = op._next = None
    return new
