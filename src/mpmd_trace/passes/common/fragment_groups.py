"""Groups of fragments that are to become one fragment.

Merging a long chain pair by pair would build each intermediate body and operand list.  A group records what
the merged fragment would be - its operands, results and label in order - at a cost of the smaller part per
merge; the fragments stay in the program until `build` replaces them, with a body that is made once.

The order of uses, which some passes go by, is that of merging pair by pair: each merge would make the operands of
the new fragment the newest uses of their values and turn the use lists of its results around.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping

from mpmd_trace.diagnostics.location import fused
from mpmd_trace.ir.attributes import Attribute, IntegerAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import Op, Use, Value, make_op
from mpmd_trace.ir.functions import function_around
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.common.body_rewrites import cover_transferred_results
from mpmd_trace.passes.common.group_operands import GroupOperands, Slot
from mpmd_trace.passes.common.merge import check_mergeable, merged_body, merged_call_counter, union_inferred_by
from mpmd_trace.passes.control_dependencies import CONTROL_START
from mpmd_trace.passes.fragment_info import BLOCK, origin_union, set_call_counter
from mpmd_trace.passes.greedy import Rewriter

_EMPTY = BodyBuilder().finish([])
#: Control operands come behind all others.
_CONTROLS = 1 << 40


class Group:
    """Fragments that become one.

    `label` is a fragment with the attributes of the result (the fragment itself while there is only one),
    `number` the place among the ops of the block, `anchor` the member that stands there.  The operands are
    listed when somebody asks for them: most fragments of a program are only looked at.
    """

    __slots__ = (
        "_controls",
        "_data",
        "_own",
        "anchor",
        "first",
        "joined",
        "label",
        "members",
        "number",
        "results",
        "stamps",
        "unread",
    )

    def __init__(self, fragment: FragmentOp, number: int | None) -> None:
        self.first = fragment
        self.label = fragment
        self.anchor = fragment
        self.number = number
        self.members: deque[FragmentOp] = deque([fragment])
        self._own: list[Slot] | None = None
        self._data: GroupOperands | None = None
        self._controls: list[Slot] = []
        #: In order; those of producers that nothing outside reads any more are dropped by merges.
        self.results: OrderedDict[Value, None] = OrderedDict.fromkeys(fragment.results)
        #: The results that nothing outside of the group reads, which go when it is merged as a producer.
        self.unread: list[Value] | None = None
        #: When it was merged with others, counted in merges of all groups.
        self.stamps: list[int] = []
        #: The group that it has become part of, and the number of merges which that had before.
        self.joined: tuple[Group, int] | None = None

    @property
    def own(self) -> list[Slot]:
        """The operands of the fragment that it began with."""
        if self._own is None:
            self._own = [Slot(use.value, use.index) for use in self.first.operand_uses]
        return self._own

    @property
    def data(self) -> GroupOperands:
        """The operands that are not control operands."""
        if self._data is None:
            count = len(self.first.body.block.args)
            self.set_operands(GroupOperands(self.own[:count]), self.own[count:])
            assert self._data is not None
        return self._data

    @property
    def controls(self) -> list[Slot]:
        """The control operands."""
        return self._controls if self._data is not None else self.own[len(self.first.body.block.args) :]

    def set_operands(self, data: GroupOperands, controls: list[Slot]) -> None:
        """Say what the merged fragment reads."""
        self._data, self._controls = data, controls
        for i, slot in enumerate(controls):
            slot.key = _CONTROLS + i

    def values(self) -> Iterator[Value]:
        """Yield what the merged fragment needs, one after the other."""
        if self._data is None:
            yield from (use.value for use in self.first.operand_uses)
        else:
            yield from (slot.value for slot in self._data)
            yield from (slot.value for slot in self._controls)

    @property
    def size(self) -> int:
        """The cost of adding it to another group."""
        return len(self.members) + len(self.results)

    @property
    def stamp(self) -> int:
        """The time of the last merge; 0 when there was none."""
        return self.stamps[-1] if self.stamps else 0

    @property
    def slots(self) -> list[Slot]:
        """The operands of the merged fragment, control operands last (a fresh list)."""
        return [*self.data, *self.controls]

    @property
    def operands(self) -> list[Value]:
        """The operands of the merged fragment, control operands last (a fresh list)."""
        if self._data is None:
            return self.first.operands
        return [slot.value for slot in self.slots]


class Groups:
    """The groups of a function: at first every fragment that is added is one of its own."""

    def __init__(self) -> None:
        self._group: dict[Op, Group] = {}
        self._first: dict[Op, Group] = {}
        self._stamp = 0
        #: The results of fragments that were built, by the results that they stand for.
        self._built: dict[Value, Value] = {}
        self._new_uses: dict[Slot, Use] = {}
        #: The last of the uses at the beginning of the list of a value that are by its own group.
        self._inside: dict[Value, Use] = {}

    def add(self, fragment: FragmentOp, number: int | None) -> Group:
        """Return a group of one fragment at place `number`."""
        group = self._first[fragment] = self._group[fragment] = Group(fragment, number)
        return group

    def of(self, op: Op) -> Group | None:
        """Return the group of a fragment; None for other ops and for fragments that were not added."""
        return self._group.get(op)

    def outside_uses(self, group: Group, value: Value) -> Iterator[Use]:
        """Yield the uses of a result of the group by ops that are not in it, in no order.

        Uses by members are passed over once for all: a member stays one.
        """
        group_of, passed = self._group, self._inside.get(value)
        use = value.first_use if passed is None or passed.owner.block is None else passed.next
        while use is not None and group_of.get(use.owner) is group:
            passed = self._inside[value] = use
            use = use.next
        while use is not None:
            if group_of.get(use.owner) is not group:
                yield use
            use = use.next

    def users(self, group: Group) -> dict[Op | Group, None]:
        """Return the groups and other ops that use a result of the group, in no order."""
        result: dict[Op | Group, None] = {}
        group_of = self._group
        for value in group.results:
            use = value.first_use
            while use is not None:
                result[group_of.get(use.owner, use.owner)] = None
                use = use.next
        result.pop(group, None)
        return result

    def slot_of(self, use: Use) -> Slot:
        """Return the operand of a group that a use by a member has become."""
        return self._first[use.owner].own[use.index].final()

    # Uses in order.

    def uses_of(self, value: Value) -> list[tuple[Group | Op, Use]]:
        """Return the uses of the value, newest first, as they would be if each merge had been carried out.

        Each comes with the group or other op that uses the value; a merged group uses a value once per operand.
        """
        definer = value.defining_op
        group = None if definer is None else self._group.get(definer)
        line: deque[tuple[Group | Op, Use]] = deque()
        merged: dict[Slot, tuple[Group, Use]] = {}
        group_of, use = self._group, value.first_use
        while use is not None:
            user = group_of.get(use.owner)
            if user is None:
                line.append((use.owner, use))
            elif user is not group:
                if user.stamps:
                    merged.setdefault(self.slot_of(use), (user, use))
                else:
                    line.append((user, use))
            use = use.next
        for slot in sorted(merged, key=lambda slot: (merged[slot][0].stamp, slot.key)):
            user, use = merged[slot]
            if self._turns(value, user.stamp) % 2:
                line.append((user, use))
            else:
                line.appendleft((user, use))
        return list(reversed(line) if len(line) > 1 and self._turns(value, self._stamp) % 2 else line)

    def _turns(self, value: Value, until: int) -> int:
        """Return how often the merges up to that time turned the use list of the value around."""
        definer = value.defining_op
        group = None if definer is None else self._first.get(definer)
        turns = since = 0
        while group is not None:
            turns += max(0, bisect.bisect_right(group.stamps, until) - since)
            if group.joined is None:
                break
            group, since = group.joined
        return turns

    # Merging.

    def merge(
        self, producer: Group, consumer: Group, *, at_consumer: bool, attrs: Mapping[str, Attribute] | None = None
    ) -> Group:
        """Return the group whose fragment is the merge of the two, at the place of one of them.

        `attrs` are its discardable attributes; by default it has what the two say about microbatches and
        inference.
        """
        counts = producer.data.live, consumer.data.live
        check_mergeable(producer.label, consumer.label, counts)
        place = consumer if at_consumer else producer
        anchor, number = place.anchor, place.number
        controls: list[Slot] = []
        for group, other in ((producer, consumer), (consumer, producer)):
            for slot in group.controls:
                slot.inside = self._defined_by(slot.value, other)
            controls += [slot for slot in group.controls if not slot.inside]
        read = [slot.value for slot in consumer.controls if slot.inside]
        single = self.single_use(producer, consumer)
        if single is None:
            data, inside = producer.data.joined(consumer.data, producer.results.keys())
            read += inside
        else:
            (own,) = producer.data
            data = consumer.data
            read.append(single.value)
            data.put_in_place(own, single)
        label = _merged_label(producer.label, consumer.label)
        if attrs is None:
            _add_merged_attrs(label, producer.label, consumer.label)
        else:
            label.attrs.update(attrs)
        if controls:
            label.attrs[CONTROL_START] = IntegerAttr.get(data.live, "i64")
        read += self._unread(producer)
        unread = self._unread(consumer)
        into, other = (producer, consumer) if producer.size > consumer.size else (consumer, producer)
        for member in other.members:
            self._group[member] = into
        for value in read:
            if value in producer.results and next(self.outside_uses(into, value), None) is None:
                del producer.results[value]
        if into is consumer:
            into.members.extendleft(reversed(producer.members))
            for value in reversed(producer.results):
                into.results[value] = None
                into.results.move_to_end(value, last=False)
        else:
            into.members.extend(consumer.members)
            into.results.update(consumer.results)
        into.unread = unread
        other.joined = (into, len(into.stamps))
        self._stamp += 1
        into.stamps.append(self._stamp)
        into.set_operands(data, controls)
        into.label, into.anchor, into.number = label, anchor, number
        return into

    def _defined_by(self, value: Value, group: Group) -> bool:
        definer = value.defining_op
        return definer is not None and self._group.get(definer) is group

    def _unread(self, group: Group) -> list[Value]:
        """Return the results that nothing outside of the group reads."""
        if group.unread is None:
            group.unread = [v for v in group.results if next(self.outside_uses(group, v), None) is None]
        return group.unread

    def single_use(self, producer: Group, consumer: Group) -> Slot | None:
        """Return the operand of `consumer` that is the only use of the only result of a one-operand `producer`."""
        if producer.controls or consumer.controls:
            return None
        if len(producer.results) != 1 or producer.data.live != 1:
            return None
        result: Slot | None = None
        for use in self.outside_uses(producer, next(iter(producer.results))):
            if self._group.get(use.owner) is not consumer:
                return None
            slot = self.slot_of(use)
            if result is not None and slot is not result:
                return None
            result = slot
        return result

    # Building.

    def build(self, rewriter: Rewriter | None = None) -> list[FragmentOp]:
        """Replace the members of every group by one fragment; return these."""
        groups = [group for group in dict.fromkeys(self._group.values()) if group.stamps]
        merged = [group for group in groups if function_around(group.anchor)]  # not in an erased loop
        if not merged:
            return []
        # Only the use lists of results are turned around.  Those of other operands get the new uses in front, in
        # the order in which fragments and operands are made here, which is their order in `uses_of`.
        results = (value for group in merged for value in group.results if not _used_once(value))
        orders = [(value, [use for _, use in self.uses_of(value)]) for value in results]
        slots = {use: self.slot_of(use) for _, uses in orders for use in uses if use.owner in self._group}
        wanted = set(slots.values())
        rewriter = rewriter or Rewriter()
        fragments = [self._build(group, wanted, rewriter) for group in sorted(merged, key=lambda group: group.stamp)]
        for value, uses in orders:
            value = self._built.get(value, value)
            order = [self._new_uses.get(slots[use], use) if use in slots else use for use in uses]
            if order != value.uses:
                for one in reversed(order):
                    one.set(value)
        return fragments

    def _build(self, group: Group, wanted: set[Slot], rewriter: Rewriter) -> FragmentOp:
        slots = group.slots
        position = {slot: i for i, slot in enumerate(slots)}
        inside: dict[Value, int] = {}
        sources: list[tuple[int, ...]] = []
        for member in group.members:
            row: list[int] = []
            args = self._first[member].own[: len(member.body.block.args)]
            for use, slot in zip(member.operand_uses, args, strict=False):
                made = inside.get(use.value)
                if made is not None:
                    row.append(-1 - made)
                else:
                    row.append(position[slot if slot.same is None else slot.final()])
            sources.append(tuple(row))
            for result in member.results:
                inside[result] = len(inside)
        returned = tuple([inside[value] for value in group.results])
        label, built = group.label, self._built
        fragment = make_op(
            "mpmd.fragment",
            [built.get(slot.value, slot.value) for slot in slots] if built else [s.value for s in slots],
            [value.type for value in group.results],
            props=label.props,
            attrs=label.attrs,
            regions=[merged_body(tuple([member.body for member in group.members]), tuple(sources), returned)],
            loc=label.loc,
        )
        if wanted:
            for slot, use in zip(slots, fragment.operand_uses, strict=True):
                if slot in wanted:
                    self._new_uses[slot] = use
        rewriter.insert_before(group.anchor, fragment)
        for new, value in zip(fragment.results, group.results, strict=True):
            built[value] = new
            rewriter.replace_all_uses(value, new)
        for member in reversed(group.members):
            rewriter.erase(member)
        assert isinstance(fragment, FragmentOp)
        cover_transferred_results(fragment)
        return fragment


def merge_fragments(producer: FragmentOp, consumer: FragmentOp, rewriter: Rewriter | None = None) -> FragmentOp:
    """Merge the two into a new fragment at the place of `consumer` and return it.

        %0 = mpmd.fragment<mesh="m", origin=["f"]> (%a) (%x) { y = f(x); return y }
        %1 = mpmd.fragment<mesh="m", origin=["g"]> (%0, %b) (%x, %y) { z = g(x, y); return z }
    becomes
        %1 = mpmd.fragment<mesh="m", origin=["f", "g"]> (%a, %b) (%x, %y) { u = f(x); z = g(u, y); return z }

    All users of `producer` must come at or behind `consumer`, unless the caller moves the result.  The new
    fragment has the origins of both, the mesh and the stage; every other attribute is dropped.
    Raises `MpmdError` when meshes or stages differ.
    """
    groups = Groups()
    groups.merge(groups.add(producer, None), groups.add(consumer, None), at_consumer=True, attrs={})
    (merged,) = groups.build(rewriter)
    return merged


def _used_once(value: Value) -> bool:
    first = value.first_use
    return first is None or first.next is None


def _merged_label(producer: FragmentOp, consumer: FragmentOp) -> FragmentOp:
    """Return a fragment without body that has mesh, origins, stage and location of the merge of the two."""
    props = dict(producer.props)
    props.pop("in_shardings", None)
    props.pop("out_shardings", None)
    if consumer.origin:
        props["origin"] = origin_union(producer, consumer)
    if producer.stage is None and consumer.stage is not None:
        props["stage_id"] = consumer.props["stage_id"]
    label = make_op("mpmd.fragment", props=props, regions=[_EMPTY], loc=fused(producer.loc, consumer.loc))
    assert isinstance(label, FragmentOp)
    return label


def _add_merged_attrs(label: FragmentOp, producer: FragmentOp, consumer: FragmentOp) -> None:
    set_call_counter(label, merged_call_counter(producer, consumer))
    inferred_by = union_inferred_by(producer, consumer)
    if inferred_by is not None and not producer.is_user and not consumer.is_user:
        label.attrs["mpmd.inferred_by"] = inferred_by
    block = producer.attrs.get(BLOCK) or consumer.attrs.get(BLOCK)
    if block is not None:
        label.attrs[BLOCK] = block
