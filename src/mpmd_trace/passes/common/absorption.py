"""How root fragments absorb the inferred fragments next to them.

The greedy driver visits the fragments and, after each merge, some of them again.  What has been merged is a group
until the round ends, so that a root which takes in many fragments, one after the other, is built once.  The
driver sees a group as its anchor, the root that it grew from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from mpmd_trace.ir.attributes import Attribute
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.common.fragment_groups import Group, Groups
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
        #: By group the results that other fragments use; with some more, which are dropped when they come first.
        self.feeding = {group: deque(group.results) for group in added}
        #: Those that are not from the user, and of them those that receive something from another mesh.
        self.inferred = {group for group in added if not group.label.is_user}
        self.receiving = {group for group in self.inferred if _received(group)}
        #: Those that send something to another mesh; those that may read results of inferred ones.
        self.sending = {group for group in added if self.transfers_of(group)}
        self.reading = set(added)
        #: Visited ones: those that do nothing until they are merged, and those that may act when others are merged.
        self.idle: set[Group] = set()
        self.blocked: set[Group] = set()

    def visit(self, op: Op) -> bool:
        """Let the group absorb a neighbor, if it is a root."""
        group = self.groups.of(op)
        assert group is not None
        if self.is_root(group) and (self.absorb_producer(group) or self.absorb_consumer(group)):
            return True
        waits = self.feeds(group) or self.inferred_producers(group)
        (self.blocked if waits else self.idle).add(group)
        return False

    def is_root(self, group: Group) -> bool:
        """Return whether this is a user fragment, or an inferred one that begins or ends a chain of fragments."""
        return (
            group not in self.inferred
            or not self.feeds(group)
            or not any(isinstance(v.defining_op, FragmentOp) for v in group.values())
        )

    # Neighbors.

    def feeds(self, group: Group) -> bool:
        """Return whether other fragments use results."""
        values = self.feeding[group]
        while values and not any(self.groups.of(use.owner) for use in self.groups.outside_uses(group, values[0])):
            values.popleft()
        return bool(values)

    def inferred_users(self, group: Group) -> Iterator[Group]:
        """Yield the inferred fragments that use results: of each result the newest first, once for each use."""
        values = self.feeding[group] if self.feeds(group) else ()
        uses = (use for value in values for use in self.groups.uses_of(value))
        return (user for user, _ in uses if isinstance(user, Group) and user in self.inferred)

    def transfers_of(self, group: Group) -> list[TransferOp]:
        """Return the transfers of the results: of each result the newest first."""
        users = (user for value in group.results for user, _ in self.groups.uses_of(value))
        return [user for user in users if isinstance(user, TransferOp)]

    def inferred_producers(self, group: Group) -> list[Group]:
        """Return the inferred fragments that define operands, in operand order."""
        if group not in self.reading:
            return []
        definers = (value.defining_op for value in group.values())
        defining = dict.fromkeys(self.groups.of(op) for op in definers if isinstance(op, FragmentOp))
        producers = [producer for producer in defining if producer is not None and producer in self.inferred]
        if not producers:
            self.reading.discard(group)
        return producers

    def closest_consumer(self, producer: Group) -> Op | None:
        """Return the first op that uses the producer."""
        users = self.groups.users(producer)
        return _earliest(producer.anchor, (u.anchor if isinstance(u, Group) else u for u in users))

    def is_closest_producer(self, producer: Group, consumer: Group) -> bool:
        """Return whether no op that defines an operand of the consumer, in its block, comes behind the producer."""
        anchor = producer.anchor
        if anchor.block is not consumer.anchor.block:
            return False
        definers = (value.defining_op for value in consumer.values())
        return not any(
            op is not None and op.block is anchor.block and anchor.is_before(self.rewriter.leader(op))
            for op in definers
        )

    # Absorbing.

    def absorb_producer(self, root: Group) -> bool:
        """Merge the first inferred producer whose first consumer the root is into it; transfers give way."""
        producers = self.inferred_producers(root)
        for producer in producers:
            for transfer in self.transfers_of(producer) if producer in self.sending else ():
                self.delay(transfer)
        for producer in producers:
            if self.closest_consumer(producer) is root.anchor:
                self.absorb(producer, root, root)
                return True
        return False

    def absorb_consumer(self, root: Group) -> bool:
        """Merge the first inferred user whose last producer the root is into it; transfers give way."""
        for user in self.inferred_users(root) if self.receiving else ():  # for each use: transfers may move once more
            for transfer in _received(user) if user in self.receiving else ():
                self.advance(transfer)
        for user in self.inferred_users(root):
            if self.is_closest_producer(root, user):
                self.absorb(root, user, root)
                return True
        return False

    def delay(self, transfer: TransferOp) -> None:
        """Move the transfer to its first user, or drop it."""
        consumer = _earliest(transfer, [self.rewriter.leader(user) for user in transfer.users])
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
        pair = {producer, consumer}
        self.blocked -= pair
        revisited: list[Group] = []
        if self.blocked:
            revisited = [*self.redirected(producer, consumer), *self.released(producer, consumer)]
        anchor, retired = root.anchor, other.anchor
        first, second = self.feeding.pop(producer), self.feeding.pop(consumer)
        merged = self.groups.merge(producer, consumer, at_consumer=root is consumer, attrs=attrs)
        if len(first) < len(second):
            second.extendleft(reversed(first))
            self.feeding[merged] = second
        else:
            first.extend(second)
            self.feeding[merged] = first
        self.idle -= pair
        for kind in (self.sending, self.receiving, self.reading):
            if kind & pair:
                kind -= pair
                kind.add(merged)
        if root not in self.inferred:
            self.inferred -= pair
            self.receiving -= pair
        self.rewriter.retire(retired, anchor)
        self.rewriter.push(anchor)
        for group in revisited:
            self.rewriter.push(group.anchor)

    # What the driver visits again after a merge.

    def may_act(self, group: Group) -> bool:
        """Return whether a visit of the group that is not scheduled may do something."""
        return group in self.blocked and not self.rewriter.is_waiting(group.anchor)

    def redirected(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """Yield the users of what the two return, but for each other: their operands change."""
        for group in (producer, consumer):
            for value in self.feeding[group]:
                for user, _ in self.groups.uses_of(value):
                    if isinstance(user, Group) and user is not consumer and self.may_act(user):
                        yield user

    def released(self, producer: Group, consumer: Group) -> Iterator[Group]:
        """Yield the fragments of which an operand has no other user than one of the two, which goes away."""
        for group, users in ((consumer, {consumer}), (producer, {producer, consumer})):
            for value in group.values():
                definer = value.defining_op
                releasing = None if definer is None else self.groups.of(definer)
                if (
                    releasing is not None
                    and releasing is not producer
                    and self.may_act(releasing)
                    and users.issuperset(user for user, _ in self.groups.uses_of(value))
                ):
                    yield releasing


def _received(group: Group) -> list[TransferOp]:
    """Return the transfers that define operands of the group, in operand order."""
    definers = (value.defining_op for value in group.values())
    return list(dict.fromkeys(op for op in definers if isinstance(op, TransferOp)))


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
