"""Dropping copies where they are not read, until what a device holds fits into its memory."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterator

from mpmd_trace.passes.hoisting.gathered_params import Copy, Timeline
from mpmd_trace.passes.hoisting.selection import HoistedExpr
from mpmd_trace.passes.hoisting.value_numbering import Expression

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
        self._limit, self._launch = limit, launch
        self._held: dict[Expression, Held] = {}
        self._version: dict[Expression, int] = {}
        self._changes: list[Expression] = []
        #: By time, with how many of the changes they know.
        self._offers: dict[int, tuple[list[_Offer], int]] = {}
        if self._is_limited:
            import numpy as np  # late: `mpmd-trace opt` starts without it

            self._bytes = np.array(timeline.base)
            self._movable_bytes = np.zeros_like(self._bytes)

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

        while self._is_limited and self._movable_bytes.any():
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
