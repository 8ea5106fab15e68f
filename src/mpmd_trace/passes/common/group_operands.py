"""The operands of a fragment that is going to be made of several.

They are a union-find structure, merged small to large: joining two lists takes time in proportion to the shorter one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from mpmd_trace.ir.core import Value


class Slot:
    """An operand.

    Attributes:
        value: what it reads.
        key: says where it is: of two slots of one fragment the one with the smaller key comes first.
        same: the slot with the same value that it has been unified with, if any; see `final`.
        inside: whether the fragment makes the value itself, so that it is no operand any more.
    """

    __slots__ = ("inside", "key", "same", "value")

    def __init__(self, value: Value, key: int) -> None:
        self.value = value
        self.key = key
        self.same: Slot | None = None
        self.inside = False

    def final(self) -> Slot:
        """Return the representative of this slot, and shorten the path to it."""
        slot = self
        while slot.same is not None:
            if slot.same.same is not None:
                slot.same = slot.same.same
            slot = slot.same
        return slot


class GroupOperands:
    """The slots of a fragment, in order and by their values."""

    __slots__ = ("_by_value", "_first", "_repeated", "_slots", "live")

    def __init__(self, slots: Sequence[Slot]) -> None:
        """`slots` have the keys 0, 1, ..."""
        self._slots: deque[Slot] = deque(slots)
        self._first = 0
        #: How many slots there are.
        self.live = len(slots)
        #: The first slot of each value.
        self._by_value: dict[Value, Slot] = {slot.value: slot for slot in slots}
        #: Slots whose value has another one.
        self._repeated: list[Slot] = []
        if len(self._by_value) < len(slots):
            self._by_value = {slot.value: slot for slot in reversed(slots)}
            self._repeated = [slot for slot in slots if self._by_value[slot.value] is not slot]

    def __iter__(self) -> Iterator[Slot]:
        return (slot for slot in self._slots if not slot.inside and slot.same is None)

    @property
    def end(self) -> int:
        """A key behind those of all slots."""
        return self._first + len(self._slots)

    def joined(self, later: GroupOperands, made: Collection[Value]) -> tuple[GroupOperands, list[Value]]:
        """Return the operands of the fragment with these and of a later one together, and what is between them.

        Both objects are used up.

        Args:
            later: the operands of the fragment that comes second.
            made: the results of the fragment that comes first.

        Returns:
            The operands, those of the first fragment first, with each value once; and the values in `made` that
            the second fragment reads, which are no operands any more.
        """
        self._unify()
        later._unify()
        mine, given = self._by_value, later._by_value
        if len(made) <= len(given):
            inside = [slot for value in made if (slot := given.pop(value, None)) is not None]
        else:
            inside = [slot for value, slot in given.items() if value in made]
            for slot in inside:
                del given[slot.value]
        for slot in inside:
            slot.inside = True
        if len(mine) <= len(given):
            for value, slot in mine.items():
                repeated = given.get(value)
                if repeated is not None:
                    repeated.same = slot
                given[value] = slot
            later._put_in_front(list(self))
            result = later
        else:
            for slot in later:
                earlier = mine.setdefault(slot.value, slot)
                if earlier is not slot:
                    slot.same = earlier
                else:
                    slot.key = self.end
                    self._slots.append(slot)
            result = self
        result.live = len(result._by_value)
        return result, [slot.value for slot in inside]

    def _put_in_front(self, slots: list[Slot]) -> None:
        for slot in reversed(slots):
            self._first -= 1
            slot.key = self._first
            self._slots.appendleft(slot)

    def put_in_place(self, own: Slot, of: Slot) -> None:
        """Let `own`, the only operand of another fragment, take the place of `of`, the only result of that."""
        del self._by_value[of.value]
        own.same = of
        of.value = own.value
        if own.value in self._by_value:
            self._repeated.append(of)
        else:
            self._by_value[own.value] = of

    def _unify(self) -> None:
        """Leave one slot, the first, for each value."""
        for slot in self._repeated:
            other = self._by_value[slot.value]
            first, second = (slot, other) if slot.key < other.key else (other, slot)
            second.same = self._by_value[slot.value] = first
        self._repeated = []
        self.live = len(self._by_value)
