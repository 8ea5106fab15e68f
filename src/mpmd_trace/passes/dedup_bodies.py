"""Finding bodies that are equal without printing them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from mpmd_trace.ir.bodies import bodies_in, fingerprint, remembers
from mpmd_trace.ir.core import Block, Op, Region, Value
from mpmd_trace.ir.ops import FuncOp


def share_equal_bodies(functions: Iterable[FuncOp]) -> None:
    """Make frozen bodies that print the same one object."""
    holders: dict[Region, list[tuple[Op, int]]] = {}
    for function in functions:
        for top in function.regions:
            for op, i, body in bodies_in(top):
                holders.setdefault(body, []).append((op, i))
    for body, first in first_equal(holders).items():
        if first is not body:
            for op, i in holders[body]:
                op.regions[i] = first


def first_equal(bodies: Iterable[Region]) -> dict[Region, Region]:
    """For each of the frozen bodies the first one that prints the same."""
    result: dict[Region, Region] = {}
    groups: dict[Hashable, list[Region]] = {}
    for body in bodies:
        if body not in result:
            known = groups.setdefault(_signature(body), [])
            result[body] = next((other for other in known if _equal(other, body)), body)
            if result[body] is body:
                known.append(body)
    return result


@remembers
def _signature(body: Region) -> Hashable:
    """Something cheap that equal bodies share."""
    return tuple([(op.name, *[r.type for r in op.results]) for block in body.blocks for op in block])


def _equal(a: Region, b: Region) -> bool:
    return same_regions(a, b, {}) or (len(a.blocks) > 1 and fingerprint(a) == fingerprint(b))


def same_regions(a: Region, b: Region, images: dict[Value, Value], *, bind: bool = False) -> bool:
    """Return whether the regions print the same: `same_ops` of their blocks, whose arguments get images, too."""
    if len(a.blocks) != len(b.blocks):
        return False
    for mine, other in zip(a.blocks, b.blocks, strict=True):
        if [arg.type for arg in mine.args] != [arg.type for arg in other.args]:
            return False
        images.update(zip(mine.args, other.args, strict=True))
        if not same_ops(mine, other, images, bind=bind):
            return False
    return True


def same_ops(a: Block, b: Block, images: dict[Value, Value], *, bind: bool = False) -> bool:
    """Return whether the ops of the blocks are the same, if those of `b` read the images of what those of `a` read.

    `images` maps values of `a` to those of `b`, and gets the results.  A value without an image is its own; with `bind`
    that is the first value of its type in its place.
    """
    other = b.first
    for op in a:
        if other is None or not look_alike(op, other):
            return False
        if bind:
            pairs = zip(op.operands, other.operands, strict=True)
            if not all(images.setdefault(x, y) is y and x.type is y.type for x, y in pairs):
                return False
        elif [images.get(value, value) for value in op.operands] != other.operands:
            return False
        for x, y in zip(op.regions, other.regions, strict=True):
            if not same_regions(x, y, images, bind=bind):
                return False
        images.update(zip(op.results, other.results, strict=True))
        other = other.next_op
    return other is None


def look_alike(a: Op, b: Op) -> bool:
    """Return whether the ops are the same but for what they read, and what is in their regions."""
    return (
        a.name == b.name
        and a.num_operands == b.num_operands
        and a.props == b.props
        and a.attrs == b.attrs
        and [r.type for r in a.results] == [r.type for r in b.results]
        and len(a.regions) == len(b.regions)
        and not a.successors
        and not b.successors
    )
