"""Uniquing of constants, as MLIR's greedy rewriter does it while it fills its work list.

Equal constants of one isolated region become one; a constant that is not in the leading run of constants of
that region's entry block moves to the very front, so that such constants end up in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import FuncOp
from mpmd_trace.ir.semantics import is_constant_like

#: Ops that are not functions or frozen bodies and whose regions see nothing from outside either.
ISOLATED = frozenset({"sdy.manual_computation"})


def home_of(region: Region, scope: Region) -> Region:
    """Return the region to which constants of `region` move: the outermost one, up to `scope`, that it can see."""
    while region is not scope:
        parent = region.parent
        if parent is None or parent.block is None or isinstance(parent, FuncOp) or parent.name in ISOLATED:
            return region
        above = parent.block.parent
        if above is None:
            return region
        region = above
    return region


def constant_key(op: Op) -> Hashable:
    """Return what equal constants share."""
    return op.name, op.props.get("value"), op.results[0].type


class ConstantUniquer:
    """Uniques constants in the order of the calls of `visit`.

    `replace(op, known)` redirects the uses of `op` and erases it.
    """

    def __init__(self, replace: Callable[[Op, Op], None]) -> None:
        self._replace = replace
        self._known: dict[Hashable, Op] = {}
        self._owned: set[Op] = set()
        #: Whether a constant was moved or replaced.
        self.changed = False

    def visit(self, op: Op, home: Region) -> bool:
        """Handle `op`, which lies in `home` or in a region nested in it; False when it was replaced."""
        if not is_constant_like(op) or len(op.results) != 1:
            return True
        key = (id(home), constant_key(op))
        known = self._known.get(key)
        if known is not None:
            self.changed = True
            self._replace(op, known)
            return False
        entry = home.blocks[0]
        first = entry.first
        assert first is not None
        if op.block is not entry or (op is not first and op.prev_op not in self._owned):
            self.changed = True
            op.move_before(first)
        self._known[key] = op
        self._owned.add(op)
        return True


def _replace(op: Op, known: Op) -> None:
    op.replace_all_uses_with(known.results)
    op.erase()


def constants_stay(region: Region) -> bool:
    """Return whether the constants of a region of one block stay: all different, in front of everything else."""
    known: set[Hashable] = set()
    leading = True
    for op in region.blocks[0]:
        if is_constant_like(op):
            key = constant_key(op)
            if key in known or not leading:
                return False
            known.add(key)
        else:
            leading = False
            for nested in op.regions:
                if not nested.frozen and any(is_constant_like(inner) for inner in nested.walk()):
                    return False
    return len(region.blocks) == 1


def with_unique_constants(body: Region) -> Region:
    """Return the frozen body with its constants uniqued; the same object when they are already."""

    def make() -> Region:
        if constants_stay(body):
            return body
        copy = body.clone()
        uniquer = ConstantUniquer(_replace)
        for op in [op for op in copy.walk() if is_constant_like(op)]:
            assert op.block is not None and op.block.parent is not None
            uniquer.visit(op, home_of(op.block.parent, copy))
        return freeze(copy) if uniquer.changed else body

    return remembered(body, "unique constants", make)
