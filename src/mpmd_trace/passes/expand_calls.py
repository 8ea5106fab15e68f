"""Inlining calls from the top: every op of the result is copied once, however deep the calls are.

MLIR inlines callees first and canonicalizes each function before and after, which takes time that grows with the
square of the length of a chain of calls.  Where canonicalization only moves constants and removes dead code, as in
functions of plain ops (`trivially_canonical.py`), inlining everything at once gives the same, if constants are put in
the order in which one canonicalization for each level leaves them (`constants.py`): those of callees move to the front,
in reverse.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable

from mpmd_trace.ir.bodies import copied_ops, rewrite_bodies
from mpmd_trace.ir.core import Block, Op, Region
from mpmd_trace.ir.ops import FuncOp
from mpmd_trace.ir.semantics import is_constant_like
from mpmd_trace.passes.constants import constant_key


class _Constants:
    """Different constants in an order that can be reversed at no cost."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, Op] = OrderedDict()
        self._reversed = False

    def __len__(self) -> int:
        return len(self._entries)

    def in_order(self) -> list[Op]:
        """Return the constants, the first one first."""
        values = self._entries.values()
        return list(reversed(values) if self._reversed else values)

    def reverse(self) -> None:
        """Turn the order round."""
        self._reversed = not self._reversed

    def get(self, op: Op) -> Op | None:
        """Return the constant that equals `op`, if there is one."""
        return self._entries.get(constant_key(op))

    def add(self, op: Op, *, in_front: bool = False) -> None:
        """Put a constant at the end or in front, in the place of one that equals it."""
        key = constant_key(op)
        self._entries[key] = op
        self._entries.move_to_end(key, last=in_front == self._reversed)


@dataclasses.dataclass
class _Frame:
    """A function, a body or an inlined call, while its ops are visited."""

    #: The call, directly behind the ops that take its place; None for a function or body.
    call: Op | None
    #: Its constants, those of inlined calls with nothing but constants in front of them, and those of other calls.
    own: _Constants = dataclasses.field(default_factory=_Constants)
    leading: list[_Constants] = dataclasses.field(default_factory=list)
    others: list[_Constants] = dataclasses.field(default_factory=list)
    #: Whether there were only constants up to here.
    only_constants: bool = True

    def constants(self) -> _Constants:
        """Return all constants in order; of equal ones the first that was visited stays."""
        for part in self.others:
            part.reverse()
        visited = [self.own, *self.leading, *self.others]
        behind = len(visited) - len(self.others)
        order = [*reversed(range(behind, len(visited))), *range(behind)]
        largest = max(range(len(order)), key=lambda i: len(visited[order[i]]))  # the others are added to it
        base: _Constants = visited[order[largest]]
        came_from: dict[Op, int] = {}
        for i in (*reversed(range(largest)), *range(largest + 1, len(order))):
            part = visited[order[i]].in_order()
            for op in reversed(part) if i < largest else part:
                known = base.get(op)
                if known is not None and came_from.get(known, order[largest]) < order[i]:
                    _replace(op, known)
                    continue
                if known is not None:
                    _replace(known, op)
                came_from[op] = order[i]
                base.add(op, in_front=i < largest)
        return base


def _replace(op: Op, known: Op) -> None:
    op.replace_all_uses_with(known.results)
    op.erase()


class Expander:
    """Inlines the calls for which `inlinable` gives a callee, and those in the callees, which must not be recursive.

    `hoists`: constants are ordered as described above; otherwise they stay.
    """

    def __init__(self, inlinable: Callable[[Op, FuncOp], FuncOp | None], *, hoists: bool) -> None:
        self._inlinable = inlinable
        self._hoists = hoists
        self._bodies: dict[Region, Region] = {}

    def expand(self, region: Region, function: FuncOp) -> bool:
        """Inline the calls in a mutable region of a function.  Says whether there were any."""
        home = _Frame(None)
        changed = self._visit(region, function, home)
        if changed and self._hoists:
            block = region.blocks[0]
            for op in reversed(home.constants().in_order()):
                if block.first is not op:
                    block.insert_front(op)
        return changed

    def _visit(self, region: Region, function: FuncOp, home: _Frame) -> bool:
        changed = False
        expand = functools.partial(self.expand, function=function)
        frames = [home]
        resume: list[Op | None] = [block.first for block in reversed(region.blocks)]
        while resume:
            op = resume.pop()
            while op is not None:
                frame, following = frames[-1], op.next_op
                if op is frame.call:
                    frames.pop()
                    self._leave(frame, frames[-1])
                    op.erase()
                elif (callee := self._inlinable(op, function)) is not None:
                    changed = True
                    following = inline_call(op, callee.body) or op
                    frames.append(_Frame(op))
                elif self._hoists and is_constant_like(op):
                    frame.own.add(op)
                else:
                    changed = rewrite_bodies(op, self._bodies, expand) or changed
                    frame.only_constants = False
                    nested = [block.first for inner in op.regions if not inner.frozen for block in inner.blocks]
                    if nested:
                        resume += [following, *reversed(nested)]
                        break
                op = following
        return changed

    def _leave(self, frame: _Frame, around: _Frame) -> None:
        """Note what the frame of an inlined call adds to the one around it."""
        if self._hoists:
            (around.leading if around.only_constants else around.others).append(frame.constants())
        around.only_constants = around.only_constants and frame.only_constants


def inline_call(call: Op, body: Block) -> Op | None:
    """Put copies of the ops of the callee in front of the call, which is unused then; return the first."""
    assert call.block is not None
    copies, returned = copied_ops(body, call.operands)
    call.block.insert_all_before(call, copies)
    call.replace_all_uses_with(returned)
    return copies[0] if copies else None
