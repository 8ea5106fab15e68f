"""The operands of a fragment that is yet to be made of several; joining two lists costs as the shorter one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from mpmd_trace.ir.core import Value


class Slot:
    """An operand.  `same` is the slot that took over; `inside`: the fragment itself makes the value.

    Of two slots of one fragment the one with the smaller `key` comes first.
    """

    __slots__ = ("inside", "key", "same", "value")

    def __init__(self, value: Value, key: int) -> None:
        self.value = value
        self.key = key
        self.same: Slot | None = None
        self.inside = False

    def final(self) -> Slot:
        """Return the slot that stands for this one now."""
        slot = self
        while slot.same is not None:
            if slot.same.same is not None:
                slot.same = slot.same.same
            slot = slot.same
        return slot


class GroupOperands:
    """The slots in order, and by their values."""

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
        """Return these operands, then those of `later` that are not among `made`, each value once; and those that are.

        Both objects are used up.
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
