"""Groups of fragments that are to become one fragment.

Merging a long chain pair by pair would build each intermediate body and operand list.  A group records what
the merged fragment would be - its operands, results and label in order - at a cost of the smaller part per
merge; the fragments stay in the program until `build` replaces them, with a body that is made once.

The order of uses, which some passes go by, is that of merging pair by pair: each merge would make the operands of
the new fragment the newest uses of their values and turn the use lists of its results around.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator

from mpmd_trace.diagnostics.location import fused
from mpmd_trace.ir.attributes import IntegerAttr
from mpmd_trace.ir.bodies import BodyBuilder
from mpmd_trace.ir.core import Op, Use, Value, make_op
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.common.body_rewrites import cover_transferred_results
from mpmd_trace.passes.common.group_operands import GroupOperands, Slot
from mpmd_trace.passes.common.merge import check_mergeable, merged_body, merged_call_counter, merged_inferred_by
from mpmd_trace.passes.control_dependencies import CONTROL_START
from mpmd_trace.passes.fragment_info import origin_union, set_call_counter

_EMPTY = BodyBuilder().finish([])


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
        "outputs",
        "stamps",
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
        #: The results of the members, in no order, but for some that are no results of the group.
        self.outputs: list[Value] = list(fragment.results)
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
            self._data = GroupOperands(self.own[: len(self.first.body.block.args)])
        return self._data

    @property
    def controls(self) -> list[Slot]:
        """The control operands."""
        return self._controls if self._data is not None else self.own[len(self.first.body.block.args) :]

    def set_operands(self, data: GroupOperands, controls: list[Slot]) -> None:
        """Say what the merged fragment reads."""
        self._data, self._controls = data, controls

    @property
    def size(self) -> int:
        """What it costs to add it to another group."""
        return len(self.members) + len(self.outputs)

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
        """What the merged fragment needs, control operands last (a fresh list)."""
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
        #: The last of the uses at the beginning of the list of a value that are by its own group.
        self._inside: dict[Value, Use] = {}

    def add(self, fragment: FragmentOp, number: int | None) -> Group:
        """Return a group of one fragment at place `number`."""
        group = self._first[fragment] = self._group[fragment] = Group(fragment, number)
        return group

    def of(self, op: Op | None) -> Group | None:
        """Return the group of a fragment; None for other ops and for fragments that were not added."""
        return None if op is None else self._group.get(op)

    def outside_uses(self, group: Group, value: Value) -> Iterator[Use]:
        """Yield the uses of a result of the group by ops that are not in it, in no order.

        Uses by members are passed over once for all: a member stays one.
        """
        group_of, passed = self._group, self._inside.get(value)
        use = value.first_use if passed is None else passed.next
        while use is not None and group_of.get(use.owner) is group:
            passed = self._inside[value] = use
            use = use.next
        while use is not None:
            if group_of.get(use.owner) is not group:
                yield use
            use = use.next

    # Merging.

    def merge(self, producer: Group, consumer: Group, *, at_consumer: bool) -> Group:
        """Return the group whose fragment is the merge of the two, at the place of one of them."""
        check_mergeable(producer.label, consumer.label, (producer.data.live, consumer.data.live))
        place = consumer if at_consumer else producer
        anchor, number = place.anchor, place.number
        controls = [slot for slot in producer.controls if self.of(slot.value.defining_op) is not consumer]
        controls += [slot for slot in consumer.controls if self.of(slot.value.defining_op) is not producer]
        single = self._single_use(producer, consumer)
        if single is None:
            made = producer.outputs
            data = producer.data.joined(consumer.data, made, lambda value: self.of(value.defining_op) is producer)
        else:
            (own,) = producer.data
            data = consumer.data
            data.put_in_place(own, single)
        label = _merged_label(producer.label, consumer.label)
        if controls:
            label.attrs[CONTROL_START] = IntegerAttr.get(data.live, "i64")
        into, other = (producer, consumer) if producer.size > consumer.size else (consumer, producer)
        for member in other.members:
            self._group[member] = into
        if into is consumer:
            into.members.extendleft(reversed(producer.members))
        else:
            into.members.extend(consumer.members)
        into.outputs += other.outputs
        other.joined = (into, len(into.stamps))
        self._stamp += 1
        into.stamps.append(self._stamp)
        into.set_operands(data, controls)
        into.label, into.anchor, into.number = label, anchor, number
        return into

    def _single_use(self, producer: Group, consumer: Group) -> Slot | None:
        """Return the operand of `consumer` that is the only use of the only result of a one-operand `producer`."""
        if producer.controls or consumer.controls or producer.data.live != 1:
            return None
        value = self._only_result(producer)
        if value is None:
            return None
        result: Slot | None = None
        for use in self.outside_uses(producer, value):
            if self._group.get(use.owner) is not consumer:
                return None
            slot = self._first[use.owner].own[use.index].final()
            if result is not None and slot is not result:
                return None
            result = slot
        return result

    def _only_result(self, group: Group) -> Value | None:
        """Return the result, if there is just one; outputs that are none are dropped."""
        result: Value | None = None
        while group.outputs:
            value = group.outputs.pop()
            if self._is_result(group, value):
                if result is not None:
                    group.outputs += (result, value)
                    return None
                result = value
        group.outputs += [] if result is None else [result]
        return result

    def _is_result(self, group: Group, value: Value) -> bool:
        """Return whether the merged fragment returns what a member does.

        Each merge keeps all results of the consumer, and those of the producer that something else reads.
        """
        return value.defining_op is group.members[-1] or next(self.outside_uses(group, value), None) is not None

    # Building.

    def build(self) -> bool:
        """Replace the members of every group by one fragment.  Says whether there was anything to do."""
        merged = [group for group in dict.fromkeys(self._group.values()) if group.stamps]
        merged.sort(key=lambda group: group.stamp)
        results: dict[Group, list[Value]] = {
            group: [v for member in group.members for v in member.results if self._is_result(group, v)]
            for group in merged
        }
        # Only the use lists of results are turned around.  Those of other operands get the new uses in front, in
        # the order in which fragments and operands are made here.
        repeated = [value for values in results.values() for value in values if not value.has_one_use]
        other_uses = [[use for use in value.uses if not self._is_merged(use.owner)] for value in repeated]
        stamps: dict[Op, int] = {}
        for group in merged:
            stamps[self._build(group, results[group])] = group.stamp
        for value, others in zip(repeated, other_uses, strict=True):
            self._order_uses(value, others, stamps)
        return bool(merged)

    def _is_merged(self, op: Op) -> bool:
        group = self._group.get(op)
        return group is not None and bool(group.stamps)

    def _order_uses(self, value: Value, others: list[Use], stamps: dict[Op, int]) -> None:
        """Put the uses of a result in the order that they have after all merges; `others` are those by other ops."""
        new = self._built[value]
        uses = [(0, use) for use in reversed(others)]
        by_merged = [(stamps[use.owner], use.index, use) for use in new.uses if use.owner in stamps]
        uses += [(stamp, use) for stamp, _, use in sorted(by_merged, key=lambda entry: entry[:2])]
        line: deque[Use] = deque()  # newest first, or last after an odd number of turns
        for stamp, use in uses:
            if self._turns(value, stamp) % 2:
                line.append(use)
            else:
                line.appendleft(use)
        if self._turns(value, self._stamp) % 2:
            line.reverse()
        if list(line) != new.uses:
            for use in reversed(line):
                use.set(new)

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

    def _build(self, group: Group, results: list[Value]) -> FragmentOp:
        slots = group.slots
        position = {slot: i for i, slot in enumerate(slots)}
        inside: dict[Value, int] = {}
        sources: list[tuple[int, ...]] = []
        for member in group.members:
            args = self._first[member].own[: len(member.body.block.args)]
            made = [inside.get(use.value) for use in member.operand_uses[: len(args)]]
            sources.append(
                tuple([position[slot.final()] if at is None else -1 - at for slot, at in zip(args, made, strict=True)])
            )
            for result in member.results:
                inside[result] = len(inside)
        returned = tuple([inside[value] for value in results])
        label, built = group.label, self._built
        fragment = make_op(
            "mpmd.fragment",
            [built.get(slot.value, slot.value) for slot in slots],
            [value.type for value in results],
            props=label.props,
            attrs=label.attrs,
            regions=[merged_body(tuple([member.body for member in group.members]), tuple(sources), returned)],
            loc=label.loc,
        )
        assert group.anchor.block is not None
        group.anchor.block.insert_before(group.anchor, fragment)
        for new, value in zip(fragment.results, results, strict=True):
            built[value] = new
            value.replace_all_uses_with(new)
        for member in reversed(group.members):
            member.erase()
        assert isinstance(fragment, FragmentOp)
        cover_transferred_results(fragment)
        return fragment


def _merged_label(producer: FragmentOp, consumer: FragmentOp) -> FragmentOp:
    """Return a fragment without body that has the attributes and the location of the merge of the two."""
    props = dict(producer.props)
    props.pop("in_shardings", None)
    props.pop("out_shardings", None)
    if consumer.origin:
        props["origin"] = origin_union(producer, consumer)
    if producer.stage is None and consumer.stage is not None:
        props["stage_id"] = consumer.props["stage_id"]
    label = make_op("mpmd.fragment", props=props, regions=[_EMPTY], loc=fused(producer.loc, consumer.loc))
    assert isinstance(label, FragmentOp)
    set_call_counter(label, merged_call_counter(producer, consumer))
    inferred_by = merged_inferred_by(producer, consumer)
    if inferred_by is not None:
        label.attrs["mpmd.inferred_by"] = inferred_by
    return label
