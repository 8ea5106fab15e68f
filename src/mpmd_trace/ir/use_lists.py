"""The uses of a value: a linked list, newest first, as in MLIR.

Nothing here knows what an op is; `ir/core.py` says who owns a use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

V = TypeVar("V", bound="UseList[Any]")
U = TypeVar("U", bound="Link[Any]")


class Link(Generic[V]):
    """A node of the use list of `value`: operand number `index` of someone."""

    __slots__ = ("index", "next", "prev", "value")
    index: int
    value: V
    prev: Self | None
    next: Self | None

    def _unlink(self) -> None:
        prev, nxt = self.prev, self.next
        if prev is None:
            self.value._first = nxt
        else:
            prev.next = nxt
        if nxt is not None:
            nxt.prev = prev

    def set(self, value: V) -> None:
        """Make the operand `value`; the use goes to the front of its list, even if it was there."""
        prev, nxt = self.prev, self.next  # `_unlink`, written out: this is the most frequent change of all
        if prev is None:
            self.value._first = nxt
        else:
            prev.next = nxt
        if nxt is not None:
            nxt.prev = prev
        self.value = value
        self.prev = None
        self.next = first = value._first
        if first is not None:
            first.prev = self
        value._first = self


class UseList(Generic[U]):
    """What has uses."""

    __slots__ = ("_first",)
    _first: U | None

    @property
    def uses(self) -> list[U]:
        """A copy of the use list, newest first."""
        result, use = [], self._first
        while use is not None:
            result.append(use)
            use = use.next
        return result

    @property
    def has_uses(self) -> bool:
        return self._first is not None

    @property
    def has_one_use(self) -> bool:
        return self._first is not None and self._first.next is None

    def replace_all_uses_with(self, other: UseList[U]) -> None:
        """Redirect every use to `other`; their order in its list is reversed, as in MLIR."""
        if other is self:
            return
        use, self._first = self._first, None
        while use is not None:
            following = use.next
            use.value = other
            use.prev = None
            use.next = first = other._first
            if first is not None:
                first.prev = use
            other._first = use
            use = following

    def reverse_uses(self) -> None:
        """Turn the use list round, as replacing the value by another one would."""
        use, self._first = self._first, None
        last = None
        while use is not None:
            following = use.next
            use.prev, use.next = following, last
            last = use
            use = following
        self._first = last

    def replace_uses_if(self, other: UseList[U], accept: Callable[[U], bool]) -> None:
        """Redirect the uses that `accept`, visited newest first."""
        for use in self.uses:
            if accept(use):
                use.set(other)
