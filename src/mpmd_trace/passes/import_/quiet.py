"""Whether the greedy driver has anything to do.

The driver visits every op of a program through its stack; most functions have nothing for the few patterns of a
pass, and one bare walk finds that out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ir.bodies import without_dead_ops
from ...ir.core import Op, Region
from ...ir.semantics import trivially_dead

__all__ = ["is_quiet"]


def is_quiet(region: Region, matches: Mapping[str, Callable[[Op], bool]]) -> bool:
    """Whether there is no dead code in a mutable region, and no op that matches.

    `matches` has, for the name of each op that a pattern is for, the question whether it may rewrite one.
    """
    for block in region.blocks:
        for op in block:
            for result in op.results:
                if result._first is not None:
                    break
            else:
                if trivially_dead(op):
                    return False
            for nested in op.regions:
                if not nested.frozen:
                    if not is_quiet(nested, matches):
                        return False
                elif without_dead_ops(nested) is not nested:
                    return False
            match = matches.get(op.name)
            if match is not None and match(op):
                return False
    return True
