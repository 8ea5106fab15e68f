"""Which expressions are computed once, or once in a phase: those for which that is worth the memory."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from mpmd_trace.ir.core import Op, Use, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.hoisting.cost import LAYOUT, HoistCost
from mpmd_trace.passes.hoisting.gathered_params import Copy, Timeline
from mpmd_trace.passes.hoisting.value_numbering import Expression, KnownExpressions, ValueNumbering, are_of_several

#: How long gathered copies are kept: for the step; for a phase, in which fragments of a mesh that read them follow on
#: each other; for a microbatch; or as memory allows.
Gather = Literal["auto", "step", "phase", "microbatch"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """The bytes of a device; the work that launching a program takes; the least work of an expression."""

    bytes: float
    launch: float
    least: float
    gather: Gather = "auto"


@dataclasses.dataclass(frozen=True)
class HoistChoice:
    """What is kept on a mesh; what would be worth it, but does not fit; what saves less than a program costs.

    each_time: gathers that are left with the microbatches because that was asked for.
    """

    kept: tuple[HoistedExpr, ...] = ()
    too_large: tuple[HoistedExpr, ...] = ()
    too_little: tuple[HoistedExpr, ...] = ()
    each_time: tuple[HoistedExpr, ...] = ()


def choose(
    fragments: Sequence[FragmentOp], numbering: ValueNumbering, worth: HoistCost, limits: Limits, timeline: Timeline
) -> HoistChoice:
    """Return what fragments of a mesh share and is worth keeping, in the memory that there is.

    As long as there is too much, a copy goes from where it is not read, or altogether: whatever costs least for its
    bytes.  Nothing is kept, if all of it saves less than launching a program takes, and no collective.
    """
    selection = Selection(*_read_from_outside(fragments, numbering), worth, limits.least)
    room = Room(timeline, limits.bytes, limits.launch)
    held: dict[Expression, Held] = {}
    too_large: list[HoistedExpr] = []
    each_time: list[HoistedExpr] = []
    while True:
        each: list[Expression] = []
        for one in selection.take_changes():
            held.pop(one, None)
            if one in selection.kept:
                held[one] = _hold(selection.kept[one], worth, limits, timeline)
                if _is_each_time(held[one], limits):
                    each.append(one)
            room.put(one, held.get(one))
        if each:
            each_time += [selection.kept[one] for one in each]
            selection.refuse(each)
            continue
        worst = room.fit()
        if worst is None:
            break
        too_large.append(selection.kept[worst])
        selection.refuse([worst])
    candidates = tuple(
        dataclasses.replace(h.kept, readers=h.copy.readers, saved=h.saved, starts=h.copy.starts, is_late=h.copy.is_late)
        for _, h in sorted(held.items(), key=lambda item: item[0].number)
    )
    large, asked = tuple(too_large), tuple(each_time)
    if not any(one.gathers for one in candidates) and sum(one.saved for one in candidates) < limits.launch:
        return HoistChoice((), large, candidates, asked)
    return HoistChoice(candidates, large, (), asked)


def _hold(kept: HoistedExpr, worth: HoistCost, limits: Limits, timeline: Timeline) -> Held:
    """Return a copy, which is there as long as was asked for."""
    copy = timeline.copy(kept.readers)
    if kept.gathers and limits.gather in ("phase", "microbatch"):
        copy.dropped.update(copy.gaps)
    is_movable = limits.gather == "auto" or not kept.gathers
    return Held(kept, copy, worth.work(kept.expression), is_movable)


def _is_each_time(held: Held, limits: Limits) -> bool:
    """Return whether it is gathered by each microbatch because that was asked for."""
    if not held.kept.gathers:
        return False
    return limits.gather == "microbatch" or (limits.gather == "phase" and held.saved <= 0)


def _read_from_outside(
    fragments: Sequence[FragmentOp], numbering: ValueNumbering
) -> tuple[dict[Expression, set[FragmentOp]], dict[Expression, set[FragmentOp]]]:
    """Return the expressions that anything but an expression reads, and those that fragments hand on, by fragment.

    A fragment that is given an expression, and makes others of it alone, does not read it.
    """
    readers: dict[Expression, set[FragmentOp]] = {}
    stored: dict[Expression, set[FragmentOp]] = {}
    own = set(fragments)

    def is_given(use: Use, one: Expression) -> bool:
        owner = use.owner
        if not isinstance(owner, FragmentOp) or owner not in own:
            return False
        return numbering.known[owner].values.get(owner.body.block.args[use.index]) is one

    alike: dict[int, list[FragmentOp]] = {}
    for fragment in fragments:
        alike.setdefault(id(numbering.known[fragment]), []).append(fragment)
    for group in alike.values():
        read, handed = _read_and_handed(group[0], numbering.known[group[0]])
        for one in read:
            readers.setdefault(one, set()).update(group)
        for one, index in handed:
            for fragment in group:
                uses = list(fragment.results[index].uses)
                if uses:
                    stored.setdefault(one, set()).add(fragment)
                if not all(is_given(use, one) for use in uses):
                    readers.setdefault(one, set()).add(fragment)
    return readers, stored


def _read_and_handed(
    fragment: FragmentOp, known: KnownExpressions
) -> tuple[dict[Expression, None], list[tuple[Expression, int]]]:
    """Return the expressions of a body that anything but an expression reads; those it returns, as which result."""
    terminator = fragment.body.block.terminator  # those of the regions of ops inside hand nothing out
    read = {one: None for (op, _), one in known.uses.items() if not _is_known(op, known.values)}
    handed: list[tuple[Expression, int]] = []
    for value, one in known.values.items():
        if one.value is not None:
            continue
        for use in value.uses:
            if use.owner is terminator:
                handed.append((one, use.index))
            elif not _is_known(use.owner, known.values) and (use.owner, use.index) not in known.uses:
                read[one] = None
    return read, handed


def _is_known(op: Op, values: Mapping[Value, Expression]) -> bool:
    return any(result in values for result in op.results)


@dataclasses.dataclass(frozen=True)
class HoistedExpr:
    """An expression that is computed in front of `starts`, and not by each fragment that wants it.

    bytes: what it takes; saved: the work (in bytes) that it saves in a step; gathers: whether that saves collectives.
    readers: the fragments that read it, in their order, the first of which is the first of `starts`.
    """

    expression: Expression
    bytes: float
    saved: float
    gathers: bool
    readers: tuple[FragmentOp, ...] = ()
    starts: tuple[FragmentOp, ...] = ()
    #: Whether it waits for its first reader, so that its memory is not taken before.
    is_late: bool = False


class Selection:
    """Users before operands: what is not worth it is computed each time, of operands that may be.

    Refusing an expression looks at its operands, and at nothing else again.
    """

    def __init__(
        self,
        wanted: Mapping[Expression, set[FragmentOp]],
        stored: Mapping[Expression, set[FragmentOp]],
        worth: HoistCost,
        least: float,
    ) -> None:
        """Take the expressions that something reads, and those that fragments hand on, with these fragments."""
        self._wanted, self._stored, self._worth, self._least = wanted, stored, worth, least
        self._refused: set[Expression] = set()
        self._changed: set[Expression] = set()
        self._start()

    def _start(self) -> None:
        self.kept: dict[Expression, HoistedExpr] = {}
        self._readers = {one: set(fragments) for one, fragments in self._wanted.items()}
        #: What is computed each time.
        self._repeated: set[Expression] = set()
        self._settle(self._readers)

    def refuse(self, expressions: Iterable[Expression]) -> None:
        """Keep none of these."""
        expressions = list(expressions)
        self._refused.update(expressions)
        self._settle(expressions)

    def take_changes(self) -> list[Expression]:
        """Return what has come to be kept, with other readers, or no longer since the last call, in their order."""
        changed = sorted(self._changed, key=lambda one: one.number)
        self._changed.clear()
        return changed

    def _settle(self, expressions: Iterable[Expression]) -> None:
        pending = [(-one.number, one) for one in expressions]
        heapq.heapify(pending)
        queued = {one for _, one in pending}
        while pending:
            one = heapq.heappop(pending)[1]
            queued.discard(one)
            own = self._readers[one]
            if one.value is not None:
                continue
            judged = None if one in self._refused else self._judge(one, own)
            if judged is not None and one in self._repeated:
                # More fragments read it than was thought, and its operands are no longer read for it.
                self._changed.update(self.kept)
                self._start()
                return
            if judged is not None:
                self.kept[one] = judged
                self._changed.add(one)
                continue
            if self.kept.pop(one, None) is not None:
                self._changed.add(one)
            self._repeated.add(one)
            for operand in one.operands:
                readers = self._readers.setdefault(operand, set())
                if not own <= readers:
                    readers |= own
                    if operand not in queued:
                        queued.add(operand)
                        heapq.heappush(pending, (-operand.number, operand))

    def _judge(self, one: Expression, readers: set[FragmentOp]) -> HoistedExpr | None:
        size, once = self._worth.bytes(one), self._worth.work(one)
        if math.isinf(size):
            return None
        stored = self._stored.get(one, set())
        is_layout = one.op is not None and one.op.name in LAYOUT
        is_stored = bool(stored) and once > 0  # it is kept anyway, and by each microbatch
        if not is_stored and (is_layout or once < max(size, 0.0 if self._worth.gathers(one) else self._least)):
            return None
        if not are_of_several(readers):
            return None
        saved = once * (self._worth.runs(readers | stored) - 1)
        return HoistedExpr(one, size, saved, self._worth.gathers(one), tuple(readers))


#: What an offer costs for each byte, the number of its expression, the gap in which the copy goes, if it does not go
#: altogether, the version of the copy, and the expression.
_Offer = tuple[float, int, tuple[int, ...], int, Expression]


@dataclasses.dataclass(frozen=True)
class Held:
    """An expression that is kept, its copy, and the work of making that, in bytes of memory traffic."""

    kept: HoistedExpr
    copy: Copy
    once: float
    #: Whether it may be dropped.
    is_movable: bool

    @property
    def saved(self) -> float:
        """The work that is saved when the copy is made again after each gap where it is dropped."""
        return self.kept.saved - self.once * self.copy.made_again


class Room:
    """The memory of a device in the course of a step.

    A change is as much work as what it changes: the offers at a time are a heap, which learns of changes when it is
    asked.
    """

    def __init__(self, timeline: Timeline, limit: float, launch: float) -> None:
        """Take the bytes of the device, and the work that launching a program takes."""
        self._timeline, self._limit, self._launch = timeline, limit, launch
        self._held: dict[Expression, Held] = {}
        self._version: dict[Expression, int] = {}
        self._changes: list[Expression] = []
        #: By time, with how many of the changes they know.
        self._offers: dict[int, tuple[list[_Offer], int]] = {}

    @functools.cached_property
    def _bytes(self) -> Any:
        """The bytes by time; counted once something is held."""
        import numpy as np  # late: `mpmd-trace opt` starts without it

        return np.array(self._timeline.base)

    @functools.cached_property
    def _movable_bytes(self) -> Any:
        import numpy as np  # late: `mpmd-trace opt` starts without it

        return np.zeros_like(self._bytes)

    @property
    def _is_limited(self) -> bool:
        return not math.isinf(self._limit)

    def put(self, one: Expression, held: Held | None) -> None:
        """Hold a copy in the place of the one before."""
        if not self._is_limited:
            return
        before = self._held.pop(one, None)
        if before is not None:
            self._count(before, -1)
        if held is not None:
            self._held[one] = held
            self._count(held, 1)
        self._note(one)

    def fit(self) -> Expression | None:
        """Drop copies in gaps until all fits; return the expression that has to be given up before, if one has to.

        Whatever costs least for its bytes goes from where there is too much.
        """
        import numpy as np  # late: `mpmd-trace opt` starts without it

        while self._is_limited and self._held and self._movable_bytes.any():
            at = int(np.argmax(np.where(self._movable_bytes > 0, self._bytes, -np.inf)))
            if self._bytes[at] <= self._limit:
                break
            _, _, gap, _, one = self._best(at)
            if not gap:
                return one
            held = self._held[one]
            self._count(held, -1)
            held.copy.dropped.update(gap)
            self._count(held, 1)
            self._note(one)
        return None

    def _count(self, held: Held, sign: int) -> None:
        for start, end in held.copy.spans():
            self._bytes[start : end + 1] += sign * held.kept.bytes
            if held.is_movable:
                self._movable_bytes[start : end + 1] += sign * held.kept.bytes

    def _note(self, one: Expression) -> None:
        self._version[one] = self._version.get(one, 0) + 1
        self._changes.append(one)

    def _best(self, at: int) -> _Offer:
        offers, seen = self._offers.get(at, ([], 0))
        for one in dict.fromkeys(self._changes[seen:]):
            for offer in self._offers_of(one, at):
                heapq.heappush(offers, offer)
        self._offers[at] = offers, len(self._changes)
        while offers[0][3] != self._version[offers[0][4]]:
            heapq.heappop(offers)
        return offers[0]

    def _offers_of(self, one: Expression, at: int) -> Iterator[_Offer]:
        held = self._held.get(one)
        if held is None or not held.is_movable or not held.copy.is_held(at):
            return
        size = max(held.kept.bytes, 1.0)
        yield held.saved / size, one.number, (), self._version[one], one
        gap = held.copy.gap(at)
        if gap is not None:
            cost = self._launch + (held.once if gap >= 0 else 0.0)
            yield cost / size, one.number, (gap,), self._version[one], one
