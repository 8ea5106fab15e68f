"""A change that lowering makes to each fragment of programs of hundreds of microbatches, faster than replacing it."""

from __future__ import annotations

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op


def become(op: Op, cls: type[Op], props: dict[str, Attribute], attrs: dict[str, Attribute]) -> None:
    """Make an op one of another class, with its operands, results and location, and without regions.

    All is as if a new op had been made before `op` with the same operands, had replaced it and let it be erased, use
    lists included, but without a new use for each operand and a new value for each result.
    """
    assert cls.op_name is not None and not op.frozen
    op.__class__ = cls
    op.name = cls.op_name
    op.props, op.attrs, op.regions = props, attrs, []
    op._capacity = len(op.operand_uses)
    for use in op.operand_uses:
        value = use.value
        if value.first_use is not use:
            use.set(value)
    for result in op.results:
        first = result.first_use
        if first is not None and first.next is not None:
            result.reverse_uses()
