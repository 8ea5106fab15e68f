"""How root fragments absorb the inferred fragments next to them.

The greedy driver visits the fragments and, after each merge, some of them again.  What has been merged is a group
until the round ends, so that a root which takes in many fragments, one after the other, is built once.  The
driver sees a group as its anchor, the root that it grew from.  What a visit looks at is kept in lists, and
visits that can do nothing are not scheduled: the cost is that of the fragments, not of all pairs of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.common.fragment_groups import Group, Groups
from mpmd_trace.passes.common.group_operands import Slot
from mpmd_trace.passes.common.merge import union_inferred_by
from mpmd_trace.passes.greedy import Rewriter, walk_mutable

__all__ = ["Absorption"]


class Absorption:
    """A pattern of the greedy driver; call `settle` at the end of each round."""

    op_name: str | None = "mpmd.fragment"

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self._round: _Round | None = None

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if self._round is None:
            self._round = _Round(self.function, rewriter)
        return self._round.visit(op)

    def settle(self) -> None:
        """Make the merged fragments."""
        if self._round is not None:
            self._round.groups.build()
            self._round = None


class _Neighbours:
    """Where the fragments and transfers around a group are; entries that are out of date are dropped when met."""

    def __init__(self, group: Group) -> None:
        definers = [(slot, slot.value.defining_op) for slot in group.slots]
        #: The operands that inferred fragments define.
        self.inferred = {s for s, op in definers if isinstance(op, FragmentOp) and not op.is_user}
        #: The operands that are transferred.
        self.received = {s for s, op in definers if isinstance(op, TransferOp)}
        #: The operands that come from fragments which the driver has visited.
        self.visited: set[Slot] = set()
        #: The results that fragments use, and those that transfers use.
        self.feeding = deque(v for v in group.results if any(isinstance(user, FragmentOp) for user in v.users))
        self.sending = deque(v for v in group.results if any(isinstance(user, TransferOp) for user in v.users))
        #: The results of fragments that have not been visited.
        self.unseen = list(self.feeding)
        #: An op that defines an operand, a late one.
        self.late: Op | None = None

    def join(self, later: _Neighbours, late: Op | None) -> None:
        """Take in what is known about a group that was merged with this one and comes behind it."""
        self.inferred = _union(self.inferred, later.inferred)
        self.received = _union(self.received, later.received)
        self.visited = _union(self.visited, later.visited)
        self.feeding = _concatenated(self.feeding, later.feeding)
        self.sending = _concatenated(self.sending, later.sending)
        if len(self.unseen) < len(later.unseen):
            self.unseen, later.unseen = later.unseen, self.unseen
        self.unseen += later.unseen
        self.late = late


def _union(few: set[Slot], many: set[Slot]) -> set[Slot]:
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


class _Round:
    """The groups of one round of the driver."""

    def __init__(self, function: FuncOp, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.groups = Groups()
        fragments = [op for op in walk_mutable(function.regions[0]) if isinstance(op, FragmentOp)]
        added = [self.groups.add(fragment, None) for fragment in fragments]
        self.around = {group: _Neighbours(group) for group in added}
        for group in added:
            if not rewriter.is_waiting(group.anchor):
                self.note_visit(group)

    def visit(self, op: Op) -> bool:
        """Let the group absorb a neighbour, if it is a root."""
        group = self.groups.of(op)
        assert group is not None
        self.note_visit(group)
        return self.is_root(group) and (self.absorb_producer(group) or self.absorb_consumer(group))

    def note_visit(self, group: Group) -> None:
        unseen, self.around[group].unseen = self.around[group].unseen, []
        for value in unseen:
            for use in self.groups.outside_uses(group, value):
                user = self.groups.of(use.owner)
                if user is not None:
                    self.around[user].visited.add(self.groups.slot_of(use))

    def is_root(self, group: Group) -> bool:
        """A user fragment, or an inferred one at the end or at the beginning of a chain of fragments."""
        return (
            group.label.is_user
            or not self.fed_values(group)
            or not any(isinstance(v.defining_op, FragmentOp) for v in group.operands)
        )

    # Neighbours.

    def fed_values(self, group: Group) -> deque[Value]:
        """The results that other fragments use."""
        values = self.around[group].feeding
        for _ in range(len(values)):  # stops at the first one, as long as it is asked for nothing else
            if any(self.groups.of(use.owner) for use in self.groups.outside_uses(group, values[0])):
                break
            values.popleft()
        return values

    def fragment_users(self, group: Group) -> Iterator[Group]:
        """The fragments that use results: of each result the newest first, once for each use."""
        for value in list(self.fed_values(group)):
            for use in self.groups.uses_of(value):
                if isinstance(use.user, Group):
                    yield use.user

    def transfers_of(self, group: Group) -> list[TransferOp]:
        """The transfers of the results: of each result the newest first."""
        uses = (use for value in self.around[group].sending for use in self.groups.uses_of(value))
        return [use.user for use in uses if isinstance(use.user, TransferOp)]

    def inferred_producers(self, group: Group) -> list[Group]:
        """The inferred fragments that define operands of the group, in operand order."""
        slots = self.around[group].inferred
        found: dict[Group, None] = {}
        for slot in _in_operand_order(slots):
            definer = slot.value.defining_op
            producer = None if definer is None else self.groups.of(definer)
            if producer is None or producer.label.is_user:
                slots.discard(slot)
            else:
                found[producer] = None
        return list(found)

    def transferred_operands(self, group: Group) -> list[TransferOp]:
        """The transfers that define operands of the group, in operand order."""
        found = [slot.value.defining_op for slot in _in_operand_order(self.around[group].received)]
        return list(dict.fromkeys(op for op in found if isinstance(op, TransferOp)))

    def is_closest_consumer(self, consumer: Group, producer: Group) -> bool:
        """Whether no user of the producer comes before the consumer."""
        users = self.groups.users(producer)
        first = _earliest(producer.anchor, (u.anchor if isinstance(u, Group) else u for u in users))
        return first is consumer.anchor

    def is_closest_producer(self, producer: Group, consumer: Group) -> bool:
        """Whether no op that defines an operand of the consumer, in its block, comes behind the producer."""
        around, anchor = self.around[consumer], producer.anchor
        if anchor.block is not consumer.anchor.block:
            return False
        late = None if around.late is None else self.rewriter.leader(around.late)
        if late is None or late is consumer.anchor or not anchor.is_before(late):
            late = anchor
            for value in consumer.operands:
                definer = value.defining_op
                if definer is not None and definer.block is anchor.block:
                    definer = self.rewriter.leader(definer)
                    if late.is_before(definer):
                        late = definer
            around.late = late
        return late is anchor

    # Absorbing.

    def absorb_producer(self, root: Group) -> bool:
        """A root swallows the first inferred producer whose first consumer it is; transfers give way."""
        eligible: Group | None = None
        for producer in self.inferred_producers(root):
            if self.around[producer].sending:
                for transfer in self.transfers_of(producer):
                    self.delay(transfer)
            if eligible is None and self.is_closest_consumer(root, producer):
                eligible = producer
        if eligible is None:
            return False
        self.absorb(eligible, root, root)
        return True

    def absorb_consumer(self, root: Group) -> bool:
        """A root swallows the first inferred user whose last producer it is; transfers give way."""
        eligible: Group | None = None
        for user in self.fragment_users(root):  # again for each use: transfers may move once more
            if user.label.is_user:
                continue
            if self.around[user].received:
                for transfer in self.transferred_operands(user):
                    self.advance(transfer)
            if eligible is None and self.is_closest_producer(root, user):
                eligible = user
        if eligible is None:
            return False
        self.absorb(root, eligible, root)
        return True

    def delay(self, transfer: TransferOp) -> None:
        """Move the transfer to its first user, or drop it."""
        users = [self.rewriter.leader(user) for user in transfer.users]
        consumer = _earliest(transfer, users)
        if consumer is None:
            self.rewriter.erase(transfer)
        else:
            self.rewriter.move_before(transfer, consumer)

    def advance(self, transfer: TransferOp) -> None:
        """Move the transfer directly behind the definition of its operand."""
        producer = transfer.operand(0).defining_op
        if producer is not None:
            self.rewriter.move_after(transfer, self.rewriter.leader(producer))
        else:
            assert transfer.block is not None
            self.rewriter.insert_front(transfer.block, transfer)

    def absorb(self, producer: Group, consumer: Group, root: Group) -> None:
        """Merge the two; the result has the discardable attributes of the root."""
        other = producer if root is consumer else consumer
        attrs: dict[str, Attribute] = dict(root.label.attrs)
        if not root.label.is_user and "mpmd.inferred_by" in other.label.attrs:
            inferred_by = union_inferred_by(root.label, other.label)
            assert inferred_by is not None
            attrs["mpmd.inferred_by"] = inferred_by
        revisited = [*self.redirected(producer, consumer), *self.released(producer, consumer)]
        anchor, retired = root.anchor, other.anchor
        first, second = self.around.pop(producer), self.around.pop(consumer)
        merged = self.groups.merge(producer, consumer, at_consumer=root is consumer, attrs=attrs)
        first.join(second, second.late)
        self.around[merged] = first
        self.rewriter.retire(retired, anchor)
        self.rewriter.push(anchor)
        for group in revisited:
            self.rewriter.push(group.anchor)

    # What the driver visits again after a merge.

    def redirected(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """The users of what the two return, but for each other: their operands change."""
        for group in (producer, consumer):
            for user in self.fragment_users(group):
                if user is not consumer and self.may_absorb(user):
                    yield user

    def released(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """The fragments of which an operand has no other user than one of the two, which goes away."""
        for group, users in ((consumer, {consumer}), (producer, {producer, consumer})):
            slots = self.around[group].visited
            for slot in _in_operand_order(slots):
                definer = slot.value.defining_op
                found = None if definer is None else self.groups.of(definer)
                if found is None:
                    slots.discard(slot)
                elif (
                    found is not producer
                    and self.may_absorb(found)
                    and not self.rewriter.is_waiting(found.anchor)
                    and users.issuperset(use.user for use in self.groups.uses_of(slot.value))
                ):
                    yield found

    def may_absorb(self, group: Group) -> bool:
        """Whether a visit of the group may do something, now or ever."""
        around = self.around[group]
        return bool(around.inferred or around.feeding)


def _earliest(op: Op, others: Iterable[Op]) -> Op | None:
    """The first of the ops next to `op` that are, or hold, one of the others."""
    block = op.block
    assert block is not None
    first: Op | None = None
    for other in others:
        found = other.ancestor_in(block)
        if found is not None and (first is None or found.is_before(first)):
            first = found
    return first


def _in_operand_order(slots: set[Slot]) -> list[Slot]:
    """The slots that are still there, in order; the set has no others afterwards."""
    if not slots:
        return []
    current = {slot.final() for slot in slots}
    slots.clear()
    slots.update(slot for slot in current if not slot.inside)
    return sorted(slots, key=lambda slot: slot.key)
