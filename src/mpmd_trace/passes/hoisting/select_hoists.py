"""Which expressions are computed once, or once in a phase: those for which that is worth the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from mpmd_trace.ir.core import Op, Use, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.hoisting.cost import HoistCost
from mpmd_trace.passes.hoisting.evict_copies import Held, Room
from mpmd_trace.passes.hoisting.gathered_params import Timeline
from mpmd_trace.passes.hoisting.selection import HoistedExpr, Selection
from mpmd_trace.passes.hoisting.value_numbering import Expression, KnownExpressions, ValueNumbering

#: How long gathered copies are kept: for the step; for a phase, in which fragments of a mesh that read them follow on
#: each other; for a microbatch; or as memory allows.
Gather = Literal["auto", "step", "phase", "microbatch"]
GATHER: tuple[Gather, ...] = ("auto", "step", "phase", "microbatch")


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
    """The expressions that something reads which is no expression; those that fragments hand on.  Both with who does.

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
    """The expressions that something in a body reads which is no expression; those it returns, and as which result."""
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
