"""The operands of a fragment that is yet to be made of several; joining two lists costs as the shorter one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from mpmd_trace.ir.core import Value

__all__ = ["GroupOperands", "Slot"]


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
        """The slot that stands for this one now."""
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
        #: Whether a value has several slots.
        self._repeated = len(self._by_value) < len(slots)
        if self._repeated:
            self._by_value = {slot.value: slot for slot in reversed(slots)}

    def __iter__(self) -> Iterator[Slot]:
        return iter([slot for slot in self._slots if not slot.inside and slot.same is None])

    @property
    def end(self) -> int:
        """A key behind those of all slots."""
        return self._first + len(self._slots)

    def joined(self, later: GroupOperands, made: Sequence[Value]) -> GroupOperands:
        """These operands, then those of `later` that are not among `made`, each value once.

        Both objects are used up.
        """
        self._unify()
        later._unify()
        mine, given = self._by_value, later._by_value
        if len(made) <= len(given):
            inside = [slot for value in made if (slot := given.pop(value, None)) is not None]
        else:
            known = set(made)
            inside = [slot for value, slot in given.items() if value in known]
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
        return result

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
            self._repeated = True
        else:
            self._by_value[own.value] = of

    def _unify(self) -> None:
        """Leave one slot, the first, for each value."""
        if not self._repeated:
            return
        self._by_value = {}
        for slot in self:
            first = self._by_value.setdefault(slot.value, slot)
            if first is not slot:
                slot.same = first
        self._slots = deque(self)
        for i, slot in enumerate(self._slots):
            slot.key = i
        self._first = 0
        self.live = len(self._by_value)
        self._repeated = False
