"""Finding bodies that are equal without printing them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from mpmd_trace.ir.bodies import fingerprint
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.ops import FuncOp
from mpmd_trace.passes.greedy import walk_mutable

__all__ = ["first_equal", "share_equal_bodies"]


def share_equal_bodies(functions: Iterable[FuncOp]) -> None:
    """Make frozen bodies that print the same one object."""
    holders: dict[Region, list[tuple[Op, int]]] = {}
    for function in functions:
        for top in function.regions:
            for op in walk_mutable(top):
                for i, body in enumerate(op.regions):
                    if body.frozen:
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


def _signature(body: Region) -> Hashable:
    """Something cheap that equal bodies share."""
    return tuple([(op.name, *[r.type for r in op.results]) for block in body.blocks for op in block])


def _equal(a: Region, b: Region) -> bool:
    answer = _same(a, b, {})
    return fingerprint(a) == fingerprint(b) if answer is None else answer


def _same(a: Region, b: Region, images: dict[Value, Value]) -> bool | None:
    """Whether the regions print the same; None if that is not simple to say.

    `images` maps the values of `a` so far to those of `b`.
    """
    if len(a.blocks) != 1 or len(b.blocks) != 1:
        return None
    if [arg.type for arg in a.block.args] != [arg.type for arg in b.block.args]:
        return False
    images.update(zip(a.block.args, b.block.args, strict=True))
    other = b.block.first
    for op in a.block:
        if (
            other is None
            or op.name != other.name
            or [images.get(v, v) for v in op.operands] != other.operands
            or op.props != other.props
            or op.attrs != other.attrs
            or len(op.results) != len(other.results)
            or len(op.regions) != len(other.regions)
        ):
            return False
        for mine, nested in zip(op.regions, other.regions, strict=True):
            answer = _same(mine, nested, images)
            if not answer:
                return answer
        for result, image in zip(op.results, other.results, strict=True):
            if result.type is not image.type:
                return False
            images[result] = image
        other = other.next_op
    return other is None
