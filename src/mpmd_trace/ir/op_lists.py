"""The ops of a block: a linked list whose entries carry order numbers, so that "is before" costs nothing.

Nothing here knows what an op is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

from mpmd_trace.ir.frozen import refuse

#: Order numbers: those of neighbors differ by a stride, and the first is so large that many ops fit in front.
_STRIDE = 1 << 20
_FIRST = 1 << 50


class Linked:
    """An entry of a list; `block` is the list, None when it is in none."""

    __slots__ = ("_next", "_order", "_prev", "block")
    block: OpList[Any] | None
    _prev: Self | None
    _next: Self | None
    _order: int

    def is_before(self, other: Linked) -> bool:
        """Return whether this op comes before `other`, which must be in the same block."""
        block = self.block
        assert block is not None and block is other.block, "ops of different blocks have no order"
        if self._order < 0 or other._order < 0 or not block._ordered:
            block._renumber()
        return self._order < other._order

    def move_before(self, other: Linked) -> None:
        """Move this op directly before `other`."""
        if other is not self:
            assert other.block is not None
            other.block.insert_before(other, self)

    def move_after(self, other: Linked) -> None:
        """Move this op directly behind `other`."""
        if other is not self:
            assert other.block is not None
            other.block.insert_after(other, self)

    def _detach(self) -> None:
        if self.block is not None:
            self.block._remove(self)


T = TypeVar("T", bound=Linked)


class OpList(Generic[T]):
    """An ordered list of ops.  Iteration fixes the next op before it hands out one."""

    __slots__ = ("_first", "_last", "_ordered")
    #: Whether the list is part of a frozen body; then it refuses every change.
    frozen = False
    _first: T | None
    _last: T | None
    _ordered: bool

    def __iter__(self) -> Iterator[T]:
        op = self._first
        while op is not None:
            following = op._next
            yield op
            op = following

    def __reversed__(self) -> Iterator[T]:
        op = self._last
        while op is not None:
            previous = op._prev
            yield op
            op = previous

    @property
    def ops(self) -> list[T]:
        """The ops, in order (a fresh list)."""
        return list(self)

    @property
    def first(self) -> T | None:
        return self._first

    @property
    def last(self) -> T | None:
        return self._last

    @property
    def terminator(self) -> T:
        """The last op.  Raises `ValueError` for an empty block."""
        if self._last is None:
            raise ValueError("the block has no terminator")
        return self._last

    def append(self, op: T) -> T:
        """Put `op` at the end."""
        if op.block is not None:
            op.block._remove(op)
        self._insert(op, self._last, None)
        return op

    def append_all(self, ops: Iterable[T]) -> None:
        """Put new ops, in order, at the end."""
        self._last = self._chain(self._last, ops)
        self._ordered = False

    def insert_front(self, op: T) -> T:
        op._detach()
        self._insert(op, None, self._first)
        return op

    def insert_before(self, anchor: T, op: T) -> T:
        op._detach()
        self._insert(op, anchor._prev, anchor)
        return op

    def insert_after(self, anchor: T, op: T) -> T:
        op._detach()
        self._insert(op, anchor, anchor._next)
        return op

    def insert_all_before(self, anchor: T, ops: Iterable[T]) -> None:
        """Insert new ops, in order, directly before `anchor`."""
        before = self._chain(anchor._prev, ops)
        if before is not None:
            before._next = anchor
        anchor._prev = before
        self._ordered = False

    def reorder(self, ops: Iterable[T]) -> None:
        """Put the ops, which are all of the block, into this order."""
        self._last = self._chain(None, ops)
        if self._last is not None:
            self._last._next = None
        self._renumber()

    @contextmanager
    def also(self, ops: Sequence[T]) -> Iterator[None]:
        """Have these ops at the end of the list meanwhile."""
        self.append_all(ops)
        try:
            yield
        finally:
            for op in ops:
                self._remove(op)

    def check_mutable(self) -> None:
        """Raise `FrozenBodyError` if this is part of a frozen body."""
        if self.frozen:
            refuse(repr(self))

    def _chain(self, before: T | None, ops: Iterable[T]) -> T | None:
        """Link the ops behind `before`, or from the front on when it is None; gives the last one."""
        self.check_mutable()
        for op in ops:
            op.block, op._prev = self, before
            if before is None:
                self._first = op
            else:
                before._next = op
            before = op
        return before

    def _insert(self, op: T, before: T | None, after: T | None) -> None:
        if self.frozen:
            refuse(repr(self))
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

    def _remove(self, op: T) -> None:
        if self.frozen:
            refuse(repr(self))
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
