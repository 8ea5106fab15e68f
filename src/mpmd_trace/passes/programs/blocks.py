"""Blocks: fragments of several microbatches of a mesh that become one program."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.block_order import apply_order, block_dependencies
from mpmd_trace.passes.common.fragment_groups import merge_fragments
from mpmd_trace.passes.fragment_info import Kind, MergedPart, is_of_microbatch, set_merged_parts


class Work(NamedTuple):
    """How long a device computes in a fragment, and how long its collectives take besides, in one unit of time.

    `collectives` are those that a block can hide, `exposed` those that it cannot.
    """

    compute: float = 1.0
    collectives: float = 0.0
    exposed: float = 0.0

    def __add__(self, other: object) -> Work:
        assert isinstance(other, Work)
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def time(self) -> float:
        """The time that it takes by itself, when no other fragment hides its collectives."""
        return sum(self)


#: The work of a fragment; without it all are alike, and nothing is hidden.
WorkOf: TypeAlias = Callable[[FragmentOp, Module], Work]


def hidden(first: Work, second: Work) -> float:
    """Return how much time two independent pieces save as one program: each hides the other's collectives."""
    return min(first.collectives, second.compute) + min(second.collectives, first.compute)


class Part(NamedTuple):
    """Fragments of a mesh, by their places in the function: the forward, say, of one microbatch of one stage."""

    places: tuple[int, ...]
    kind: Kind
    microbatch: int
    stage: int | None

    @property
    def is_forward(self) -> bool:
        """True if it is a forward; all others are backwards or parts of one."""
        return self.kind == "F"


#: Parts of one mesh, in the order in which they run.
Block: TypeAlias = Sequence[Part]


def places_of(block: Block) -> list[int]:
    """Return where its fragments are, in their order."""
    return sorted(place for part in block for place in part.places)


def microbatch_fragments(ops: Sequence[Op]) -> Iterator[tuple[int, FragmentOp]]:
    """Yield the named fragments of microbatches, with their places."""
    for place, op in enumerate(ops):
        if isinstance(op, FragmentOp) and op.is_user and is_of_microbatch(op):
            yield place, op


def ordered_dependencies(ops: Sequence[Op]) -> list[list[int]]:
    """Return what each op waits for: what it reads and, for a named fragment, the one before it on its mesh."""
    waits = block_dependencies(ops)
    last: dict[str, int] = {}
    for place, op in microbatch_fragments(ops):
        if op.mesh in last:
            waits[place].append(last[op.mesh])
        last[op.mesh] = place
    return waits


#: A way from a group back to it, of steps from an op to one that it waits for.
Cycle: TypeAlias = "list[tuple[int, int]]"


class Grouped(NamedTuple):
    """An order in which groups are not parted.

    `kept` are the numbers of the groups, `cycles` by number those that are given up.
    """

    order: list[int]
    kept: list[int]
    cycles: dict[int, Cycle]


