"""Is there a path of uses from one op of a block to another?

The answer is the reference's: the search follows uses (control operands included) depth first and never
looks at ops behind the target in the current order of the block.
"""

from __future__ import annotations

from mpmd_trace.ir.core import Op


def find_path(source: Op, target: Op) -> list[Op] | None:
    """Return the ops from `source` to `target`, both included, or None.  A path from an op to itself is that op."""
    block = target.block
    assert block is not None
    visited: set[Op] = set()

    def enter(op: Op) -> Op | None:
        inside = op.ancestor_in(block)
        if inside is None or inside in visited:
            return None
        if inside is not target and target.is_before(inside):
            return None
        visited.add(inside)
        return inside

    start = enter(source)
    if start is None:
        return None
    if start is target:
        return [start]
    path, pending = [start], [iter(start.users)]
    while pending:
        for user in pending[-1]:
            following = enter(user)
            if following is None:
                continue
            if following is target:
                return [*path, following]
            path.append(following)
            pending.append(iter(following.users))
            break
        else:
            pending.pop()
            path.pop()
    return None
