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
            self.value.first_use = nxt
        else:
            prev.next = nxt
        if nxt is not None:
            nxt.prev = prev

    def set(self, value: V) -> None:
        """Make the operand `value`; the use goes to the front of its list, even if it was there."""
        prev, nxt = self.prev, self.next  # `_unlink`, written out: this is the most frequent change of all
        if prev is None:
            self.value.first_use = nxt
        else:
            prev.next = nxt
        if nxt is not None:
            nxt.prev = prev
        self.value = value
        self.prev = None
        self.next = first = value.first_use
        if first is not None:
            first.prev = self
        value.first_use = self


class UseList(Generic[U]):
    """A value that has uses."""

    __slots__ = ("first_use",)
    #: The newest of the uses, from which `next` leads to the others.
    first_use: U | None

    @property
    def uses(self) -> list[U]:
        """A copy of the use list, newest first."""
        result, use = [], self.first_use
        while use is not None:
            result.append(use)
            use = use.next
        return result

    @property
    def has_uses(self) -> bool:
        return self.first_use is not None

    @property
    def has_one_use(self) -> bool:
        return self.first_use is not None and self.first_use.next is None

    def replace_all_uses_with(self, other: UseList[U]) -> None:
        """Redirect every use to `other`; their order in its list is reversed, as in MLIR."""
        if other is self:
            return
        use, self.first_use = self.first_use, None
        while use is not None:
            following = use.next
            use.value = other
            use.prev = None
            use.next = first = other.first_use
            if first is not None:
                first.prev = use
            other.first_use = use
            use = following

    def reverse_uses(self) -> None:
        """Turn the use list round, as replacing the value by another one would."""
        use, self.first_use = self.first_use, None
        last = None
        while use is not None:
            following = use.next
            use.prev, use.next = following, last
            last = use
            use = following
        self.first_use = last

    def replace_uses_if(self, other: UseList[U], accept: Callable[[U], bool]) -> None:
        """Redirect the uses that `accept`, visited newest first."""
        for use in self.uses:
            if accept(use):
                use.set(other)
