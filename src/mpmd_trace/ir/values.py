"""Values and their use lists, newest use first, as in MLIR."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpmd_trace.diagnostics.location import UNKNOWN, Location
from mpmd_trace.ir.types import Type

if TYPE_CHECKING:
    from mpmd_trace.ir.core import Block, Op

__all__ = ["BlockArg", "OpResult", "Use", "Value"]


class Use:
    """Operand number `index` of `owner`; a node of the use list of `value`."""

    __slots__ = ("index", "next", "owner", "prev", "value")

    def __init__(self, owner: Op, index: int, value: Value) -> None:
        self.owner = owner
        self.index = index
        self.value = value
        self.prev: Use | None = None
        self.next = first = value._first
        if first is not None:
            first.prev = self
        value._first = self

    def _unlink(self) -> None:
        prev, nxt = self.prev, self.next
        if prev is None:
            self.value._first = nxt
        else:
            prev.next = nxt
        if nxt is not None:
            nxt.prev = prev

    def set(self, value: Value) -> None:
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

    def __repr__(self) -> str:
        return f"<Use {self.index} of {self.owner.name}>"


class Value:
    """An SSA value: a block argument or an op result."""

    __slots__ = ("_first", "index", "type")

    def __init__(self, type: Type, index: int) -> None:
        self.type = type
        self.index = index
        self._first: Use | None = None

    @property
    def uses(self) -> list[Use]:
        """A copy of the use list, newest first."""
        found, use = [], self._first
        while use is not None:
            found.append(use)
            use = use.next
        return found

    @property
    def users(self) -> list[Op]:
        """The owners of the uses, newest first; an op that uses the value twice is there twice."""
        found, use = [], self._first
        while use is not None:
            found.append(use.owner)
            use = use.next
        return found

    @property
    def distinct_users(self) -> list[Op]:
        """The owners of the uses, newest first, each once."""
        return list(dict.fromkeys(self.users))

    @property
    def has_uses(self) -> bool:
        return self._first is not None

    @property
    def has_one_use(self) -> bool:
        return self._first is not None and self._first.next is None

    def replace_all_uses_with(self, other: Value) -> None:
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

    def replace_uses_if(self, other: Value, accept: Callable[[Use], bool]) -> None:
        """Redirect the uses that `accept`, visited newest first."""
        for use in self.uses:
            if accept(use):
                use.set(other)

    @property
    def defining_op(self) -> Op | None:
        """The op that produces it; None for a block argument."""
        return None

    @property
    def block(self) -> Block | None:
        """The block in which it is defined."""
        raise NotImplementedError

    @property
    def location(self) -> Location:
        raise NotImplementedError


class BlockArg(Value):
    __slots__ = ("loc", "owner")

    def __init__(self, type: Type, index: int, owner: Block, loc: Location = UNKNOWN) -> None:
        self.type = type
        self.index = index
        self._first = None
        self.owner = owner
        self.loc = loc

    @property
    def block(self) -> Block | None:
        return self.owner

    @property
    def location(self) -> Location:
        return self.loc

    def __repr__(self) -> str:
        return f"<argument {self.index} : {self.type}>"


class OpResult(Value):
    __slots__ = ("op",)

    def __init__(self, type: Type, index: int, op: Op) -> None:
        self.type = type
        self.index = index
        self._first = None
        self.op = op

    @property
    def defining_op(self) -> Op | None:
        return self.op

    @property
    def block(self) -> Block | None:
        return self.op.block

    @property
    def location(self) -> Location:
        return self.op.loc

    def __repr__(self) -> str:
        return f"<result {self.index} of {self.op.name} : {self.type}>"
