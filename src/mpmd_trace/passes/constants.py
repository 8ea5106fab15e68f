"""Uniquing of constants, as MLIR's greedy rewriter does it while it fills its work list.

Equal constants of one isolated region become one; a constant that is not in the leading run of constants of
that region's entry block moves to the very front, so that such constants end up in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.attributes import Attribute
from ..ir.bodies import remembered
from ..ir.core import Op, Region
from ..ir.ops import FuncOp
from ..ir.semantics import is_constant_like
from ..ir.types import Type

__all__ = ["ConstantUniquer", "home_of", "with_unique_constants"]

#: Ops that are not functions or frozen bodies and whose regions see nothing from outside either.
_ISOLATED = frozenset({"sdy.manual_computation"})


def home_of(region: Region, scope: Region) -> Region:
    """The region to which constants of `region` move: the outermost one, up to `scope`, that it can see."""
    while region is not scope:
        parent = region.parent
        if parent is None or parent.block is None or isinstance(parent, FuncOp) or parent.name in _ISOLATED:
            return region
        above = parent.block.parent
        if above is None:
            return region
        region = above
    return region


class ConstantUniquer:
    """Uniques constants in the order of the calls of `visit`.

    `replace(op, known)` redirects the uses of `op` and erases it.
    """

    def __init__(self, replace: Callable[[Op, Op], None]) -> None:
        self._replace = replace
        self._known: dict[tuple[int, str, Attribute | None, Type], Op] = {}
        self._owned: set[Op] = set()

    def visit(self, op: Op, home: Region) -> bool:
        """Handle `op`, which lies in `home` or in a region nested in it; False when it was replaced."""
        if not is_constant_like(op) or len(op.results) != 1:
            return True
        dialect = op.name.partition(".")[0]
        key = (id(home), dialect, op.props.get("value"), op.results[0].type)
        known = self._known.get(key)
        if known is not None:
            self._replace(op, known)
            return False
        entry = home.blocks[0]
        first = entry.first
        assert first is not None
        if op.block is not entry or (op is not first and op.prev_op not in self._owned):
            op.move_before(first)
        self._known[key] = op
        self._owned.add(op)
        return True


def _replace(op: Op, known: Op) -> None:
    op.replace_all_uses_with(known.results)
    op.erase()


def _unique(region: Region) -> bool:
    uniquer = ConstantUniquer(_replace)
    before = [(op, op.block) for op in region.walk()]
    for op, block in before:
        assert block is not None and block.parent is not None
        uniquer.visit(op, home_of(block.parent, region))
    return before != [(op, op.block) for op in region.walk()]


def with_unique_constants(body: Region) -> Region:
    """The frozen body with its constants uniqued; the same object when they are already."""

    def make() -> Region:
        if not any(is_constant_like(op) for op in body.walk()):
            return body
        copy = body.clone()
        return copy.freeze() if _unique(copy) else body

    return remembered(body, "unique constants", make)