def ordered_with_groups(waits: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> Grouped:
    """Return an order of the nodes 0..n-1 in which each comes behind those it `waits` for and groups are not parted.

    0..n-1 is such an order but for the groups, and others differ from it as little as they must.  Of groups that would
    wait for themselves or for each other, the one that comes first is given up.
    """
    # A node that is in no group is one by itself. Groups are called by their first nodes.
    leader = list(range(len(waits)))
    members: list[Sequence[int]] = [(node,) for node in leader]
    number: dict[int, int] = {}
    for g, group in enumerate(groups):
        members[group[0]], number[group[0]] = group, g
        for node in group:
            leader[node] = group[0]
    after: list[list[int]] = [[] for _ in waits]
    missing = [0] * len(waits)
    for node, before in enumerate(waits):
        for one in before:
            after[one].append(node)
            missing[leader[node]] += leader[one] != leader[node]
    ready = [first for first in sorted(set(leader)) if not missing[first]]  # a heap
    done = [False] * len(waits)
    order: list[int] = []
    cycles: dict[int, Cycle] = {}
    start = 0
    while len(order) < len(waits):
        if ready:
            taken = heapq.heappop(ready)
            order += members[taken]
            for node in members[taken]:
                done[node] = True
            for node in itertools.chain.from_iterable(after[node] for node in members[taken]):
                waiting = leader[node]
                if waiting != taken:
                    missing[waiting] -= 1
                    if not missing[waiting]:
                        heapq.heappush(ready, waiting)
        else:
            while done[start]:
                start += 1
            cycle = _cycle(start, waits, leader, members, done)
            given_up = min(number[leader[node]] for node, _ in cycle if leader[node] in number)
            place = next(i for i, (node, _) in enumerate(cycle) if number.get(leader[node]) == given_up)
            cycles[given_up] = cycle[place:] + cycle[:place]
            del number[groups[given_up][0]]
            for node in groups[given_up]:
                leader[node], members[node] = node, (node,)
                missing[node] = sum(not done[one] for one in waits[node])
                if not missing[node]:
                    heapq.heappush(ready, node)
    return Grouped(order, list(number.values()), cycles)


def _cycle(
    start: int,
    waits: Sequence[Sequence[int]],
    leader: Sequence[int],
    members: Sequence[Sequence[int]],
    done: Sequence[bool],
) -> Cycle:
    """Return a cycle that is reached from a node, where all that is not done waits for something else of it."""
    taken: Cycle = []
    seen: dict[int, int] = {}
    group = leader[start]
    while group not in seen:
        seen[group] = len(taken)
        awaited = ((node, one) for node in members[group] for one in waits[node] if not done[one])
        taken.append(next((node, one) for node, one in awaited if leader[one] != group))
        group = leader[taken[-1][1]]
    return taken[seen[group] :]


class Step:
    """The ops of a function, with what each waits for and its work, to simulate them in an order."""

    def __init__(self, ops: Sequence[Op], waits: Sequence[Sequence[int]], work: WorkOf | None, module: Module) -> None:
        self.ops, self.waits = ops, waits
        self._work = [
            (Work() if work is None else work(op, module))
            if isinstance(op, FragmentOp) and is_of_microbatch(op)
            else Work(0.0)
            for op in ops
        ]

    def is_shorter(self, makespan: float) -> bool:
        """Return whether a makespan is shorter than that of the ops as they are, by as much as merging has to gain."""
        from mpmd_trace.schedules._overlap import GAIN  # commands that list passes start without schedules

        return makespan < self.makespan(range(len(self.ops))) * (1 - GAIN)

    def makespan(self, order: Sequence[int], blocks: Sequence[Block] = ()) -> float:
        """Return when the last op ends, in an order of all of them in which no block is parted."""
        block_at = {places_of(block)[0]: block for block in blocks}
        ends = [0.0] * len(self.ops)
        free: dict[str, float] = {}
        inside: set[int] = set()
        for place in order:
            if place in inside:
                continue
            block = block_at.get(place)
            places = (place,) if block is None else places_of(block)
            inside.update(places)
            time = self._work[place].time if block is None else self._time(block)
            op = self.ops[place]
            start = max((ends[one] for i in places for one in self.waits[i]), default=0.0)
            if isinstance(op, FragmentOp):
                start = max(start, free.get(op.mesh, 0.0))
                free[op.mesh] = start + time
            for i in places:
                ends[i] = start + time
        return max(ends, default=0.0)

    def _time(self, block: Block) -> float:
        """Return what a block takes: forwards and backwards hide the collectives of each other."""
        sides = [Work(0.0), Work(0.0)]
        for part in block:
            sides[part.is_forward] += sum((self._work[place] for place in part.places), Work(0.0))
        return sides[0].time + sides[1].time - hidden(*sides)


def merge_blocks(function: FuncOp, ops: Sequence[Op], order: Sequence[int], blocks: Sequence[Block]) -> None:
    """Put the ops of a function in an order in which no block is parted, and make one fragment of each block."""
    apply_order(function.body, [ops[i] for i in order])
    for block in blocks:
        _merge(ops, block)


def _merge(ops: Sequence[Op], block: Block) -> None:
    stages = {part.stage for part in block}
    merged, *others = _fragments(ops, block)
    for op in others:
        if len(stages) > 1:
            merged.stage = op.stage = None
        merged = merge_fragments(merged, op)
    set_merged_parts(merged, [MergedPart(part.kind, part.microbatch, part.stage) for part in block])


def _fragments(ops: Sequence[Op], block: Block) -> Iterator[FragmentOp]:
    for place in places_of(block):
        op = ops[place]
        assert isinstance(op, FragmentOp)
        yield op
