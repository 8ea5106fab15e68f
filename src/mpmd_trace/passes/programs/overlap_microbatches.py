"""`mpmd-overlap-microbatches` (ours): a forward and a backward of two microbatches become one program."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import apply_order, block_dependencies
from mpmd_trace.passes.common.merge import merge_fragments
from mpmd_trace.passes.fragment_info import (
    call_counter,
    is_of_microbatch,
    is_scheduling_unit,
    set_merged_call_counters,
    set_merged_stages,
    single_transpose_count,
)


class Work(NamedTuple):
    """How long a device computes in a fragment, and how long its collectives take besides, in one unit of time.

    `collectives` are those that a pair can hide, `exposed` those that it cannot.
    """

    compute: float = 1.0
    collectives: float = 0.0
    exposed: float = 0.0

    def __add__(self, other: object) -> Work:
        assert isinstance(other, Work)
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def time(self) -> float:
        """What it takes by itself, when no other fragment hides its collectives."""
        return sum(self)


def hidden(first: Work, second: Work) -> float:
    """Return how much time two independent pieces save as one program: each hides the other's collectives."""
    return min(first.collectives, second.compute) + min(second.collectives, first.compute)


class _Run(NamedTuple):
    """Consecutive fragments of a mesh, of one phase of one microbatch of one stage, by their places in the block."""

    places: tuple[int, ...]
    phase: int
    microbatch: int
    stage: int | None


@dataclasses.dataclass(frozen=True)
class OverlapMicrobatches(FunctionPass):
    """Merge consecutive forwards and backwards of different microbatches of a mesh, to hide collectives.

    XLA then hides the collectives of one (the all-to-all of experts, gathers of weights, sums over tensor-parallel
    devices) behind the products of the other. A pair starts when the inputs of both are available, and sends its
    results when both are done, so pairs can delay other meshes. The pass therefore simulates the step, with the work of
    each fragment, its collectives, and how much of them is hidden: without pairs, with each forward paired with the
    next backward, with each backward paired with the next forward, and with any two neighbors. It takes the shortest;
    `always` pairs even if nothing is gained.

    Ops between the two fragments move in front of or behind the pair. If one fragment waits for the other, they are not
    merged.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=0> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="a", origin=["g"], stage=2> (%p) {call_counter = 3 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1, %2 : !b, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"(1), "g"]> (%p)
            {mpmd.merged_call_counters = [0 : ui32, 3 : ui32], mpmd.merged_stages = [0 : ui32, 2 : ui32]} (%u: !t) {
          %2 = stablehlo.negate %u : !t
          %3 = stablehlo.sine %u : !t
          mpmd.return %2, %3 : !t, !t
        } : (!a) -> (!a, !a)
        %1 = mpmd.transfer %0#0 : (!a) -> !b
        return %1, %0#1 : !b, !a
    """

    name = "mpmd-overlap-microbatches"
    summary = "merge a forward and a backward of two microbatches that meet on a mesh"
    mpmd_only = True
    entry_only = True
    always: bool = option(True, "also where the step does not become shorter")
    #: The work of a fragment; without it all are alike, and nothing is hidden.
    work: Callable[[FragmentOp, Module], Work] | None = None

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        rows = _rows(ops)
        choices = {tuple(_pairs(rows, phases)): None for phases in ((0, 1), (1, 0), None)}
        choices.pop((), None)
        if not choices:
            return False
        from mpmd_trace.schedules._overlap import GAIN  # commands that list passes start without schedules

        waits = block_dependencies(ops)
        for row in rows.values():
            for a, b in itertools.pairwise(place for run in row for place in run.places):
                waits[b].append(a)
        work = [
            self._work(op, module) if isinstance(op, FragmentOp) and is_of_microbatch(op) else Work(0.0) for op in ops
        ]
        plain = _makespan(ops, waits, work, range(len(ops)), {})
        best: tuple[float, list[int], dict[int, tuple[_Run, _Run]]] | None = None
        for pairs in choices:
            groups = [[*a.places, *b.places] for a, b in pairs]
            order, kept = ordered_with_groups(waits, groups)
            chosen = {groups[k][0]: pairs[k] for k in kept}
            time = _makespan(ops, waits, work, order, chosen)
            if chosen and (best is None or time < best[0] * (1 - 1e-9)):
                best = time, order, chosen
        if best is None or not (self.always or best[0] < plain * (1 - GAIN)):
            return False
        _, order, chosen = best
        apply_order(function.body, [ops[i] for i in order])
        for first, second in chosen.values():
            _merge(ops, first, second)
        return True

    def _work(self, op: FragmentOp, module: Module) -> Work:
        return Work() if self.work is None else self.work(op, module)


