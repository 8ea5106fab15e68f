"""The loop that three merge passes share: from the last fragment to the first, merge each with consumers.

A pass supplies which pairs may be merged and how the candidate is chosen.  Transfers and other ops are never
moved; unused pure fragments are erased on the way.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.passes.common.fragment_groups import Group, Groups
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.greedy import walk_mutable

#: closest: the first fragment that uses the producer, if allowed; any: the first allowed one; sideways: the
#: next fragment on the mesh, whether it uses the producer or not.
Mode = Literal["closest", "any", "sideways"]
#: Whether producer and consumer may be merged; the last argument: is the consumer the next on the mesh?
Allowed = Callable[[FragmentOp, FragmentOp, bool], bool]

#: Given the fragments of a function, returns what tells from a producer alone whether it may be merged with any of
#: them, now or after merges, so that most need no look at their users.  For such a pass it makes no difference whether
#: the consumer is the next on the mesh.
Prospects = Callable[[Sequence[FragmentOp]], Callable[[FragmentOp], bool]]


def merge_neighbours(
    function: FuncOp,
    allowed: Allowed,
    mode: Mode = "closest",
    prospects: Prospects | None = None,
    stays: Callable[[FragmentOp], bool] | None = None,
) -> bool:
    """Merge the fragments of `function` with their neighbors, but for those that `stays` is true of.

    Says whether anything changed.
    """
    return _Merger(function, allowed, mode, prospects, stays).run()


#: A user with its place, perhaps an earlier one, and a number that makes entries different.
_Entry = tuple[int, int, Op]


class _Users:
    """The ops that use results of a group, first ones first, and entries of ops that have become a part of the group.

    While a group may be merged, places of its users only grow: a user goes to the place of a producer only where all
    that it reads, the group among it, is in front of that.
    """

    def __init__(self) -> None:
        #: Heaps: fragments that may be merged, and other ops.
        self.fragments: list[_Entry] = []
        self.others: list[_Entry] = []

    def take(self, more: _Users) -> None:
        """Add other users, which are used up."""
        self.fragments = _joined(self.fragments, more.fragments)
        self.others = _joined(self.others, more.others)


@dataclasses.dataclass(slots=True)
class _Read:
    """The ops that define operands of a group, and perhaps some that have become a part of the group."""

    #: A heap, last ones first: those in front of the fragment that is visited. Then those that are not.
    unvisited: list[_Entry]
    visited: list[Op] = dataclasses.field(default_factory=list)


def _joined(one: list[_Entry], other: list[_Entry]) -> list[_Entry]:
    few, many = (one, other) if len(one) < len(other) else (other, one)
    for entry in few:
        heapq.heappush(many, entry)
    return many


@dataclasses.dataclass
class _Merger:
    function: FuncOp
    allowed: Allowed
    mode: Mode
    prospects: Prospects | None
    stays: Callable[[FragmentOp], bool] | None
    groups: Groups = dataclasses.field(default_factory=Groups)
    at_place: dict[int, Group] = dataclasses.field(default_factory=dict)
    #: By mesh the places of the groups, negative, in order: a group comes in front of those that are there.
    lines: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    #: Fragments that were passed over and have no group yet, by mesh, in the order of visits.
    passed: dict[str, list[FragmentOp]] = dataclasses.field(default_factory=dict)
    users: dict[Group, _Users] = dataclasses.field(default_factory=dict)
    read: dict[Group, _Read] = dataclasses.field(default_factory=dict)
    #: The place of the fragment that is visited.
    visited: int = 0
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    @functools.cached_property
    def order(self) -> dict[Op, int]:
        """The places of the ops; ops inside of others have none."""
        return {op: i for i, op in enumerate(self.function.body)}

    def run(self) -> bool:
        fragments = self.fragments()
        may_merge = None if self.prospects is None else self.prospects(fragments)
        changed = False
        for fragment in reversed(fragments):
            if not fragment.has_uses and is_pure(fragment):
                fragment.erase()
                changed = True
            elif may_merge is not None and (not may_merge(fragment) or self.has_no_partner(fragment)):
                self.passed.setdefault(fragment.mesh, []).append(fragment)
            else:
                self.add_passed(fragment.mesh)
                self.visited = self.order.get(fragment, 0)
                current: Group | None = self.add(fragment)
                while current is not None:
                    current = self.merge(current)
        return bool(self.groups.build()) or changed

    def has_no_partner(self, producer: FragmentOp) -> bool:
        """Return whether no user of the fragment is a group yet, or one that it may be merged with."""
        if self.mode == "sideways":
            return False
        for result in producer.results:
            use = result.first_use
            while use is not None:
                user = use.owner
                if user.block is not producer.block or self.groups.of(user) is not None:
                    return False
                try:
                    if isinstance(user, FragmentOp) and self.allowed(producer, user, False):
                        return False
                except MpmdError:  # an error only if this user is the one that is considered
                    return False
                use = use.next
        return True

    def fragments(self) -> list[FragmentOp]:
        """Return the fragments, in order.  When some may be in loops, all are visited: those in loops are refused."""
        region, stays = self.function.regions[0], self.stays
        result: list[FragmentOp] = []
        op = region.blocks[0].first if len(region.blocks) == 1 else None
        while op is not None:
            if isinstance(op, FragmentOp):
                if stays is None or not stays(op):
                    result.append(op)
            elif op.regions:
                break
            op = op._next
        else:
            if len(region.blocks) == 1:
                return result
        self.prospects = None
        return [op for op in walk_mutable(region) if isinstance(op, FragmentOp)]

    def add(self, fragment: FragmentOp) -> Group:
        place = self.order.get(fragment)
        group = self.groups.add(fragment, place)
        if place is not None:
            self.at_place[place] = group
            bisect.insort(self.lines.setdefault(fragment.mesh, []), -place)
        return group

    def add_passed(self, mesh: str) -> None:
        """Make groups of the fragments of the mesh that were passed over: users of a fragment are among them."""
        for fragment in self.passed.pop(mesh, ()):
            self.add(fragment)

    def merge(self, producer: Group) -> Group | None:
        """Merge the group with its candidate, if there is one and the order of the ops allows it."""
        consumer = self.candidate(producer)
        if consumer is None:
            return None
        first, second = self.number(producer), self.number(consumer)
        if self.earliest_user(producer) >= second:
            at_consumer, vacated = True, first
        elif self.fits_at_producer(producer, consumer, first):
            at_consumer, vacated = False, second
        else:
            return None
        users = self.users_of(producer)
        users.take(self.users_of(consumer))
        del self.users[producer], self.users[consumer]
        read = self.joined_read(producer, consumer)
        merged = self.groups.merge(producer, consumer, at_consumer=at_consumer)
        self.users[merged] = users
        if read is not None:
            self.read[merged] = read
        line = self.lines[merged.label.mesh]
        del line[bisect.bisect_left(line, -vacated)]
        self.at_place[second if at_consumer else first] = merged
        return merged

    def candidate(self, producer: Group) -> Group | None:
        following = self.next_on_mesh(producer)
        if self.mode == "sideways":
            if following is None or not self.allowed(producer.label, following.label, True):
                return None
            return following
        if producer.number is None:
            self.refuse_in_loop(producer)
            return None
        passed = []
        chosen = last = None
        for entry, consumer in self.consumers(producer):
            passed.append(entry)
            if consumer is not last and self.allowed(producer.label, consumer.label, consumer is following):
                chosen = consumer
            if chosen is not None or self.mode == "closest":
                break
            last = consumer
        for entry in passed:
            heapq.heappush(self.users[producer].fragments, entry)
        return chosen

    def refuse_in_loop(self, producer: Group) -> None:
        """Raise `MpmdError` where a producer in a loop would be merged, or looked at more closely."""
        users = [user.anchor if isinstance(user, Group) else user for user in self.groups.users(producer)]
        for user in users:
            self.check_block(producer, user)
        consumers = [group for user in users if (group := self.groups.of(user)) is not None]
        uses = [user for value in producer.results for user in value.users if isinstance(user, FragmentOp)]
        if len(consumers) > 1 or len(uses) > 1:
            self.number(consumers[0])
        if any(self.allowed(producer.label, consumer.label, False) for consumer in consumers):
            self.number(producer)

    # Users.

    def check_block(self, group: Group, user: Op) -> None:
        if user.block is not group.anchor.block:
            raise error_at(
                group.anchor,
                f"{describe_fragment(group.label)} is used inside of another op ({user.name}); unroll loops "
                "before fragments are merged",
            )

    def users_of(self, group: Group) -> _Users:
        users = self.users.get(group)
        if users is None:
            users = self.users[group] = _Users()
            for value in group.results:
                for use in self.groups.outside_uses(group, value):
                    self.add_user(users, group, use.owner)
            heapq.heapify(users.fragments)
            heapq.heapify(users.others)
        return users

    def add_user(self, users: _Users, group: Group, user: Op) -> None:
        if self.mode != "sideways":
            self.check_block(group, user)
            if isinstance(user, FragmentOp) and self.groups.of(user) is None:
                self.add_passed(user.mesh)  # on another mesh: a mistake
        heap = users.others if self.groups.of(user) is None else users.fragments
        heap.append((self.number(user), next(self.numbers), user))

    def consumers(self, group: Group) -> Iterator[tuple[_Entry, Group]]:
        """Yield the groups that use the group, in order, with their entries, which are taken out."""
        heap = self.users_of(group).fragments
        while self.first_place(group, heap) < math.inf:
            entry = heapq.heappop(heap)
            user = self.groups.of(entry[2])
            assert user is not None
            yield entry, user

    def earliest_user(self, group: Group) -> float:
        """Return the place of the first user of the group."""
        users = self.users_of(group)
        return min(self.first_place(group, users.fragments), self.first_place(group, users.others))

    def first_place(self, group: Group, heap: list[_Entry]) -> float:
        """Return the place of the first user in the heap, which is at its top then."""
        while heap:
            place, number, user = heap[0]
            if self.groups.of(user) is group:
                heapq.heappop(heap)
            elif (now := self.number(user)) != place:
                heapq.heapreplace(heap, (now, number, user))
            else:
                return place
        return math.inf

    def next_on_mesh(self, group: Group) -> Group | None:
        """Return the next group on the mesh behind `group`."""
        if group.number is None:
            op = group.anchor.next_op
            while op is not None and not (isinstance(op, FragmentOp) and op.mesh == group.label.mesh):
                op = op.next_op
            return None if op is None else self.groups.of(op)
        line = self.lines[group.label.mesh]
        behind = bisect.bisect_left(line, -group.number)
        return self.at_place[-line[behind - 1]] if behind else None

    def number(self, op: Op | Group) -> int:
        """Return the place of an op or group.  Raises `MpmdError` for ops in loops, which have none."""
        group = op if isinstance(op, Group) else self.groups.of(op)
        result = group.number if group is not None else self.order.get(op) if isinstance(op, Op) else None
        if result is None:
            where = op.anchor if isinstance(op, Group) else op
            raise error_at(where, f"'{where.name}' lies inside of a loop; unroll loops before fragments are merged")
        return result

    def fits_at_producer(self, producer: Group, consumer: Group, place: int) -> bool:
        """Return whether everything the consumer needs is there when the producer runs."""
        read = self.read_by(consumer)
        while read.unvisited and -read.unvisited[0][0] >= self.visited:
            read.visited.append(heapq.heappop(read.unvisited)[2])
        in_front = []
        fits = True
        while fits and read.visited:
            definer = read.visited.pop()
            group = self.groups.of(definer)
            if group is producer or self.number(definer) < place:
                in_front.append(definer)
            elif group is not consumer:
                fits = False
                in_front.append(definer)  # the first to be looked at next time
        read.visited += in_front
        return fits

    def read_by(self, group: Group) -> _Read:
        read = self.read.get(group)
        if read is None:
            read = self.read[group] = _Read([])
            self.add_read(read, group)
        return read

    def add_read(self, read: _Read, group: Group) -> None:
        for value in group.operands:
            if (definer := value.defining_op) is not None:
                place = self.order[definer] if definer in self.order else self.number(definer)
                heapq.heappush(read.unvisited, (-place, next(self.numbers), definer))

    def joined_read(self, producer: Group, consumer: Group) -> _Read | None:
        """Return what the merge of the two reads, if that was asked of one of them, which are used up."""
        one, other = self.read.pop(producer, None), self.read.pop(consumer, None)
        if one is not None and other is not None:
            few, many = sorted((one.visited, other.visited), key=len)
            many += few
            return _Read(_joined(one.unvisited, other.unvisited), many)
        read = one or other
        if read is not None:
            self.add_read(read, producer if one is None else consumer)
        return read
