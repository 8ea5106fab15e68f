"""The loop that three merge passes share: from the last fragment to the first, merge each with consumers.

A pass supplies which pairs may be merged and how the candidate is chosen.  Transfers and other ops are never
moved; unused pure fragments are erased on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ...ir.core import Op
from ...ir.diagnostics import Diagnostic, MpmdError, describe
from ...ir.ops import FragmentOp, FuncOp
from ...ir.semantics import is_pure
from ..fragment_info import describe_fragment
from ..greedy import walk_mutable
from .fragment_groups import Group, Groups

__all__ = ["Mode", "merge_neighbours"]

#: closest: the first fragment that uses the producer, if allowed; any: the first allowed one; sideways: the
#: next fragment on the mesh, whether it uses the producer or not.
Mode = Literal["closest", "any", "sideways"]
#: Whether producer and consumer may be merged; the last argument: is the consumer the next on the mesh?
Allowed = Callable[[FragmentOp, FragmentOp, bool], bool]


def merge_neighbours(function: FuncOp, allowed: Allowed, mode: Mode = "closest") -> bool:
    """Merge the fragments of `function` with their neighbours.  Says whether anything changed."""
    return _Merger(function, allowed, mode).run()


class _Line:
    """The groups of one mesh in the order of their places; new ones come in front."""

    def __init__(self) -> None:
        self.next: dict[int, int | None] = {}
        self.previous: dict[int, int | None] = {}
        self.first: int | None = None

    def add(self, place: int) -> None:
        self.next[place], self.previous[place] = self.first, None
        if self.first is not None:
            self.previous[self.first] = place
        self.first = place

    def remove(self, place: int) -> None:
        before, after = self.previous.pop(place), self.next.pop(place)
        if before is None:
            self.first = after
        else:
            self.next[before] = after
        if after is not None:
            self.previous[after] = before


class _Merger:
    def __init__(self, function: FuncOp, allowed: Allowed, mode: Mode) -> None:
        self.function = function
        self.allowed = allowed
        self.mode: Mode = mode
        self.order: dict[Op, int] = {op: i for i, op in enumerate(function.body)}
        self.groups = Groups()
        self.at_place: dict[int, Group] = {}
        self.lines: dict[str, _Line] = {}

    def run(self) -> bool:
        fragments = [
            op for op in walk_mutable(self.function.regions[0]) if isinstance(op, FragmentOp)
        ]
        changed = False
        for fragment in reversed(fragments):
            if not fragment.has_uses and is_pure(fragment):
                fragment.erase()
                changed = True
                continue
            current: Group | None = self.add(fragment)
            while current is not None:
                current = self.merge(current)
        return self.groups.build() or changed

    def add(self, fragment: FragmentOp) -> Group:
        place = self.order.get(fragment)
        group = self.groups.add(fragment, place)
        if place is not None:
            self.at_place[place] = group
            self.lines.setdefault(fragment.mesh, _Line()).add(place)
        return group

    def merge(self, producer: Group) -> Group | None:
        """Merge the group with its candidate, if there is one and the order of the ops allows it."""
        consumer = self.candidate(producer)
        if consumer is None:
            return None
        first, second = self.number(producer), self.number(consumer)
        if self.fits_at_consumer(producer, second):
            at_consumer, vacated = True, first
        elif self.fits_at_producer(producer, consumer, first):
            at_consumer, vacated = False, second
        else:
            return None
        merged = self.groups.merge(producer, consumer, at_consumer=at_consumer)
        self.lines[merged.label.mesh].remove(vacated)
        self.at_place[second if at_consumer else first] = merged
        return merged

    def candidate(self, producer: Group) -> Group | None:
        following = self.next_on_mesh(producer)
        if self.mode == "sideways":
            if following is None or not self.allowed(producer.label, following.label, True):
                return None
            return following
        consumers: list[Group] = []
        for user in self.groups.users(producer):
            op = user.anchor if isinstance(user, Group) else user
            if op.block is not producer.anchor.block:
                raise _refused(
                    producer.anchor,
                    f"{describe_fragment(producer.label)} is used inside of another op ({op.name}); "
                    f"unroll loops before fragments are merged",
                )
            if isinstance(user, Group):
                consumers.append(user)
        if producer.number is not None or len(consumers) > 1 or self.is_repeated(producer):
            consumers.sort(key=self.number)
        for consumer in consumers:
            if self.allowed(producer.label, consumer.label, consumer is following):
                return consumer
            if self.mode == "closest":
                return None
        return None

    def is_repeated(self, group: Group) -> bool:
        """Whether fragments use the group more than once, so that the order of uses matters."""
        users = [user for value in group.results for user in value.users]
        return sum(isinstance(user, FragmentOp) for user in users) > 1

    def next_on_mesh(self, group: Group) -> Group | None:
        """The next group on the mesh behind `group`."""
        if group.number is None:
            op = group.anchor.next_op
            while op is not None and not (isinstance(op, FragmentOp) and op.mesh == group.label.mesh):
                op = op.next_op
            return None if op is None else self.groups.of(op)
        place = self.lines[group.label.mesh].next[group.number]
        return None if place is None else self.at_place[place]

    def number(self, op: Op | Group) -> int:
        """The place of an op or group.  Raises `MpmdError` for ops in loops, which have none."""
        group = op if isinstance(op, Group) else self.groups.of(op)
        found = self.order.get(op) if group is None and isinstance(op, Op) else None
        if group is not None:
            found = group.number
        if found is None:
            where = op.anchor if isinstance(op, Group) else op
            raise _refused(
                where,
                f"'{where.name}' lies inside of a loop; unroll loops before fragments are merged",
            )
        return found

    def fits_at_consumer(self, producer: Group, place: int) -> bool:
        """Whether no user of the producer comes before the consumer's place."""
        return all(self.number(user) >= place for user in self.groups.users(producer))

    def fits_at_producer(self, producer: Group, consumer: Group, place: int) -> bool:
        """Whether everything the consumer needs is there when the producer runs."""
        for value in consumer.operands:
            definer = value.defining_op
            if definer is None or self.groups.of(definer) is producer:
                continue
            if self.number(definer) >= place:
                return False
        return True


def _refused(op: Op, message: str) -> MpmdError:
    return MpmdError([Diagnostic("error", message, op.loc, (), describe(op))])
