"""Blocks and regions: ordered lists of ops with arguments, and what ops hold of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.types import Type
from mpmd_trace.ir.values import BlockArg, Value

if TYPE_CHECKING:
    from mpmd_trace.ir.core import Op

__all__ = ["Block", "Region", "has_order"]

#: Order numbers: those of neighbours differ by a stride, and the first is so large that many ops fit in front.
_STRIDE = 1 << 20
_FIRST = 1 << 50
_ORDERED_DIALECTS = frozenset({"func", "mpmd", "stablehlo", "chlo", "sdy", "scf", "affine"})


class Block:
    """An ordered list of ops with arguments.  Iteration fixes the next op before it hands out one."""

    __slots__ = ("_first", "_last", "_ordered", "args", "frozen", "parent")

    def __init__(self, arg_types: Iterable[Type] = ()) -> None:
        self.args: list[BlockArg] = [BlockArg(t, i, self) for i, t in enumerate(arg_types)]
        self.parent: Region | None = None
        self.frozen = False
        self._first: Op | None = None
        self._last: Op | None = None
        self._ordered = True

    def __iter__(self) -> Iterator[Op]:
        op = self._first
        while op is not None:
            following = op._next
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self._last
        while op is not None:
            previous = op._prev
            yield op
            op = previous

    @property
    def ops(self) -> list[Op]:
        """The ops, in order (a fresh list)."""
        return list(self)

    @property
    def first(self) -> Op | None:
        return self._first

    @property
    def last(self) -> Op | None:
        return self._last

    @property
    def terminator(self) -> Op:
        """The last op.  Raises `ValueError` for an empty block."""
        if self._last is None:
            raise ValueError("the block has no terminator")
        return self._last

    @property
    def parent_op(self) -> Op | None:
        return None if self.parent is None else self.parent.parent

    def add_arg(self, type: Type, index: int | None = None, loc: Location = UNKNOWN) -> BlockArg:
        """Insert an argument (at the end by default)."""
        if index is None or index == len(self.args):
            arg = BlockArg(type, len(self.args), self, loc)
            self.args.append(arg)
            return arg
        arg = BlockArg(type, index, self, loc)
        self.args.insert(index, arg)
        for i, other in enumerate(self.args):
            other.index = i
        return arg

    def erase_args(self, indices: Iterable[int]) -> None:
        """Remove arguments.  Raises if one still has uses."""
        gone = set(indices)
        for i in gone:
            if self.args[i].has_uses:
                raise RuntimeError(f"block argument {i} still has uses")
        self.args = [a for i, a in enumerate(self.args) if i not in gone]
        for i, arg in enumerate(self.args):
            arg.index = i

    def append(self, op: Op) -> Op:
        """Put `op` at the end."""
        if op.block is not None:
            op.block._remove(op)
        self._insert(op, self._last, None)
        return op

    def append_all(self, ops: Iterable[Op]) -> None:
        """Put new ops, in order, at the end."""
        self._last = self._chain(self._last, ops)
        self._ordered = False

    def insert_front(self, op: Op) -> Op:
        if op.block is not None:
            op.block._remove(op)
        self._insert(op, None, self._first)
        return op

    def insert_before(self, anchor: Op, op: Op) -> Op:
        if op.block is not None:
            op.block._remove(op)
        self._insert(op, anchor._prev, anchor)
        return op

    def insert_after(self, anchor: Op, op: Op) -> Op:
        if op.block is not None:
            op.block._remove(op)
        self._insert(op, anchor, anchor._next)
        return op

    def insert_all_before(self, anchor: Op, ops: Iterable[Op]) -> None:
        """Insert new ops, in order, directly before `anchor`."""
        before = self._chain(anchor._prev, ops)
        if before is not None:
            before._next = anchor
        anchor._prev = before
        self._ordered = False

    def reorder(self, ops: Iterable[Op]) -> None:
        """Put the ops, which are all of the block, into this order."""
        self._last = self._chain(None, ops)
        if self._last is not None:
            self._last._next = None
        self._renumber()

    def _chain(self, before: Op | None, ops: Iterable[Op]) -> Op | None:
        """Link the ops behind `before`, or from the front on when it is None; gives the last one."""
        if self.frozen:
            raise RuntimeError("the body is frozen; build a new one instead")
        for op in ops:
            op.block, op._prev = self, before
            if before is None:
                self._first = op
            else:
                before._next = op
            before = op
        return before

    def _insert(self, op: Op, before: Op | None, after: Op | None) -> None:
        if self.frozen:
            raise RuntimeError("the body is frozen; build a new one instead")
        op.block = self
        op._prev, op._next = before, after
        if before is None:
            self._first = op
        else:
            before._next = op
        if after is None:
            self._last = op
        else:
            after._prev = op
        if not self._ordered:
            op._order = -1
        elif after is None:
            op._order = _FIRST if before is None else before._order + _STRIDE
        else:
            low = before._order if before is not None else after._order - 2 * _STRIDE
            op._order = (low + after._order) // 2
            if op._order <= low or op._order < 0:
                self._ordered = False

    def _remove(self, op: Op) -> None:
        if self.frozen:
            raise RuntimeError("the body is frozen; build a new one instead")
        if op._prev is None:
            self._first = op._next
        else:
            op._prev._next = op._next
        if op._next is None:
            self._last = op._prev
        else:
            op._next._prev = op._prev
        op.block = op._prev = op._next = None
        op._order = -1

    def _renumber(self) -> None:
        order = _FIRST
        op = self._first
        while op is not None:
            op._order = order
            order += _STRIDE
            op = op._next
        self._ordered = True


class Region:
    """The blocks that an op holds.

    `frozen`: the region is immutable and may be shared by many ops; then `parent` is None.  `memo` lets
    functions from bodies to bodies remember their results (`ir/bodies.py`).
    """

    __slots__ = ("blocks", "frozen", "memo", "parent")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self.blocks: list[Block] = list(blocks)
        self.parent: Op | None = None
        self.frozen = False
        self.memo: dict[Any, Any] = {}
        for block in self.blocks:
            block.parent = self

    @property
    def block(self) -> Block:
        """The only block.  Raises `ValueError` when there are none or several."""
        if len(self.blocks) != 1:
            raise ValueError(f"the region has {len(self.blocks)} blocks, not one")
        return self.blocks[0]

    @property
    def returned(self) -> list[Value]:
        """The operands of the terminator of the only block."""
        return self.block.terminator.operands

    def add_block(self, block: Block) -> Block:
        if self.frozen:
            raise RuntimeError("the body is frozen; build a new one instead")
        block.parent = self
        self.blocks.append(block)
        return block

    def freeze(self) -> Region:
        """Make the region immutable and shareable.  Returns it."""
        self.frozen = True
        self.parent = None
        self._freeze_blocks()
        return self

    def _freeze_blocks(self) -> None:
        # Regions of leaf ops in the body may capture its values, so they are not shareable by themselves.
        for block in self.blocks:
            block.frozen = True
            for op in block:
                for region in op.regions:
                    if not region.frozen:
                        region._freeze_blocks()

    def walk(self, *, post_order: bool = True, reverse: bool = False) -> Iterator[Op]:
        """Every op in the region."""
        for block in reversed(self.blocks) if reverse else self.blocks:
            for op in reversed(block) if reverse else block:
                yield from op.walk(post_order=post_order, reverse=reverse)

    def clone(self, mapping: dict[Value, Value] | None = None) -> Region:
        """An unfrozen copy; values defined outside are mapped by `mapping` or kept."""
        mapping = {} if mapping is None else mapping
        blocks: dict[Block, Block] = {}
        for old in self.blocks:
            new = Block()
            for arg in old.args:
                mapping[arg] = new.add_arg(arg.type, loc=arg.loc)
            blocks[old] = new
        copy = Region(blocks.values())
        for old, new in blocks.items():
            clones = [op.clone(mapping) for op in old]
            for clone in clones:
                if clone.successors:
                    clone.successors = [blocks.get(b, b) for b in clone.successors]
            new.append_all(clones)
        if self._may_refer_ahead:
            copy._refer_to_copies(mapping)
        return copy

    @property
    def _may_refer_ahead(self) -> bool:
        """Whether values may be used above their definition: between blocks, or where order means nothing."""
        if len(self.blocks) > 1:
            return True
        parent = self.parent
        return parent is not None and not has_order(parent)

    def _refer_to_copies(self, mapping: Mapping[Value, Value]) -> None:
        for block in self.blocks:
            for op in block:
                for use in op._operands:
                    ahead = mapping.get(use.value)
                    if ahead is not None:
                        use.set(ahead)
                if op.name != "func.func":  # sees nothing of what is around it
                    for region in op.regions:
                        if not region.frozen:
                            region._refer_to_copies(mapping)


def has_order(op: Op) -> bool:
    """Whether values in the regions of the op are defined before they are used (not so in graph regions)."""
    return op.name.partition(".")[0] in _ORDERED_DIALECTS
