"""How root fragments absorb the inferred fragments next to them.

The greedy driver visits the fragments and, after each merge, some of them again.  What has been merged is a group
until the round ends, so that a root which takes in many fragments, one after the other, is built once.  The
driver sees a group as its anchor, the root that it grew from.  What a visit looks at is kept in lists, and
visits that can do nothing are not scheduled: the cost is that of the fragments, not of all pairs of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op, Use, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.common.fragment_groups import Group, Groups
from mpmd_trace.passes.common.group_neighbours import Neighbours
from mpmd_trace.passes.common.group_operands import Slot
from mpmd_trace.passes.common.merge import union_inferred_by
from mpmd_trace.passes.greedy import Rewriter, walk_mutable


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


class _Round:
    """The groups of one round of the driver."""

    def __init__(self, function: FuncOp, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.groups = Groups()
        fragments = [op for op in walk_mutable(function.regions[0]) if isinstance(op, FragmentOp)]
        added = [self.groups.add(fragment, None) for fragment in fragments]
        self.around = {group: Neighbours(group) for group in added}
        #: Results of which nothing is to be expected until that op is merged, moved or, as a root, visited: those that
        #: nothing may be absorbed through, and those whose users need not be visited.
        self.closed: dict[Op, list[Value]] = {}
        self.idle: dict[Op, list[Value]] = {}
        #: Likewise until that op is merged: those whose users are idle, or use another result of the same group, too.
        self.covered: dict[Op, list[Value]] = {}
        #: Of results with one user that is not idle that user, as one of its members; the others are in `idle`.
        self.only_lively: dict[Value, Op] = {}
        #: Operands, with one of the fragments that they belong to, that wait for the same: another op uses what defines
        #: them sooner.
        self.later: dict[Op, list[tuple[Slot, Op]]] = {}
        #: Results that merged inferred fragments use, which makes their uses hard to order.
        self.mixed: set[Value] = set()
        #: The uses by other inferred fragments of results that are not mixed, newest first.
        self.lines: dict[Value, deque[Use]] = {}
        #: Fragments and transfers that the driver is going to erase, unless it merges them before.
        self.unused: set[Op] = set()
        for op in reversed(list(walk_mutable(function.regions[0]))):
            if isinstance(op, FragmentOp | TransferOp) and self.unused.issuperset(op.users):
                self.unused.add(op)
        for group in added:
            if not group.label.is_user and self.around[group].received:
                self.note_receiver(group)
        for group in added:
            if not rewriter.is_waiting(group.anchor):
                self.note_visit(group)

    def visit(self, op: Op) -> bool:
        """Let the group absorb a neighbor, if it is a root."""
        group = self.groups.of(op)
        assert group is not None
        self.note_visit(group)
        if not self.is_root(group):
            return False
        self.expect_again(self.idle, group.anchor)
        return self.absorb_producer(group) or self.absorb_consumer(group)

    def note_visit(self, group: Group) -> None:
        unseen, self.around[group].unseen = self.around[group].unseen, []
        for value in unseen:
            for use in self.groups.outside_uses(group, value):
                user = self.groups.of(use.owner)
                if user is not None:
                    self.around[user].visited.add(self.groups.slot_of(use))

    def is_root(self, group: Group) -> bool:
        """Return whether this is a user fragment, or an inferred one at either end of a chain of fragments."""
        return (
            group.label.is_user
            or not self.fed_values(group)
            or not any(isinstance(v.defining_op, FragmentOp) for v in group.values())
        )

    # Neighbors.

    def fed_values(self, group: Group) -> deque[Value]:
        """Return the results that other fragments use."""
        values = self.around[group].feeding
        for _ in range(len(values)):  # stops at the first one, as long as it is asked for nothing else
            if any(self.groups.of(use.owner) for use in self.groups.outside_uses(group, values[0])):
                break
            values.popleft()
        return values

    def fragment_users(self, group: Group) -> Iterator[Group]:
        """Yield the fragments that use results: of each result the newest first, once for each use."""
        for value in list(self.fed_values(group)):
            for use in self.groups.uses_of(value):
                if isinstance(use.user, Group):
                    yield use.user

    def transfers_of(self, group: Group) -> list[TransferOp]:
        """Return the transfers of the results: of each result the newest first."""
        uses = (use for value in self.around[group].sending for use in self.groups.uses_of(value))
        return [use.user for use in uses if isinstance(use.user, TransferOp)]

    def inferred_producers(self, group: Group) -> dict[Group, list[Slot]]:
        """Return the inferred fragments that define operands, in operand order, but for those that wait."""
        slots = self.around[group].inferred
        producers: dict[Group, list[Slot]] = {}
        for slot in _in_operand_order(slots):
            definer = slot.value.defining_op
            producer = None if definer is None else self.groups.of(definer)
            if producer is None or producer.label.is_user:
                slots.discard(slot)
            else:
                producers.setdefault(producer, []).append(slot)
        return producers

    def transferred_operands(self, group: Group) -> list[TransferOp]:
        """Return the transfers that define operands of the group, in operand order."""
        definers = [slot.value.defining_op for slot in _in_operand_order(self.around[group].received)]
        return list(dict.fromkeys(op for op in definers if isinstance(op, TransferOp)))

    def closest_consumer(self, producer: Group) -> Op | None:
        """Return the first op that uses the producer."""
        users = self.groups.users(producer)
        return _earliest(producer.anchor, (u.anchor if isinstance(u, Group) else u for u in users))

    def is_closest_producer(self, producer: Group, consumer: Group) -> bool:
        """Return whether no op that defines an operand of the consumer, in its block, comes behind the producer."""
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
        """Merge the first inferred producer whose first consumer the root is into it; transfers give way."""
        eligible: Group | None = None
        for producer, slots in self.inferred_producers(root).items():
            sends = bool(self.around[producer].sending)
            for transfer in self.transfers_of(producer) if sends else ():
                self.delay(transfer)
            closest = self.closest_consumer(producer)
            if closest is root.anchor:
                eligible = eligible or producer
            elif closest is not None and closest not in self.unused and not sends:
                self.wait(root, slots, (closest, producer.anchor, root.anchor))
        if eligible is None:
            return False
        self.absorb(eligible, root, root)
        return True

    def absorb_consumer(self, root: Group) -> bool:
        """Merge the first inferred user whose last producer the root is into it; transfers give way."""
        fed = self.around[root].fed
        fed.received_with = {value for value in fed.received_with if self.is_received_with(root, value)}
        eligible: Group | None = None
        if fed.received_with:
            for user in self.fragment_users(root):  # again for each use: transfers may move once more
                if user.label.is_user:
                    continue
                if self.around[user].received:
                    for transfer in self.transferred_operands(user):
                        self.advance(transfer)
                if eligible is None and self.is_closest_producer(root, user):
                    eligible = user
        else:
            while eligible is None and (value := fed.first(fed.open)) is not None:
                eligible = self.absorbable_through(root, value)
                if eligible is None:
                    heapq.heappop(fed.open)
        if eligible is None:
            return False
        self.absorb(root, eligible, root)
        return True

    def absorbable_through(self, root: Group, value: Value) -> Group | None:
        """Return the first inferred user of the result whose last producer the root is; or put the result aside."""
        if value not in self.mixed:
            first = self.first_in_line(root, value)
            if first is None or self.is_closest_producer(root, first):
                return first
        late: dict[Op, None] = {}
        for use in self.groups.uses_of(value):
            user = use.user
            if isinstance(user, Group) and not user.label.is_user:
                if self.is_closest_producer(root, user):
                    return user
                late[user.anchor] = None
                definer = self.around[user].late
                if definer is not None:
                    late[self.rewriter.leader(definer)] = None
        for op in late:
            self.closed.setdefault(op, []).append(value)
        return None

    def first_in_line(self, root: Group, value: Value) -> Group | None:
        """Return the first inferred user of a result that no merged inferred fragment uses."""
        line = self.lines.get(value)
        if line is None:
            line = self.lines[value] = deque(value.uses)
        at = -1 if self.groups.is_turned(value) else 0
        while line:
            user = self.groups.of(line[at].owner)
            if user is not None and user is not root and not user.label.is_user:
                return user
            if at:
                line.pop()
            else:
                line.popleft()
        return None

    # What may become possible.

    def wait(self, group: Group, slots: list[Slot], ops: Iterable[Op]) -> None:
        """Put operands aside until one of the ops is merged."""
        around = self.around[group]
        around.inferred.difference_update(slots)
        around.waits = True
        for op in ops:
            self.later.setdefault(op, []).extend((slot, group.anchor) for slot in slots)

    def note_receiver(self, group: Group) -> None:
        """Tell those that feed an inferred group that it receives something from another mesh."""
        for value in group.values():
            definer = value.defining_op
            producer = None if definer is None else self.groups.of(definer)
            if producer is not None:
                self.around[producer].fed.received_with.add(value)

    def is_received_with(self, group: Group, value: Value) -> bool:
        users = (self.groups.of(use.owner) for use in self.groups.outside_uses(group, value))
        return any(user is not None and not user.label.is_user and self.around[user].received for user in users)

    def expect_again(self, kept: dict[Op, list[Value]], op: Op, merged: Group | None = None) -> None:
        """Look again at the results that were put aside because of the op; `merged` is the group that it is in now."""
        for value in kept.pop(op, ()):
            definer = value.defining_op
            owner = None if definer is None else self.groups.of(definer)
            if owner is not None and (owner is not merged or kept is self.closed):
                if kept is self.idle and self.only_lively.pop(value, None) is not None:
                    continue  # it is looked at anyway
                self.around[owner].fed.add(value, open=kept is self.closed, lively=kept is not self.closed)

    def delay(self, transfer: TransferOp) -> None:
        """Move the transfer to its first user, or drop it."""
        users = [self.rewriter.leader(user) for user in transfer.users]
        consumer = _earliest(transfer, users)
        self.expect_again(self.closed, transfer)
        if consumer is None:
            self.rewriter.erase(transfer)
        else:
            self.rewriter.move_before(transfer, consumer)

    def advance(self, transfer: TransferOp) -> None:
        """Move the transfer directly behind the definition of its operand."""
        producer = transfer.operand(0).defining_op
        self.expect_again(self.closed, transfer)
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
        if not root.label.is_user:
            for group in (producer, consumer):
                if not group.stamps:
                    self.mixed.update(group.values())
            receiving = [bool(self.around[group].received) for group in (producer, consumer)]
            if any(receiving) and not all(receiving):
                self.note_receiver(consumer if receiving[0] else producer)
        fed = list(self.around[other].feeding)
        first, second = self.around.pop(producer), self.around.pop(consumer)
        merged = self.groups.merge(producer, consumer, at_consumer=root is consumer, attrs=attrs)
        first.join(second, second.late)
        self.around[merged] = first
        for value in fed:  # the place of the group is another one
            first.fed.add(value, lively=False)
        for kept in (self.closed, self.idle, self.covered):
            self.expect_again(kept, retired, merged)
        for slot, member in self.later.pop(retired, ()):
            reader = self.groups.of(member)
            if reader is not None:
                self.around[reader].inferred.add(slot)
        self.rewriter.retire(retired, anchor)
        self.rewriter.push(anchor)
        for group in revisited:
            self.rewriter.push(group.anchor)

    # What the driver visits again after a merge.

    def redirected(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """Yield the users of what the two return, but for each other: their operands change."""
        covered: set[Group] = set()
        for group in (producer, consumer):
            fed = self.around[group].fed
            kept: list[Value] = []
            while (value := fed.first(fed.lively)) is not None:
                heapq.heappop(fed.lively)
                if (only := self.only_lively_user(group, consumer, value)) is not None:
                    if only in covered:
                        del self.only_lively[value]
                        self.covered.setdefault(only.anchor, []).append(value)
                    else:
                        kept.append(value)
                        covered.add(only)
                        yield only
                    continue
                groups = (self.groups.of(use.owner) for use in self.groups.outside_uses(group, value))
                users = dict.fromkeys(user for user in groups if user is not None and user is not consumer)
                idle = {user for user in users if self.is_idle(user)}
                if covered.issuperset(user for user in users if user not in idle):
                    for user in users:
                        (self.idle if user in idle else self.covered).setdefault(user.anchor, []).append(value)
                    continue
                kept.append(value)
                lively = [user for user in users if user not in idle]
                covered.update(lively)
                if len(lively) == 1 and len(idle) > 1:
                    self.only_lively[value] = lively[0].anchor
                    for user in idle:
                        self.idle.setdefault(user.anchor, []).append(value)
                for use in self.groups.uses_of(value):
                    if isinstance(use.user, Group) and use.user is not consumer and use.user not in idle:
                        yield use.user
            for value in kept:
                fed.add(value, open=False)

    def only_lively_user(self, group: Group, consumer: Group, value: Value) -> Group | None:
        """Return the only user of a result outside of the group that is not idle, where that is remembered."""
        member = self.only_lively.get(value)
        if member is None:
            return None
        user = self.groups.of(member)
        if user is None or user is group or user is consumer or self.is_idle(user):
            del self.only_lively[value]
            return None
        return user

    def is_idle(self, user: Group) -> bool:
        """Return whether visits of a user of another fragment do nothing until it is merged, or visited as a root."""
        around = self.around[user]
        if not (around.inferred or around.waits or around.feeding):
            return True
        return not user.label.is_user and bool(self.fed_values(user))

    def released(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """Yield the fragments of which an operand has no other user than one of the two, which goes away."""
        for group, users in ((consumer, {consumer}), (producer, {producer, consumer})):
            slots = self.around[group].visited
            for slot in _in_operand_order(slots):
                definer = slot.value.defining_op
                releasing = None if definer is None else self.groups.of(definer)
                if releasing is None:
                    slots.discard(slot)
                elif (
                    releasing is not producer
                    and self.may_absorb(releasing)
                    and not self.rewriter.is_waiting(releasing.anchor)
                    and users.issuperset(use.user for use in self.groups.uses_of(slot.value))
                ):
                    yield releasing

    def may_absorb(self, group: Group) -> bool:
        """Return whether a visit of the group may do something, now or ever."""
        around = self.around[group]
        return bool(around.inferred or around.waits or around.feeding)


def _earliest(op: Op, others: Iterable[Op]) -> Op | None:
    """Return the first of the ops next to `op` that are, or hold, one of the others."""
    block = op.block
    assert block is not None
    first: Op | None = None
    for other in others:
        ancestor = other.ancestor_in(block)
        if ancestor is not None and (first is None or ancestor.is_before(first)):
            first = ancestor
    return first


def _in_operand_order(slots: set[Slot]) -> list[Slot]:
    """Return the slots that are still there, in order; the set has no others afterwards."""
    if not slots:
        return []
    current = {slot.final() for slot in slots}
    slots.clear()
    slots.update(slot for slot in current if not slot.inside)
    return sorted(slots, key=lambda slot: slot.key)
