"""What is around a group of fragments that `absorption.py` merges."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.passes.common.fragment_groups import Group
from mpmd_trace.passes.common.group_operands import Slot


class Neighbours:
    """Where the fragments and transfers around a group are; entries that are out of date are dropped when met."""

    def __init__(self, group: Group) -> None:
        definers = [(slot, slot.value.defining_op) for slot in group.slots]
        #: The operands that inferred fragments define.
        self.inferred = {s for s, op in definers if isinstance(op, FragmentOp) and not op.is_user}
        #: Whether there were more, which wait for other ops.
        self.waits = False
        #: The operands that are transferred.
        self.received = {s for s, op in definers if isinstance(op, TransferOp)}
        #: The operands that come from fragments which the driver has visited.
        self.visited: set[Slot] = set()
        #: The results that fragments use, and those that transfers use.
        self.feeding = deque(v for v in group.results if any(isinstance(user, FragmentOp) for user in v.users))
        self.sending = deque(v for v in group.results if any(isinstance(user, TransferOp) for user in v.users))
        self.fed = _Fed(self.feeding)
        #: The results of fragments that have not been visited.
        self.unseen = list(self.feeding)
        #: An op that defines an operand, a late one.
        self.late: Op | None = None

    def join(self, later: Neighbours, late: Op | None) -> None:
        """Take in what is known about a group that was merged with this one and comes behind it."""
        self.inferred = _union(self.inferred, later.inferred)
        self.waits = self.waits or later.waits
        self.received = _union(self.received, later.received)
        self.visited = _union(self.visited, later.visited)
        self.fed = self.fed.joined(later.fed, self.feeding, later.feeding)
        self.feeding = _concatenated(self.feeding, later.feeding)
        self.sending = _concatenated(self.sending, later.sending)
        if len(self.unseen) < len(later.unseen):
            self.unseen, later.unseen = later.unseen, self.unseen
        self.unseen += later.unseen
        self.late = late


T = TypeVar("T")
_Entry = tuple[int, int, Value]
_numbers = itertools.count()


class _Fed:
    """The results of a group that fragments use, in order, but for those of which nothing is to be expected."""

    def __init__(self, values: Iterable[Value]) -> None:
        #: Where they are: smaller numbers first.
        self.places = {value: place for place, value in enumerate(values)}
        self.first_place, self.end = 0, len(self.places)
        #: Heaps, with some entries of former places: what a user may be absorbed through; what may have users that a
        #: merge makes the driver visit again.
        self.open: list[_Entry] = [(place, next(_numbers), value) for value, place in self.places.items()]
        self.lively = list(self.open)
        #: Those that inferred fragments use which receive something from another mesh.
        self.received_with: set[Value] = set()

    def add(self, value: Value, *, open: bool = True, lively: bool = True) -> None:
        """Expect something of the result again."""
        place = self.places.get(value)
        if place is None:  # no fragment uses it any more
            return
        if open:
            heapq.heappush(self.open, (place, next(_numbers), value))
        if lively:
            heapq.heappush(self.lively, (place, next(_numbers), value))

    def first(self, heap: list[_Entry]) -> Value | None:
        """Return the first result in a heap, which is at its top then."""
        while heap:
            place, _, value = heap[0]
            if self.places.get(value) == place:
                return value
            heapq.heappop(heap)
        return None

    def joined(self, later: _Fed, mine: deque[Value], theirs: deque[Value]) -> _Fed:
        """`mine`, then `theirs`; both objects are used up."""
        into, other = (later, self) if len(mine) < len(theirs) else (self, later)
        if into is later:
            for value in reversed(mine):
                into.first_place -= 1
                into.places[value] = into.first_place
        else:
            for value in theirs:
                into.places[value] = into.end
                into.end += 1
        for value in mine if into is later else theirs:
            into.add(value)
        into.received_with = _union(into.received_with, other.received_with)
        return into


def _union(few: set[T], many: set[T]) -> set[T]:
    if len(few) > len(many):
        few, many = many, few
    many |= few
    return many


def _concatenated(first: deque[Value], second: deque[Value]) -> deque[Value]:
    if len(first) < len(second):
        second.extendleft(reversed(first))
        return second
    first.extend(second)
    return first
