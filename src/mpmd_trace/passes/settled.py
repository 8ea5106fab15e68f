"""Finding out that the greedy driver would change nothing, in one walk and without a work list.

Most runs of most passes find nothing to do.  The patterns are asked with a rewriter that changes nothing either:
the first attempt to change something ends the search.  So frozen bodies can be asked without making a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from mpmd_trace.ir.bodies import remembered, without_dead_ops
from mpmd_trace.ir.core import Block, Op, Region, Value
from mpmd_trace.ir.frozen import FrozenBodyError
from mpmd_trace.ir.semantics import trivially_dead
from mpmd_trace.passes.constants import constants_stay, with_unique_constants
from mpmd_trace.passes.greedy import Choices, Pattern, Rewriter

__all__ = ["Settled"]


class _WouldChange(Exception):
    pass


class _Probe(Rewriter):
    """A rewriter that refuses every change."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _WouldChange

    about_to_change = push = modified = erase = replace_uses_if = replace_op = _refuse

    def insert_before(self, anchor: Op, op: Op) -> Op:
        if op.block is None:
            op.drop_all_references()  # a new op is in the use lists of its operands already
        raise _WouldChange

    insert_after = insert_before

    def insert_front(self, block: Block, op: Op) -> Op:
        return self.insert_before(op, op)

    def replace_all_uses(self, old: Value, new: Value) -> None:
        if old is not new:
            raise _WouldChange


class Settled:
    """Says of regions that `apply_greedily` with these patterns would leave them as they are.

    It is right when it says so; the opposite answer may be wrong.  The patterns must be pure: what they change
    before the first call of a method of the rewriter they announce by `about_to_change`.

    Of a mutable region the frozen bodies are tidied on the way as the driver does it when it begins, which does
    not count as a change.  A frozen region with frozen bodies inside is not looked into.
    """

    def __init__(self, patterns: Sequence[Pattern] | Choices, *, unique_constants: bool = False) -> None:
        self._unique_constants = unique_constants
        self._choices = patterns if isinstance(patterns, Choices) else Choices(patterns)
        self._probe = _Probe()

    def __call__(self, scope: Region) -> bool:
        """Whether the region stays."""
        if len(scope.blocks) != 1:
            return False
        # The driver moves constants to the front.  In a copy of a frozen body, which is thrown away if that is
        # all, it does not matter.
        if self._unique_constants and not constants_stay(scope, anywhere=scope.frozen):
            return False
        try:
            return self._stays(scope, scope.blocks[0])
        except (_WouldChange, FrozenBodyError):  # a frozen body refuses by itself
            return False

    def _stays(self, scope: Region, block: Block) -> bool:
        choices = self._choices
        for op in reversed(block):  # programs end with what there is to change: updates of parameters
            if op.regions and not self._regions_stay(scope, op):
                return False
            if trivially_dead(op):
                return False
            for pattern in choices.of(op):
                if pattern.match_and_rewrite(op, self._probe):
                    return False
        return True

    def _regions_stay(self, scope: Region, op: Op) -> bool:
        for i, region in enumerate(op.regions):
            if not region.frozen:
                for block in region.blocks:
                    if not self._stays(scope, block):
                        return False
            elif scope.frozen:
                return False
            else:
                tidy = _tidied(region, self._unique_constants)
                if tidy is None:
                    return False
                op.regions[i] = tidy
        return True


def _tidied(body: Region, unique_constants: bool) -> Region | None:
    """The frozen body as it is when the driver begins; None if it has dead ops."""

    def make() -> Region | None:
        tidy = with_unique_constants(body) if unique_constants else body
        return tidy if without_dead_ops(tidy) is tidy else None

    return remembered(body, ("tidied", unique_constants), make)
