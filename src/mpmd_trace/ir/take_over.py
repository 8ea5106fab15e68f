"""Replacing an op by one of another class that keeps its uses and its results."""

from __future__ import annotations

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op


def take_over(op: Op, cls: type[Op], props: dict[str, Attribute], attrs: dict[str, Attribute]) -> Op:
    """Put a new op in the place of `op`, which is gone, and return it.

    It has the operands, results and location of `op`, and no regions.

    All is as if the new op had been made before `op` with the same operands, had replaced it and let it be
    erased, use lists included, but without a new use for each operand and a new value for each result.
    """
    new = cls.__new__(cls)
    assert cls.op_name is not None
    new.name, new.loc = cls.op_name, op.loc
    new.props, new.attrs, new.regions, new.successors = props, attrs, [], []
    new._operands, new.results = op._operands, op.results
    new._capacity = len(new._operands)
    op._operands, op.results = [], []
    for use in new._operands:
        use.owner = new
        value = use.value
        if value._first is not use:
            use.set(value)
    for result in new.results:
        result.op = new
        first = result._first
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