def _rows(ops: Sequence[Op]) -> dict[str, list[_Run]]:
    """Return what each mesh runs for microbatches; a run without a microbatch is none that may be paired."""
    rows: dict[str, list[_Run]] = {}
    for place, op in enumerate(ops):
        if not isinstance(op, FragmentOp) or not (op.is_user and is_of_microbatch(op)):
            continue
        row = rows.setdefault(op.mesh, [])
        counter, phase = call_counter(op), single_transpose_count(op)
        if not is_scheduling_unit(op) or counter is None or phase is None:
            row.append(_Run((place,), -1, -1, None))
        elif row and row[-1][1:] == (phase, counter, op.stage):
            row[-1] = row[-1]._replace(places=(*row[-1].places, place))
        else:
            row.append(_Run((place,), phase, counter, op.stage))
    return rows


def _pairs(rows: dict[str, list[_Run]], phases: tuple[int, int] | None) -> Iterator[tuple[_Run, _Run]]:
    """Yield a forward and a backward that follow each other, in the order of `phases`, or in any; each run once."""
    for row in rows.values():
        free = True
        for a, b in itertools.pairwise(row):
            fits = {a.phase, b.phase} == {0, 1} if phases is None else (a.phase, b.phase) == phases
            free = not (free and fits and a.microbatch != b.microbatch)
            if not free:
                yield a, b


def ordered_with_groups(waits: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return an order of the nodes 0..n-1 in which each comes behind those it `waits` for and groups are not parted.

    0..n-1 is such an order but for the groups, and others differ from it as little as they must.  Groups that something
    has to run between are given up, those that come first first; also returned are the numbers of the others.
    """
    group_of = {node: g for g, group in enumerate(groups) for node in group}
    after: list[list[int]] = [[] for _ in waits]
    missing = [0] * len(waits)
    for node, before in enumerate(waits):
        for one in before:
            after[one].append(node)
            missing[node] += group_of.get(one, -1) != group_of.get(node, -2)
    together = [sum(missing[node] for node in group) for group in groups]
    ready: list[tuple[int, ...]] = [(node,) for node, count in enumerate(missing) if not count and node not in group_of]
    ready += [tuple(group) for group, count in zip(groups, together, strict=True) if not count]
    heapq.heapify(ready)
    done = [False] * len(waits)
    order: list[int] = []
    first = 0
    while len(order) < len(waits):
        if not ready:
            # Whatever the first that is left waits for is done; so it is in a group, which has to be given up.
            while done[first]:
                first += 1
            for node in groups[group_of[first]]:
                del group_of[node]
                missing[node] = sum(not done[one] for one in waits[node])
                if not missing[node]:
                    heapq.heappush(ready, (node,))
        taken = heapq.heappop(ready)
        order += taken
        own = group_of.get(taken[0], -1)
        for node in taken:
            done[node] = True
        for node in itertools.chain.from_iterable(after[node] for node in taken):
            group = group_of.get(node)
            if group is None:
                missing[node] -= 1
                if not missing[node]:
                    heapq.heappush(ready, (node,))
            elif group != own:
                together[group] -= 1
                if not together[group]:
                    heapq.heappush(ready, tuple(groups[group]))
    return order, sorted(set(group_of.values()))


def _makespan(
    ops: Sequence[Op],
    waits: Sequence[Sequence[int]],
    work: Sequence[Work],
    order: Sequence[int],
    pairs: dict[int, tuple[_Run, _Run]],
) -> float:
    """Return when the last op ends, in an order of all; `pairs` by the places where they begin."""
    ends = [0.0] * len(ops)
    free: dict[str, float] = {}
    inside: set[int] = set()
    for place in order:
        if place in inside:
            continue
        pair = pairs.get(place)
        places = (place,) if pair is None else (*pair[0].places, *pair[1].places)
        inside.update(places)
        if pair is None:
            time = work[place].time
        else:
            first, second = (sum((work[i] for i in run.places), Work(0.0)) for run in pair)
            time = first.time + second.time - hidden(first, second)
        op = ops[place]
        start = max((ends[one] for i in places for one in waits[i]), default=0.0)
        if isinstance(op, FragmentOp):
            start = max(start, free.get(op.mesh, 0.0))
            free[op.mesh] = start + time
        for i in places:
            ends[i] = start + time
    return max(ends, default=0.0)


def _merge(ops: Sequence[Op], first: _Run, second: _Run) -> None:
    """Make one fragment of two runs that lie one behind the other in the block."""
    back, forth = (first, second) if first.phase else (second, first)
    stages = {first.stage, second.stage}
    fragments = [op for place in (*first.places, *second.places) if isinstance(op := ops[place], FragmentOp)]
    merged = fragments[0]
    for op in fragments[1:]:
        if len(stages) > 1:
            merged.stage = op.stage = None
        merged = merge_fragments(merged, op)
    set_merged_call_counters(merged, (back.microbatch, forth.microbatch))
    if len(stages) > 1 and back.stage is not None and forth.stage is not None:
        set_merged_stages(merged, (back.stage, forth.stage))
