"""Which expressions are computed once: those for which that is worth the memory."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Container, Iterable, Mapping

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.hoisting.expressions import Expression, Numbering, counters
from mpmd_trace.passes.hoisting.worth import LAYOUT, Meshes, kept_bytes, work

__all__ = ["Choice", "Kept", "Limits", "choose"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bytes for what is kept; the work that launching a program takes; the least work of an expression."""

    room: float
    launch: float
    least: float


@dataclasses.dataclass(frozen=True)
class Kept:
    """An expression that is computed once: the bytes that it takes, and the work (in bytes) that it saves in a step."""

    expression: Expression
    bytes: float
    saved: float
    gathers: bool


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is kept on a mesh; what would be worth it, but does not fit; what saves less than a program costs."""

    kept: tuple[Kept, ...] = ()
    too_large: tuple[Kept, ...] = ()
    too_little: tuple[Kept, ...] = ()


def choose(fragments: Iterable[FragmentOp], numbering: Numbering, meshes: Meshes, limits: Limits) -> Choice:
    """What fragments of a mesh share and is worth keeping.

    Nothing, if all of it saves less than launching a program takes, and no collective.
    """
    wanted = _read_from_outside(fragments, numbering)
    refused: dict[Expression, Kept] = {}
    while True:
        kept = _worth_keeping(wanted, meshes, refused, limits.least)
        if not kept or sum(one.bytes for one in kept.values()) <= limits.room:
            break
        least_worth = min(kept.values(), key=lambda one: (one.saved / max(one.bytes, 1), one.expression.number))
        refused[least_worth.expression] = least_worth
    found, large = tuple(kept.values()), tuple(refused.values())
    if not any(one.gathers for one in found) and sum(one.saved for one in found) < limits.launch:
        return Choice(too_large=large, too_little=found)
    return Choice(found, large)


@dataclasses.dataclass
class _Wish:
    """Who wants an expression: which microbatches, and how many fragments."""

    counters: set[int] = dataclasses.field(default_factory=set)
    fragments: set[FragmentOp] = dataclasses.field(default_factory=set)
    #: Whether fragments hand it on, so that each microbatch keeps it anyway.
    is_stored: bool = False


def _read_from_outside(fragments: Iterable[FragmentOp], numbering: Numbering) -> dict[Expression, _Wish]:
    """The expressions that something reads which is no expression, or that a fragment returns."""
    found: dict[Expression, _Wish] = {}

    def note(one: Expression, fragment: FragmentOp, stored: bool = False) -> None:
        wish = found.setdefault(one, _Wish())
        wish.counters.update(counters(fragment))
        wish.fragments.add(fragment)
        wish.is_stored = wish.is_stored or stored

    for fragment in fragments:
        known = numbering.known[fragment]
        terminator = fragment.body.block.terminator  # those of the regions of ops inside hand nothing out
        for (op, _), one in known.uses.items():
            if not _is_known(op, known.values):
                note(one, fragment)
        for value, one in known.values.items():
            if one.value is not None or value.defining_op is None:
                continue
            for use in value.uses:
                if use.owner is terminator:
                    if fragment.results[use.index].has_uses:
                        note(one, fragment, stored=True)
                elif not _is_known(use.owner, known.values) and (use.owner, use.index) not in known.uses:
                    note(one, fragment)
    return found


def _is_known(op: Op, values: Mapping[Value, Expression]) -> bool:
    return any(result in values for result in op.results)


def _worth_keeping(
    wanted: Mapping[Expression, _Wish], meshes: Meshes, refused: Container[Expression], least: float
) -> dict[Expression, Kept]:
    """Users before operands: what is not worth it is computed each time, of operands that may be."""
    wishes = {one: _Wish(set(w.counters), set(w.fragments), w.is_stored) for one, w in wanted.items()}
    pending = [(-one.number, one) for one in wishes]
    heapq.heapify(pending)
    kept: dict[Expression, Kept] = {}
    while pending:
        one = heapq.heappop(pending)[1]
        wish = wishes.pop(one, None)
        if wish is None or one.value is not None:
            continue
        found = None if one in refused else _judged(one, wish, meshes, least)
        if found is not None:
            kept[one] = found
            continue
        for operand in one.operands:
            if operand not in wishes:
                wishes[operand] = _Wish()
                heapq.heappush(pending, (-operand.number, operand))
            wishes[operand].counters.update(wish.counters)
            wishes[operand].fragments.update(wish.fragments)
    return dict(sorted(kept.items(), key=lambda item: item[0].number))


def _judged(one: Expression, wish: _Wish, meshes: Meshes, least: float) -> Kept | None:
    if len(wish.counters) < 2:
        return None
    size, once = kept_bytes(one, meshes), work(one, meshes)
    is_layout = one.op is not None and one.op.name in LAYOUT
    if wish.is_stored and once > 0:
        pass  # it is kept anyway, and by each microbatch
    elif is_layout or once < max(size, least):
        return None
    gathers = any(p.is_reshard and kept_bytes(p, meshes) > kept_bytes(p.operands[0], meshes) for p in one.parts())
    return Kept(one, size, once * (len(wish.fragments) - 1), gathers)
