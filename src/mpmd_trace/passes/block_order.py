"""The topological sort of a block that the scheduling and merging passes share.

The reference sorts by repeated scans over the ops that are left: an op is taken in the first scan in which
everything it depends on has been taken, possibly earlier in the same scan.  The result is therefore *not* the
smallest order, and printed programs show it.  Which scan takes an op follows from its predecessors alone, so
one pass over the graph gives the order without any scanning.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from mpmd_trace.ir.bodies import free_values
from mpmd_trace.ir.core import Block, Op, OpResult

SomeOp = TypeVar("SomeOp", bound=Op)


def in_block_order(ops: Iterable[SomeOp]) -> list[SomeOp]:
    """Different ops of one block in their order."""

    def compare(a: Op, b: Op) -> int:
        return -1 if a.is_before(b) else 1

    return sorted(ops, key=functools.cmp_to_key(compare))


class Join(NamedTuple):
    """Every op in `targets` waits for every op in `sources`, without their product of edges."""

    sources: Sequence[int]
    targets: Sequence[int]


def block_dependencies(ops: Sequence[Op]) -> list[list[int]]:
    """For each op the indices of the ops (of the same list) that it uses, also from inside its regions."""
    index = {op: i for i, op in enumerate(ops)}
    result: list[list[int]] = []
    for op in ops:
        # Producers first, then their numbers: a fragment has many operands, but they come from few ops.
        producers = {use.value.op: None for use in op.operand_uses if isinstance(use.value, OpResult)}
        for region in op.regions:
            if not region.frozen:
                producers.update({value.op: None for value in free_values(op) if isinstance(value, OpResult)})
                break
        result.append([index[one] for one in producers if one in index and one is not op])
    return result


def all_waits(
    preds: Sequence[Sequence[int]], edges: Iterable[tuple[int, int]], joins: Sequence[Join]
) -> list[list[int]]:
    """Return the predecessors of each op and, behind them, of each join; with edges (before, after) and joins."""
    waits = [list(p) for p in preds] + [list(join.sources) for join in joins]
    for a, b in edges:
        waits[b].append(a)
    for node, join in enumerate(joins, len(preds)):
        for b in join.targets:
            waits[b].append(node)
    return waits


def waiting_and_followers(waits: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Return for each of nodes 0..n-1 how many others it waits for, and which ones wait for it."""
    followers: list[list[int]] = [[] for _ in waits]
    for node, before in enumerate(waits):
        for one in before:
            followers[one].append(node)
    return [len(before) for before in waits], followers


def scan_order(
    preds: Sequence[Sequence[int]], edges: Iterable[tuple[int, int]] = (), joins: Sequence[Join] = ()
) -> list[int] | None:
    """Return the order in which the scans take ops 0..n-1, or None when there is a cycle.

    `preds[i]` are the predecessors of op i; `edges` (before, after) and `joins` add to them.
    """
    n = len(preds)
    waits = all_waits(preds, edges, joins)  # node n + k is join k
    waiting, succs = waiting_and_followers(waits)
    total = len(waits)
    # A node is taken at (scan, position): one scan later than a predecessor that stands behind it.  A join
    # counts as taken where the last of its sources is.
    scan = [0] * total
    position = [*range(n), *([-1] * len(joins))]
    ready = [i for i in range(total) if waiting[i] == 0]
    taken = 0
    while ready:
        node = ready.pop()
        taken += 1
        at_scan, at_position = scan[node], position[node]
        for s in succs[node]:
            if s >= n:
                if (at_scan, at_position) > (scan[s], position[s]):
                    scan[s], position[s] = at_scan, at_position
            else:
                needed = at_scan + (at_position > s)
                if needed > scan[s]:
                    scan[s] = needed
            waiting[s] -= 1
            if waiting[s] == 0:
                ready.append(s)
    if taken < total:
        return None
    return sorted(range(n), key=scan.__getitem__)  # stable: within a scan they keep their order


def ranked_order(preds: Sequence[Sequence[int]], rank: Sequence[int]) -> list[int]:
    """Ops 0..n-1 in an order that respects `preds` and otherwise takes the lowest rank first."""
    waiting, succs = waiting_and_followers(preds)
    ready = [(rank[i], i) for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for s in succs[node]:
            waiting[s] -= 1
            if waiting[s] == 0:
                heapq.heappush(ready, (rank[s], s))
    return order


def _order_with_cycles(preds: Sequence[Sequence[int]]) -> list[int]:
    """Return the literal scans: when one takes nothing, the first op that is left is forced."""
    todo = list(range(len(preds)))
    done = [False] * len(preds)
    order: list[int] = []
    while todo:
        left = []
        for i in todo:
            if all(done[p] for p in preds[i]):
                done[i] = True
                order.append(i)
            else:
                left.append(i)
        if len(left) == len(todo):
            done[left[0]] = True
            order.append(left.pop(0))
        todo = left
    return order


def sort_block(block: Block) -> bool:
    """Sort the ops in front of the terminator topologically.  Returns False when there is a cycle.

    With a cycle the order is still the reference's: the first op that cannot be taken is forced.
    """
    ops = block.ops[:-1]
    preds = block_dependencies(ops)
    order = scan_order(preds)
    apply_order(block, [ops[i] for i in (_order_with_cycles(preds) if order is None else order)])
    return order is not None


def apply_order(block: Block, ops: Sequence[Op]) -> bool:
    """Put the ops (all but the terminator) into this order.  Says whether something moved."""
    op = block.first
    for wanted in ops:
        if op is not wanted:
            break
        op = op.next_op
    else:
        return False
    block.reorder([*ops, block.terminator])
    return True
