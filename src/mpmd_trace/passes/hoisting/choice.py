"""Which expressions are computed once, or once in a phase: those for which that is worth the memory."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from mpmd_trace.ir.core import Op, Use, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.hoisting.copies import Copy, Timeline
from mpmd_trace.passes.hoisting.expressions import Expression, Known, Numbering, are_of_several
from mpmd_trace.passes.hoisting.worth import LAYOUT, Meshes, kept_bytes, work

__all__ = ["GATHER", "Choice", "Gather", "Kept", "Limits", "choose"]

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
class Kept:
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


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is kept on a mesh; what would be worth it, but does not fit; what saves less than a program costs.

    each_time: gathers that are left with the microbatches because that was asked for.
    """

    kept: tuple[Kept, ...] = ()
    too_large: tuple[Kept, ...] = ()
    too_little: tuple[Kept, ...] = ()
    each_time: tuple[Kept, ...] = ()


def choose(
    fragments: Sequence[FragmentOp], numbering: Numbering, meshes: Meshes, limits: Limits, timeline: Timeline
) -> Choice:
    """What fragments of a mesh share and is worth keeping, in the memory that there is.

    As long as there is too much, a copy goes from where it is not read, or altogether: whatever costs least for its
    bytes.  Nothing is kept, if all of it saves less than launching a program takes, and no collective.
    """
    wanted, stored = _read_from_outside(fragments, numbering)
    refused: dict[Expression, Kept] = {}
    asked: dict[Expression, Kept] = {}
    dropped: dict[Expression, set[int]] = {}
    while True:
        kept = _worth_keeping(wanted, stored, meshes, {**refused, **asked}, limits.least)
        once = {one: work(one, meshes) for one in kept}
        copies = {one: timeline.copy(k.readers, dropped.setdefault(one, set())) for one, k in kept.items()}
        if limits.gather in ("phase", "microbatch"):
            for one, copy in copies.items():
                if kept[one].gathers:
                    copy.dropped.update(copy.gaps)
            each = [
                one
                for one, copy in copies.items()
                if kept[one].gathers and (limits.gather == "microbatch" or _saved(kept[one], copy, once[one]) <= 0)
            ]
            if each:
                asked.update((one, kept[one]) for one in each)
                continue
        movable = [one for one in kept if limits.gather == "auto" or not kept[one].gathers]
        worst = _fit(kept, copies, once, movable, timeline, limits)
        if worst is None:
            break
        refused[worst] = kept[worst]
    found = tuple(
        dataclasses.replace(
            k, saved=_saved(k, copies[one], once[one]), starts=copies[one].starts, is_late=copies[one].is_late
        )
        for one, k in kept.items()
    )
    large, each_time = tuple(refused.values()), tuple(asked.values())
    if not any(one.gathers for one in found) and sum(one.saved for one in found) < limits.launch:
        return Choice((), large, found, each_time)
    return Choice(found, large, (), each_time)


def _saved(one: Kept, copy: Copy, once: float) -> float:
    """The work that is saved when the copy is made again after each gap where it is dropped."""
    return one.saved - once * (len(copy.starts) - 1)


def _fit(
    kept: Mapping[Expression, Kept],
    copies: Mapping[Expression, Copy],
    once: Mapping[Expression, float],
    movable: Sequence[Expression],
    timeline: Timeline,
    limits: Limits,
) -> Expression | None:
    """Drop copies in gaps until all fits; or the expression that has to be given up before."""
    if math.isinf(limits.bytes) or not movable:
        return None
    held = timeline.held([(kept[one].bytes, copy) for one, copy in copies.items()])
    while True:
        there = timeline.held([(kept[one].bytes, copies[one]) for one in movable], base=False)
        at = max((t for t, size in enumerate(there) if size > 0), key=held.__getitem__, default=None)
        if at is None or held[at] <= limits.bytes:
            return None
        best: tuple[float, int, int | None, Expression] | None = None
        for one in movable:
            copy, size = copies[one], max(kept[one].bytes, 1.0)
            if not copy.is_held(at):
                continue
            offers: list[tuple[float, int | None]] = [(_saved(kept[one], copy, once[one]), None)]
            gap = copy.gap(at)
            if gap is not None:
                offers.append((limits.launch + (once[one] if gap >= 0 else 0.0), gap))
            for cost, which in offers:
                offer = (cost / size, one.number, which, one)
                if best is None or offer[:2] < best[:2]:
                    best = offer
        assert best is not None
        _, _, gap, worst = best
        if gap is None:
            return worst
        copies[worst].dropped.add(gap)
        held = timeline.held([(kept[one].bytes, copy) for one, copy in copies.items()])


def _read_from_outside(
    fragments: Sequence[FragmentOp], numbering: Numbering
) -> tuple[dict[Expression, set[FragmentOp]], dict[Expression, set[FragmentOp]]]:
    """The expressions that something reads which is no expression; those that fragments hand on.  Both with who does.

    A fragment that is given an expression, and makes others of it alone, does not read it.
    """
    found: dict[Expression, set[FragmentOp]] = {}
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
            found.setdefault(one, set()).update(group)
        for one, index in handed:
            for fragment in group:
                uses = list(fragment.results[index].uses)
                if uses:
                    stored.setdefault(one, set()).add(fragment)
                if not all(is_given(use, one) for use in uses):
                    found.setdefault(one, set()).add(fragment)
    return found, stored


def _read_and_handed(fragment: FragmentOp, known: Known) -> tuple[dict[Expression, None], list[tuple[Expression, int]]]:
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


def _worth_keeping(
    wanted: Mapping[Expression, set[FragmentOp]],
    stored: Mapping[Expression, set[FragmentOp]],
    meshes: Meshes,
    refused: Mapping[Expression, Kept],
    least: float,
) -> dict[Expression, Kept]:
    """Users before operands: what is not worth it is computed each time, of operands that may be."""
    readers = {one: set(fragments) for one, fragments in wanted.items()}
    pending = [(-one.number, one) for one in readers]
    heapq.heapify(pending)
    kept: dict[Expression, Kept] = {}
    while pending:
        one = heapq.heappop(pending)[1]
        own = readers.pop(one, None)
        if own is None or one.value is not None:
            continue
        found = None if one in refused else _judged(one, own, stored.get(one, set()), meshes, least)
        if found is not None:
            kept[one] = found
            continue
        for operand in one.operands:
            if operand not in readers:
                readers[operand] = set()
                heapq.heappush(pending, (-operand.number, operand))
            readers[operand] |= own
    return dict(sorted(kept.items(), key=lambda item: item[0].number))


def _judged(
    one: Expression, readers: set[FragmentOp], stored: set[FragmentOp], meshes: Meshes, least: float
) -> Kept | None:
    if not are_of_several(readers):
        return None
    size, once = kept_bytes(one, meshes), work(one, meshes)
    gathers = any(p.is_reshard and kept_bytes(p, meshes) > kept_bytes(p.operands[0], meshes) for p in one.parts())
    is_layout = one.op is not None and one.op.name in LAYOUT
    if stored and once > 0:
        pass  # it is kept anyway, and by each microbatch
    elif is_layout or once < max(size, 0.0 if gathers else least):
        return None
    return Kept(one, size, once * (len(readers | stored) - 1), gathers, tuple(readers))
