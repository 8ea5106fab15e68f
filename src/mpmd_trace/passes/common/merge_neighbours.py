"""The loop that three merge passes share: from the last fragment to the first, merge each with consumers.

A pass supplies which pairs may be merged and how the candidate is chosen.  Transfers and other ops are never
moved; unused pure fragments are erased on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import error_at
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.passes.common.merge import merge_fragments, merged_call_counter, merged_inferred_by
from mpmd_trace.passes.fragment_info import describe_fragment, set_call_counter
from mpmd_trace.passes.greedy import walk_mutable

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
    #: The fragments that may be merged.
    mergeable: set[Op] = dataclasses.field(default_factory=set)

    def run(self) -> bool:
        fragments = self.fragments()
        self.mergeable.update(fragments)
        for fragment in fragments:
            self.note(fragment, 1)
        changed = False
        for fragment in reversed(fragments):
            if not fragment.has_uses and is_pure(fragment):
                self.note(fragment, -1)
                fragment.erase()
                changed = True
            elif self.prospects is None or self.prospects.possible(fragment):
                while (merged := self.merge(fragment)) is not None:
                    fragment, changed = merged, True
        return changed

    def note(self, fragment: FragmentOp, change: int) -> None:
        if self.prospects is not None:
            self.prospects.note(fragment, change)

    def fragments(self) -> list[FragmentOp]:
        """Return the fragments, in order.  When some may be in loops, all are visited: those in loops are refused."""
        region = self.function.regions[0]
        if len(region.blocks) == 1 and all(isinstance(op, FragmentOp) or not op.regions for op in region.block):
            fragments = [op for op in region.block if isinstance(op, FragmentOp)]
            return [op for op in fragments if STAYS not in op.attrs and not self.stays(op)]
        self.prospects = None
        return [op for op in walk_mutable(region) if isinstance(op, FragmentOp)]

    def merge(self, producer: FragmentOp) -> FragmentOp | None:
        """Merge the fragment with its candidate, if there is one and the order of the ops allows it."""
        consumer = self.candidate(producer)
        if consumer is None:
            return None
        self.check_order(producer, consumer, *producer.users)
        if any(user.is_before(consumer) for user in producer.users):
            makers = (value.defining_op for value in consumer.operands)
            if not all(op is None or op is producer or op.is_before(producer) for op in makers):
                return None
            consumer.move_after(producer)
        self.note(producer, -1)
        self.note(consumer, -1)
        counter, inferred_by = merged_call_counter(producer, consumer), merged_inferred_by(producer, consumer)
        merged = merge_fragments(producer, consumer)
        set_call_counter(merged, counter)
        if inferred_by is not None:
            merged.attrs["mpmd.inferred_by"] = inferred_by
        self.mergeable.add(merged)
        self.note(merged, 1)
        return merged

    def candidate(self, producer: FragmentOp) -> FragmentOp | None:
        following = self.next_on_mesh(producer)
        if self.mode == "sideways":
            return following if following is not None and self.allowed(producer, following, True) else None
        consumers: list[FragmentOp] = []
        for user in producer.users:
            if user.block is not producer.block:
                raise error_at(
                    producer,
                    f"{describe_fragment(producer)} is used inside of another op ({user.name}); unroll loops "
                    "before fragments are merged",
                )
            if user in self.mergeable:
                assert isinstance(user, FragmentOp)
                consumers.append(user)
        if len(consumers) > 1:
            self.check_order(*consumers)
        first: FragmentOp | None = None
        for consumer in dict.fromkeys(consumers):
            is_earlier = first is None or consumer.is_before(first)
            if is_earlier and (self.mode == "closest" or self.allowed(producer, consumer, consumer is following)):
                first = consumer
        if first is None or (self.mode == "closest" and not self.allowed(producer, first, first is following)):
            return None
        return first

    def next_on_mesh(self, fragment: FragmentOp) -> FragmentOp | None:
        """Return the next fragment on the mesh behind `fragment`."""
        op = fragment.next_op
        while op is not None and not (op in self.mergeable and isinstance(op, FragmentOp) and op.mesh == fragment.mesh):
            op = op.next_op
        return op

    def check_order(self, *ops: Op) -> None:
        """Raise `MpmdError` for ops in loops, which have no order."""
        for op in ops:
            if op.block not in self.function.regions[0].blocks[:1]:
                text = f"'{op.name}' lies inside of a loop; unroll loops before fragments are merged"
                raise error_at(op, text)
