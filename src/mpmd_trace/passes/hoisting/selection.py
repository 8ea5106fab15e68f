"""Which expressions are worth keeping, when some may not be kept."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Mapping

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.hoisting.cost import LAYOUT, HoistCost
from mpmd_trace.passes.hoisting.value_numbering import Expression, are_of_several


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
        if math.isinf(size) or not are_of_several(readers):
            return None
        stored = self._stored.get(one, set())
        is_layout = one.op is not None and one.op.name in LAYOUT
        if stored and once > 0:
            pass  # it is kept anyway, and by each microbatch
        elif is_layout or once < max(size, 0.0 if self._worth.gathers(one) else self._least):
            return None
        saved = once * (len(readers | stored) - 1)
        return HoistedExpr(one, size, saved, self._worth.gathers(one), tuple(readers))
