"""Simplification of StableHLO ops with regions: while, case, reduce, sort.

The rules are those of StableHLO's own pass, found by experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpmd_trace.ir.attributes import Attribute, BoolAttr, IntegerAttr
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.stablehlo_attributes import integer, integers, shape_of
from mpmd_trace.passes.greedy import Pattern, Rewriter, rewrites
from mpmd_trace.passes.reachable import reachable
from mpmd_trace.passes.stablehlo.elements import integer_of, splat_text
from mpmd_trace.passes.stablehlo.rules import BROADCAST, ints, static


def _without(values: Sequence[Value], gone: set[int]) -> list[Value]:
    return [v for i, v in enumerate(values) if i not in gone]


def _keep(
    op: Op,
    operands: Sequence[Value],
    gone: set[int],
    rewriter: Rewriter,
    props: Mapping[str, Attribute],
    attrs: Mapping[str, Attribute] | None = None,
) -> None:
    """Put an op of these operands, with the regions and the results that are not gone, in the place of `op`."""
    kept = _without(op.results, gone)
    regions, op.regions = op.regions, []
    new = make_op(op.name, operands, [r.type for r in kept], props=props, attrs=attrs, regions=regions, loc=op.loc)
    rewriter.insert_before(op, new)
    for old, result in zip(kept, new.results, strict=True):
        rewriter.replace_all_uses(old, result)
    rewriter.erase(op)


@rewrites("stablehlo.while")
def _while(op: Op, rewriter: Rewriter) -> bool:
    """Return whether a loop carries no value that it does not change, and runs at least once."""
    condition, body = op.regions[0].block, op.regions[1].block
    if splat_text(condition.terminator.operand(0)) == "false":
        rewriter.replace_op(op, op.operands)
        return True
    invariant = {
        i for i, value in enumerate(body.terminator.operands) if value is body.args[i] or value is op.operand(i)
    }
    if not invariant:
        return False
    for i in invariant:
        for value in (condition.args[i], body.args[i], op.results[i]):
            rewriter.replace_all_uses(value, op.operand(i))
    body.terminator.erase_operands(invariant)
    condition.erase_args(invariant)
    body.erase_args(invariant)
    _keep(op, _without(op.operands, invariant), invariant, rewriter, op.props, op.attrs)
    return True


@rewrites("stablehlo.case")
def _case(op: Op, rewriter: Rewriter) -> bool:
    """Replace a case with a known index by its branch."""
    index, count = integer_of(op.operand(0)), len(op.regions)
    if index is None:
        return False
    chosen = op.regions[index if 0 <= index < count else count - 1].block
    for nested in chosen:
        if nested is not chosen.terminator:
            rewriter.move_before(nested, op)
    rewriter.replace_op(op, chosen.terminator.operands)
    return True


@rewrites("stablehlo.reduce")
def _reduce(op: Op, rewriter: Rewriter) -> bool:
    """Return whether a reduction reduces something, uses what it reduces, and its results are used."""
    count = len(op.results)
    inputs, initial = op.operands[:count], op.operands[count:]
    dims = integers(op, "dimensions")
    if not dims and all(v.type is r.type for v, r in zip(inputs, op.results, strict=True)):
        rewriter.replace_op(op, inputs)
        return True
    if all(static(v) and 0 in shape_of(v) for v in inputs):
        return _broadcasts(op, initial, rewriter)
    returned = op.regions[0].block.terminator.operands
    if not any(_defined_in(v, op.regions[0]) for v in returned):
        return _broadcasts(op, returned, rewriter)
    return _drop_unused(op, rewriter)


def _drop_unused(op: Op, rewriter: Rewriter) -> bool:
    count = len(op.results)
    gone = {i for i, r in enumerate(op.results) if not r.has_uses}
    if not gone or len(gone) == count:
        return False
    block = op.regions[0].block
    kept = [i for i in range(count) if i not in gone]
    allowed = {block.args[i] for i in kept} | {block.args[i + count] for i in kept}
    needed = _arguments_behind([block.terminator.operand(i) for i in kept], block)
    if not needed <= allowed:
        return False
    both = gone | {i + count for i in gone}
    block.terminator.erase_operands(gone)
    for nested in reversed(block):
        if nested is not block.terminator and not nested.has_uses:
            rewriter.erase(nested)
    block.erase_args(both)
    _keep(op, _without(op.operands, both), gone, rewriter, op.props)
    return True


def _defined_in(value: Value, region: Region) -> bool:
    block = value.block
    while block is not None:
        if block.parent is region:
            return True
        op = block.parent_op
        block = None if op is None else op.block
    return False


def _arguments_behind(values: Sequence[Value], block: Block) -> set[Value]:
    """Return the block arguments from which the values are computed."""

    def read(value: Value) -> list[Value]:
        producer = value.defining_op
        return [] if producer is None else [v for nested in producer.walk() for v in nested.operands]

    return {value for value in reachable(values, read) if value.defining_op is None and value.block is block}


def _broadcasts(op: Op, values: Sequence[Value], rewriter: Rewriter) -> bool:
    """Put broadcasts of scalars in the place of the results."""
    new: list[Value] = []
    for value, result in zip(values, op.results, strict=True):
        props: dict[str, Attribute] = {"broadcast_dimensions": ints([])}
        broadcast = make_op(BROADCAST, [value], [result.type], props=props, loc=op.loc)
        new += rewriter.insert_before(op, broadcast).results
    rewriter.replace_op(op, new)
    return True


@rewrites("stablehlo.sort")
def _sort(op: Op, rewriter: Rewriter) -> bool:
    """Return whether a sort moves only values that are used or compared."""
    block = op.regions[0].block
    gone = {
        i
        for i, r in enumerate(op.results)
        if not r.has_uses and not block.args[2 * i].has_uses and not block.args[2 * i + 1].has_uses
    }
    props = dict(op.props)
    unset = "dimension" not in props or integer(op, "dimension") < 0
    if unset and len(shape_of(op.operand(0))) == 1:
        props["dimension"] = IntegerAttr.get(0)
    if not gone and props == op.props:
        return False
    if gone:
        props.setdefault("is_stable", BoolAttr.get(False))
    block.erase_args([j for i in gone for j in (2 * i, 2 * i + 1)])
    _keep(op, _without(op.operands, gone), gone, rewriter, props)
    return True


REGIONS: list[Pattern] = [_while, _case, _reduce, _sort]
