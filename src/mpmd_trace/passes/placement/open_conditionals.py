"""`mpmd-open-conditionals`: place the ops of a conditional one by one.  See `docs/placement_algorithm.md`."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable

from mpmd_trace.ir.attributes import Attribute, IntegerAttr, StringAttr, parse_attribute
from mpmd_trace.ir.bodies import free_values
from mpmd_trace.ir.core import Block, Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.ir.types import TensorType, tensor
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.placement.rematerializable import byte_size
from mpmd_trace.passes.placement.sums import Origins, change_each
from mpmd_trace.passes.placement.zeros import can_be_zero

#: On an op: in which branches of which conditionals it is, the outermost first: "3:1/5:0".
BRANCH = "mpmd.branch"
#: On a select: the conditional one of whose results it is.
SELECTS = "mpmd.selects"
#: Values up to this size do not make it worth while to open a conditional.
_SMALL_BYTES = 8

_KINDS = ("stablehlo.if", "stablehlo.case")

Branch = tuple[tuple[int, int], ...]


def branch_of(op: Op) -> Branch:
    """Return the conditionals around an op, from the outside in, and in which branch of each it is."""
    attribute = op.attrs.get(BRANCH)
    return _parsed(attribute.value) if isinstance(attribute, StringAttr) else ()


@functools.lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> Branch:
    parts = [part.partition(":") for part in text.split("/")]
    return tuple((int(number), int(branch)) for number, _, branch in parts)


def selected_by(op: Op) -> int | None:
    """Return the number of the conditional one of whose results the op selects, if it does."""
    attribute = op.attrs.get(SELECTS)
    return attribute.value if isinstance(attribute, IntegerAttr) else None


def conditions_of(ops: Iterable[Op]) -> dict[int, Value]:
    """Return the condition of each opened conditional whose results are among those of the ops, by number."""
    return {number: op.operand(0) for op in ops if (number := selected_by(op)) is not None}


def _text(branch: Branch) -> StringAttr:
    return StringAttr.get("/".join(f"{number}:{taken}" for number, taken in branch))


class OpenConditionals(Pass):
    """Inline conditionals that use several meshes, and mark their ops with the branch.

    `mpmd-place`, which alone reads the marks, makes them conditionals again, one or more on each mesh. A conditional
    with more than two branches first becomes nested conditionals with two. Conditionals with side effects are not
    inlined.

    Before:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %c = stablehlo.constant dense<true> : tensor<i1>
        %0:2 = "stablehlo.if"(%c) ({
          %1 = stablehlo.negate %u : !t
          stablehlo.return %1, %v : !t, !t
        }, {
          %1 = stablehlo.tanh %v : !t
          stablehlo.return %u, %1 : !t, !t
        }) : (tensor<i1>) -> (!t, !t)
        return %0#0, %0#1 : !t, !t

    After:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %c = stablehlo.constant dense<true> : tensor<i1>
        %0 = stablehlo.negate %u {mpmd.branch = "0:1"} : !t
        %1 = stablehlo.tanh %v {mpmd.branch = "0:0"} : !t
        %2 = stablehlo.select %c, %0, %u {mpmd.selects = 0 : i64} : tensor<i1>, !t
        %3 = stablehlo.select %c, %v, %1 {mpmd.selects = 0 : i64} : tensor<i1>, !t
        return %2, %3 : !t, !t
    """

    name = "mpmd-open-conditionals"
    summary = "let mpmd-place divide conditionals among meshes"
    only_with = _KINDS

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return change_each(module, _KINDS, _open_all)


def _open_all(function: FuncOp, origins: Origins) -> bool:
    number = 0
    for op in list(function.body):
        if not _spreads(op, origins):
            continue
        inner = deque([_of_two_branches(op)])
        while inner:
            inner += _open(inner.popleft(), number)
            number += 1
    return number > 0


def _of_two_branches(op: Op) -> Op:
    """Return the conditional as one that takes its first branch or else one of the others, in its place.

    An index that is none of a branch's takes the last one.
    """
    if len(op.regions) <= 2:
        return op
    index, types = op.operand(0), [result.type for result in op.results]
    *regions, rest = [region.clone() for region in op.regions]
    for number in reversed(range(len(regions))):
        condition = _compared(op, index, number, "EQ")
        made = make_op("stablehlo.if", [condition], types, regions=[regions[number], rest], loc=op.loc)
        if number:
            rest = Region([Block()])
            rest.block.append(made)
            rest.block.append(make_op("stablehlo.return", made.results, loc=op.loc))
    if BRANCH in op.attrs:
        made.attrs[BRANCH] = op.attrs[BRANCH]
    made.move_before(op)
    op.replace_all_uses_with(made.results)
    op.erase()
    return made


def _spreads(op: Op, origins: Origins) -> bool:
    """Return whether parts of the conditional may be stored on different meshes, and it can be opened."""
    if op.name not in _KINDS or len(op.regions) < 2 or not op.results or not is_removable(op) or not _has_zeros(op):
        return False
    values = [v for v in free_values(op) if byte_size(v.type) > _SMALL_BYTES]
    meshes = {origins.of(value) for value in values}
    large = sum(byte_size(result.type) > _SMALL_BYTES for result in op.results)
    return len(meshes - {None}) > 1 or (None in meshes and large > 1)


def _has_zeros(op: Op) -> bool:
    """Return whether there is a zero of every value that the op makes, and the ops in its regions."""
    inside = [nested for region in op.regions for block in region.blocks for nested in block]
    return all(
        isinstance(r.type, TensorType) and can_be_zero(r.type) for one in (op, *inside) for r in one.results
    ) and all(len(region.blocks) == 1 for region in op.regions)


def _open(op: Op, number: int) -> list[Op]:
    """Put the ops of a conditional in its place; gives the conditionals among them."""
    block = op.block
    assert block is not None
    outer = branch_of(op)
    results: list[Op] = []
    returned: list[list[Value]] = []
    # Region 0 is taken when the condition of an `if` is true, and when the index of a `case` is 0.
    for taken, region in zip((1, 0) if op.name == "stablehlo.if" else (0, 1), op.regions, strict=True):
        mark = _text((*outer, (number, taken)))
        terminator = region.block.terminator
        returned.append(terminator.operands)
        for inner in list(region.block):
            if inner is terminator:
                continue
            if inner.num_operands or inner.regions:
                inner.attrs[BRANCH] = mark
            inner.move_before(op)
            if inner.name in _KINDS and len(inner.regions) > 1 and _has_zeros(inner):
                results.append(_of_two_branches(inner))
    condition = op.operand(0)
    if op.name == "stablehlo.case":
        returned.reverse()
        condition = _is_not_zero(op, condition)
    marks: dict[str, Attribute] = {SELECTS: IntegerAttr.get(number, "i64")}
    if outer:
        marks[BRANCH] = _text(outer)
    selects: list[Value] = []
    for result, one, other in zip(op.results, *returned, strict=True):
        operands = [condition, one, other]
        select = make_op("stablehlo.select", operands, [result.type], attrs=marks, loc=op.loc)
        selects += block.insert_before(op, select).results
    op.replace_all_uses_with(selects)
    op.erase()
    return results


def _is_not_zero(op: Op, index: Value) -> Value:
    """Return the condition under which a `case` of two branches takes the second one."""
    producer = index.defining_op
    if producer is not None and producer.name == "stablehlo.convert":
        source = producer.operand(0)
        if isinstance(source.type, TensorType) and source.type.element == "i1":
            return source
    return _compared(op, index, 0, "NE")


def _compared(op: Op, index: Value, number: int, direction: str) -> Value:
    """Return whether the index of a conditional is that number, or is not ("NE"), computed in front of it."""
    from mpmd_trace.passes.stablehlo.elements import make_constant  # NumPy, which is slow to import

    assert isinstance(index.type, TensorType) and op.block is not None
    constant = op.block.insert_before(op, make_constant(str(number), index.type, op.loc))
    props = {
        "comparison_direction": parse_attribute(f"#stablehlo<comparison_direction {direction}>"),
        "compare_type": parse_attribute("#stablehlo<comparison_type SIGNED>"),
    }
    operands, types = [index, constant.results[0]], [tensor((), "i1")]
    branch = {BRANCH: op.attrs[BRANCH]} if BRANCH in op.attrs else {}
    compare = make_op("stablehlo.compare", operands, types, props=props, attrs=branch, loc=op.loc)
    return op.block.insert_before(op, compare).results[0]
