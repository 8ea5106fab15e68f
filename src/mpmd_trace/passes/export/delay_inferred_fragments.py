"""`mpmd-delay-inferred-fragments`: inferred work is done when it is needed.

Source: section 4.3 of the specification of the export passes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass

__all__ = ["DelayInferredFragments"]

#: The place of an op: a path of numbers, because ops that moved are placed relative to the op they precede.
_Place = tuple[float, ...]
_AT_ANCHOR = float("inf")


@dataclasses.dataclass(frozen=True)
class DelayInferredFragments(FunctionPass):
    """An inferred fragment is directly before its first user.

    Among those with the same first user, the one that came later in the program comes first.

        i, j, u, v        // i and j are inferred and read by v
    becomes
        u, j, i, v
    """

    name: ClassVar[str] = "mpmd-delay-inferred-fragments"
    summary: ClassVar[str] = "move inferred fragments to their first users"
    mpmd_only: ClassVar[bool] = True
    entry_only: ClassVar[bool] = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        block = function.body
        place: dict[Op, _Place] = {op: (i, _AT_ANCHOR) for i, op in enumerate(block)}
        waiting: dict[Op, int] = {}
        changed = False
        for op in reversed(block):
            if not isinstance(op, FragmentOp) or op.is_user or not op.has_uses:
                continue
            users = [u for user in op.users if (u := user.ancestor_in(block)) is not None]
            first = min(users, key=place.__getitem__)
            # Everything placed before `first` so far is farther from it than this op will be.
            number = waiting.get(first, 0)
            waiting[first] = number + 1
            place[op] = (*place[first][:-1], number, _AT_ANCHOR)
            if op.next_op is not first:
                op.move_before(first)
                changed = True
        return changed
