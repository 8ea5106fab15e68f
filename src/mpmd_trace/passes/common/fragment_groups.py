"""Groups of fragments that are to become one fragment.

Merging a long chain pair by pair would build each intermediate body and operand list.  A group records what
the merged fragment would be - its operands, results and label in order - at a cost of the smaller part per
merge; the fragments stay in the program until `build` replaces them, with a body that is made once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ...ir.attributes import ArrayAttr, IntegerAttr
from ...ir.bodies import BodyBuilder
from ...ir.core import BlockArg, Op, Use, Value, make_op
from ...ir.location import fused
from ...ir.ops import FragmentOp
from ..control_dependencies import CONTROL_START
from ..fragment_info import origin_union, set_call_counter
from .merge import check_mergeable, merged_body, merged_call_counter, merged_inferred_by

__all__ = ["Group", "Groups"]

_EMPTY = BodyBuilder().finish([])


class _Slot:
    """An operand of a group's fragment; `same` is the slot that took over, `inside`: a member makes it."""

    __slots__ = ("inside", "same", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.same: _Slot | None = None
        self.inside = False

    @property
    def gone(self) -> bool:
        return self.inside or self.same is not None

    def final(self) -> _Slot:
        slot = self
        while slot.same is not None:
            if slot.same.same is not None:
                slot.same = slot.same.same
            slot = slot.same
        return slot


class Group:
    """Fragments that become one.

    `label` is a fragment with the attributes of the result (the fragment itself while there is only one),
    `number` the place among the ops of the block, `anchor` the member that stands there.
    """

    __slots__ = (
        "anchor",
        "by_value",
        "controls",
        "count",
        "label",
        "live",
        "members",
        "merges",
        "number",
        "repeated",
        "results",
        "slots",
        "stamp",
    )

    def __init__(self, fragment: FragmentOp, number: int | None, slots: list[_Slot]) -> None:
        self.label = fragment
        self.anchor = fragment
        self.number = number
        self.members: deque[FragmentOp] = deque([fragment])
        self.slots: deque[_Slot] = deque(slots)
        self.live = len(slots)
        self.by_value: dict[Value, _Slot] = {}
        for slot in slots:
            self.by_value.setdefault(slot.value, slot)
        #: Whether a value has several slots.
        self.repeated = len(self.by_value) < len(slots)
        self.controls = fragment.operands[len(slots) :]
        #: The results, each with the number of merges of this group that happened before it was there.
        self.results: deque[tuple[Value, int]] = deque((r, 0) for r in fragment.results)
        self.merges = 0
        self.stamp = 0

    @property
    def operands(self) -> Iterator[Value]:
        """What the merged fragment needs, control operands last."""
        for slot in self.slots:
            if not slot.gone:
                yield slot.value
        yield from self.controls


class Groups:
    """The groups of a function: at first every fragment that is added is one of its own."""

    def __init__(self) -> None:
        self._group: dict[Op, Group] = {}
        self._args: dict[FragmentOp, list[_Slot]] = {}
        self._stamp = 0
        #: The results of fragments that were built, by the results that they stand for.
        self._built: dict[Value, Value] = {}

    def add(self, fragment: FragmentOp, number: int | None) -> Group:
        """A group of one fragment at place `number`."""
        slots = [_Slot(v) for v in fragment.operands[: len(fragment.body.block.args)]]
        self._args[fragment] = slots
        group = self._group[fragment] = Group(fragment, number, slots)
        return group

    def of(self, op: Op) -> Group | None:
        """The group of a fragment; None for other ops and for fragments that were not added."""
        return self._group.get(op)

    def outside_uses(self, group: Group, value: Value) -> Iterator[Use]:
        """The uses of a result by ops that are not in the group."""
        for use in value.uses:
            if self._group.get(use.owner) is not group:
                yield use

    def users(self, group: Group) -> dict[Op | Group, None]:
        """The groups and other ops that use a result of the group."""
        found: dict[Op | Group, None] = {}
        for value, _ in group.results:
            for use in self.outside_uses(group, value):
                found[self._group.get(use.owner, use.owner)] = None
        return found

    # Merging.

    def merge(self, producer: Group, consumer: Group, *, at_consumer: bool) -> Group:
        """The group whose fragment is the merge of the two, at the place of one of them."""
        check_mergeable(producer.label, consumer.label)
        place = consumer if at_consumer else producer
        anchor, number = place.anchor, place.number
        label = _merged_label(producer.label, consumer.label)
        slot = self._single_use(producer, consumer)
        kept: list[tuple[Value, int]] = []
        if slot is None:
            kept = [
                entry
                for entry in producer.results
                if any(
                    self._group.get(use.owner) is not consumer
                    for use in self.outside_uses(producer, entry[0])
                )
            ]
            controls = [v for v in producer.controls if v.defining_op not in consumer.members]
            controls += [v for v in consumer.controls if v.defining_op not in producer.members]
        else:
            controls = []
        into = consumer if len(consumer.members) >= len(producer.members) else producer
        other = producer if into is consumer else consumer
        if slot is None:
            self._join_operands(producer, consumer)
        else:
            _put_in_front(producer, consumer, slot)
        # The number of redirections that a result has seen is the same before and after.
        shift = into.merges - other.merges
        if into is consumer:
            into.members.extendleft(reversed(producer.members))
            into.results.extendleft((v, before + shift) for v, before in reversed(kept))
        else:
            into.members.extend(consumer.members)
            into.results = deque(kept)
            into.results.extend((v, before + shift) for v, before in consumer.results)
        for member in other.members:
            self._group[member] = into
        into.slots, into.live = consumer.slots, consumer.live
        into.by_value, into.repeated = consumer.by_value, consumer.repeated
        into.label, into.anchor, into.number, into.controls = label, anchor, number, controls
        into.merges += 1
        self._stamp += 1
        into.stamp = self._stamp
        return into

    def _single_use(self, producer: Group, consumer: Group) -> _Slot | None:
        """The operand of `consumer` that is the only use of the only result of a one-operand `producer`."""
        if producer.controls or consumer.controls:
            return None
        if len(producer.results) != 1 or producer.live != 1:
            return None
        found: _Slot | None = None
        for use in self.outside_uses(producer, producer.results[0][0]):
            if self._group.get(use.owner) is not consumer:
                return None
            assert isinstance(use.owner, FragmentOp)
            slot = self._args[use.owner][use.index].final()
            if found is not None and slot is not found:
                return None
            found = slot
        return found

    def _join_operands(self, producer: Group, consumer: Group) -> None:
        """Make the operands of `consumer` those of the producer, then its own, each once."""
        for group in (producer, consumer):
            if group.repeated:
                _unify(group)
        mine, given = producer.by_value, consumer.by_value
        for value, _ in producer.results:
            slot = given.pop(value, None)
            if slot is not None:
                slot.inside = True
        if len(mine) <= len(given):
            for value, slot in mine.items():
                later = given.get(value)
                if later is not None:
                    later.same = slot
                given[value] = slot
            front = [slot for slot in producer.slots if not slot.gone]
            consumer.slots.extendleft(reversed(front))
        else:
            back = [slot for slot in consumer.slots if not slot.gone]
            for slot in back:
                earlier = mine.setdefault(slot.value, slot)
                if earlier is not slot:
                    slot.same = earlier
                else:
                    producer.slots.append(slot)
            consumer.slots, consumer.by_value = producer.slots, mine
        consumer.live = len(consumer.by_value)

    # Building.

    def build(self) -> bool:
        """Replace the members of every group by one fragment.  Says whether there was anything to do."""
        merged = [group for group in dict.fromkeys(self._group.values()) if group.merges]
        for group in sorted(merged, key=lambda group: group.stamp):
            self._build(group)
        return bool(merged)

    def _build(self, group: Group) -> None:
        slots = [slot for slot in group.slots if not slot.gone]
        position = {slot: i for i, slot in enumerate(slots)}
        inside: dict[Value, int] = {}
        sources: list[tuple[int, ...]] = []
        for member in group.members:
            row: list[int] = []
            for value, slot in zip(member.operands, self._args[member], strict=False):
                made = inside.get(value)
                row.append(-1 - made if made is not None else position[slot.final()])
            sources.append(tuple(row))
            for result in member.results:
                inside[result] = len(inside)
        returned = tuple(inside[value] for value, _ in group.results)
        label = group.label
        if group.controls:
            label.attrs[CONTROL_START] = IntegerAttr.get(len(slots), "i64")
        fragment = make_op(
            "mpmd.fragment",
            [self._built.get(v, v) for v in group.operands],
            [value.type for value, _ in group.results],
            props=label.props,
            attrs=label.attrs,
            regions=[merged_body([member.body for member in group.members], sources, returned)],
            loc=label.loc,
        )
        assert group.anchor.block is not None
        group.anchor.block.insert_before(group.anchor, fragment)
        for new, (value, before) in zip(fragment.results, group.results, strict=True):
            self._built[value] = new
            if (group.merges - before) % 2 == 0:  # every merge would have turned the use list around
                turned = BlockArg(value.type, 0, value.block or group.anchor.block)
                value.replace_all_uses_with(turned)
                turned.replace_all_uses_with(new)
            else:
                value.replace_all_uses_with(new)
        for member in reversed(group.members):
            member.erase()


def _merged_label(producer: FragmentOp, consumer: FragmentOp) -> FragmentOp:
    props = dict(producer.props)
    props.pop("in_shardings", None)
    props.pop("out_shardings", None)
    if consumer.origin:
        props["origin"] = ArrayAttr.get(origin_union(producer, consumer))
    if producer.stage is None and consumer.stage is not None:
        props["stage_id"] = consumer.props["stage_id"]
    label = make_op(
        "mpmd.fragment", props=props, regions=[_EMPTY], loc=fused(producer.loc, consumer.loc)
    )
    assert isinstance(label, FragmentOp)
    set_call_counter(label, merged_call_counter(producer, consumer))
    inferred_by = merged_inferred_by(producer, consumer)
    if inferred_by is not None:
        label.attrs["mpmd.inferred_by"] = inferred_by
    return label


def _put_in_front(producer: Group, consumer: Group, slot: _Slot) -> None:
    """The producer's only operand takes the place of its only result."""
    (own,) = (s for s in producer.slots if not s.gone)
    del consumer.by_value[slot.value]
    own.same = slot
    slot.value = own.value
    if own.value in consumer.by_value:
        consumer.repeated = True
    else:
        consumer.by_value[own.value] = slot


def _unify(group: Group) -> None:
    """Leave one slot, the first, for each value."""
    group.by_value = {}
    for slot in group.slots:
        if not slot.gone:
            first = group.by_value.setdefault(slot.value, slot)
            if first is not slot:
                slot.same = first
    group.slots = deque(slot for slot in group.slots if not slot.gone)
    group.live = len(group.by_value)
    group.repeated = False
