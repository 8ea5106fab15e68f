"""Changes that passes make to each op of programs of hundreds of microbatches, made faster than by replacing it.

At 512 microbatches they save a twelfth of the CPU time of all passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Block, Op, Region, Use, Value

_SomeOp = TypeVar("_SomeOp", bound=Op)


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


def replace_two(
    first: Op,
    second: _SomeOp,
    kept: Sequence[int],
    operands: Sequence[Value],
    props: dict[str, Attribute],
    attrs: dict[str, Attribute],
    regions: list[Region],
    loc: Location,
) -> _SomeOp:
    """Return a new op in the place of `second` and of `first`, which are gone, with these results of `first` in front.

    All is as if the new op had been made before `second`, had replaced both and let them be erased, use lists included,
    but without a new value for each result.
    """
    block = second.block
    assert block is not None and not block.frozen
    cls = second.__class__
    new = cls.__new__(cls)
    new.name, new.loc = second.name, loc
    new.props, new.attrs, new.regions, new.successors = props, attrs, regions, []
    uses: list[Use] = []
    for value in operands:
        uses.append(Use(new, len(uses), value))
    results = [first.results[i] for i in kept]
    results += second.results
    new.results, new.operand_uses, new._capacity = results, uses, len(uses)
    for index, result in enumerate(results):
        result.op, result.index = new, index
        use = result.first_use
        if use is not None and use.next is not None:
            result.reverse_uses()
    first.results = [result for i, result in enumerate(first.results) if i not in kept]
    second.results = []
    for use in second.operand_uses:
        use._unlink()
    second.operand_uses = []
    _put_in_place(new, second, block)
    first.erase()
    return new


def _put_in_place(new: Op, old: Op, block: Block) -> None:
    new.block, new._order, new._prev, new._next = block, old._order, old._prev, old._next
    if new._prev is None:
        block._first = new
    else:
        new._prev._next = new
    if new._next is None:
        block._last = new
    else:
        new._next._prev = new
    old.block = old._prev = old._next = None
