"""The loop that three merge passes share: from the last fragment to the first, merge each with consumers.

A pass supplies which pairs may be merged and how the candidate is chosen.  Transfers and other ops are never
moved; unused pure fragments are erased on the way.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.passes.common.fragment_groups import Group, Groups
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.greedy import walk_mutable

__all__ = ["STAYS", "Mode", "Prospects", "merge_neighbours"]

#: The attribute (ours) of fragments that are never merged.
STAYS = "mpmd.stays"

#: closest: the first fragment that uses the producer, if allowed; any: the first allowed one; sideways: the
#: next fragment on the mesh, whether it uses the producer or not.
Mode = Literal["closest", "any", "sideways"]
#: Whether producer and consumer may be merged; the last argument: is the consumer the next on the mesh?
Allowed = Callable[[FragmentOp, FragmentOp, bool], bool]


class Prospects(Protocol):
    """What a pass can say about a fragment alone, so that most are passed over without a look at their users."""

    def note(self, fragment: FragmentOp, change: int) -> None:
        """A fragment like this one is there (`change` is 1), or no longer (-1)."""
        raise NotImplementedError

    def possible(self, producer: FragmentOp) -> bool:
        """False when no pair of the producer and a fragment that was noted is allowed, nor will be after merges."""
        raise NotImplementedError


def merge_neighbours(
    function: FuncOp,
    allowed: Allowed,
    mode: Mode = "closest",
    prospects: Prospects | None = None,
    stays: Callable[[FragmentOp], bool] | None = None,
) -> bool:
    """Merge the fragments of `function` with their neighbours, but for those marked with `STAYS`, or that `stays`.

    Says whether anything changed.
    """
    return _Merger(function, allowed, mode, prospects, stays or (lambda op: False)).run()


@dataclasses.dataclass
class _Merger:
    function: FuncOp
    allowed: Allowed
    mode: Mode
    prospects: Prospects | None
    stays: Callable[[FragmentOp], bool]
    groups: Groups = dataclasses.field(default_factory=Groups)
    at_place: dict[int, Group] = dataclasses.field(default_factory=dict)
    #: By mesh the places of the groups, negative, in order: a group comes in front of those that are there.
    lines: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    #: Fragments that were passed over and have no group yet, by mesh, in the order of visits.
    passed: dict[str, list[FragmentOp]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def order(self) -> dict[Op, int]:
        """The places of the ops; ops inside of others have none."""
        return {op: i for i, op in enumerate(self.function.body)}

    def run(self) -> bool:
        fragments = self.fragments()
        prospects = self.prospects
        if prospects is not None:
            for fragment in fragments:
                prospects.note(fragment, 1)
        changed = False
        for fragment in reversed(fragments):
            if not fragment.has_uses and is_pure(fragment):
                if prospects is not None:
                    prospects.note(fragment, -1)
                fragment.erase()
                changed = True
            elif prospects is not None and not prospects.possible(fragment):
                self.passed.setdefault(fragment.mesh, []).append(fragment)
            else:
                self.add_passed(fragment.mesh)
                current: Group | None = self.add(fragment)
                while current is not None:
                    current = self.merge(current)
        return self.groups.build() or changed

    def fragments(self) -> list[FragmentOp]:
        """The fragments, in order.  When some may be in loops, all are visited: those in loops are refused."""
        region = self.function.regions[0]
        found: list[FragmentOp] = []
        op = region.blocks[0].first if len(region.blocks) == 1 else None
        while op is not None:
            if isinstance(op, FragmentOp):
                if STAYS not in op.attrs and not self.stays(op):
                    found.append(op)
            elif op.regions:
                break
            op = op._next
        else:
            if len(region.blocks) == 1:
                return found
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
        users = self.groups.users(producer)
        consumer = self.candidate(producer, users)
        if consumer is None:
            return None
        first, second = self.number(producer), self.number(consumer)
        if all(self.number(user) >= second for user in users):
            at_consumer, vacated = True, first
        elif self.fits_at_producer(producer, consumer, first):
            at_consumer, vacated = False, second
        else:
            return None
        if self.prospects is not None:
            self.prospects.note(producer.label, -1)
            self.prospects.note(consumer.label, -1)
        merged = self.groups.merge(producer, consumer, at_consumer=at_consumer)
        if self.prospects is not None:
            self.prospects.note(merged.label, 1)
        line = self.lines[merged.label.mesh]
        del line[bisect.bisect_left(line, -vacated)]
        self.at_place[second if at_consumer else first] = merged
        return merged

    def candidate(self, producer: Group, users: Iterable[Op | Group]) -> Group | None:
        following = self.next_on_mesh(producer)
        if self.mode == "sideways":
            if following is None or not self.allowed(producer.label, following.label, True):
                return None
            return following
        consumers: list[Group] = []
        for user in users:
            op = user.anchor if isinstance(user, Group) else user
            if op.block is not producer.anchor.block:
                raise error_at(
                    producer.anchor,
                    f"{describe_fragment(producer.label)} is used inside of another op ({op.name}); unroll loops "
                    "before fragments are merged",
                )
            if isinstance(user, FragmentOp):  # on another mesh, where it was passed over: a mistake
                self.add_passed(user.mesh)
            group = user if isinstance(user, Group) else self.groups.of(user)
            if group is not None:
                consumers.append(group)
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
        line = self.lines[group.label.mesh]
        behind = bisect.bisect_left(line, -group.number)
        return self.at_place[-line[behind - 1]] if behind else None

    def number(self, op: Op | Group) -> int:
        """The place of an op or group.  Raises `MpmdError` for ops in loops, which have none."""
        group = op if isinstance(op, Group) else self.groups.of(op)
        found = group.number if group is not None else self.order.get(op) if isinstance(op, Op) else None
        if found is None:
            where = op.anchor if isinstance(op, Group) else op
            raise error_at(where, f"'{where.name}' lies inside of a loop; unroll loops before fragments are merged")
        return found

    def fits_at_producer(self, producer: Group, consumer: Group, place: int) -> bool:
        """Whether everything the consumer needs is there when the producer runs."""
        for value in consumer.operands:
            definer = value.defining_op
            if definer is None or self.groups.of(definer) is producer:
                continue
            if self.number(definer) >= place:
                return False
        return True
