"""The order of several loops over microbatches, of which each follows a schedule by itself."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.block_order import ranked_order, waiting_and_followers


def order_of_loops(
    function: FuncOp, module: Module, waits: Sequence[Sequence[int]], loops: Mapping[int, int]
) -> list[int]:
    """Return an order of the ops of a function in which meshes work on a later loop while they wait for an earlier one.

    Of three orders the fastest one, by the operations of the fragments: one loop after the other; the same with
    fragments of later loops where they fit between those of earlier ones; whatever is ready, earlier loops first.

    Args:
        function: its ops are numbered in their order, without the terminator.
        module: that of the function.
        waits: what each op waits for, and joins, whose numbers are behind those of ops; there is no cycle.
        loops: the number of the loop of each op that a schedule orders.
    """
    ops: Sequence[Op] = function.body.ops[:-1]
    ranks = [loops.get(i, -1) for i in range(len(waits))]
    in_sequence = ranked_order(waits, ranks)
    place = {op: i for i, op in enumerate(in_sequence)}
    times = [0.0] * len(waits)
    rows: dict[str, list[int]] = {}
    for i in in_sequence:
        op = ops[i] if i < len(ops) else None
        if isinstance(op, FragmentOp):
            rows.setdefault(op.mesh, []).append(i)
            assert function.topology is not None
            times[i] = flops(op.body, module) / function.topology.meshes[op.mesh].size
    priority = [(ranks[i], place[i]) for i in range(len(waits))]
    one_by_one = _simulated(waits, times, rows, priority, [-math.inf] * len(waits))
    fitting = _simulated(waits, times, rows, priority, one_by_one.starts)
    greedy = _simulated(waits, times, rows, priority, [math.inf] * len(waits))
    best = min((one_by_one, fitting, greedy), key=lambda one: one.makespan)
    return sorted(range(len(ops)), key=lambda i: (best.starts[i], place[i]))


class _Simulation(NamedTuple):
    starts: list[float]
    makespan: float


def _simulated(
    waits: Sequence[Sequence[int]],
    times: Sequence[float],
    rows: Mapping[str, Sequence[int]],
    priority: Sequence[tuple[int, int]],
    latest: Sequence[float],
) -> _Simulation:
    """Return when each op starts if meshes run their rows, and others of a row before one if it starts by `latest`.

    Ops that are in no row take no time.
    """
    missing, readers = waiting_and_followers(waits)
    mesh_of = {i: mesh for mesh, row in rows.items() for i in row}
    starts = [-1.0] * len(waits)
    #: Few at a time, since a schedule orders the fragments of a loop.
    ready: dict[str, list[tuple[tuple[int, int], int]]] = {mesh: [] for mesh in rows}
    next_of = dict.fromkeys(rows, 0)
    free = dict.fromkeys(rows, 0.0)
    #: Ops that end, with their ends.
    events: list[tuple[float, int]] = []
    now = 0.0

    def begin(i: int, start: float) -> None:
        starts[i] = start
        heapq.heappush(events, (start + times[i], i))

    def is_ready(i: int) -> None:
        if i in mesh_of:
            ready[mesh_of[i]].append((priority[i], i))
        else:
            begin(i, now)

    for i, count in enumerate(missing):
        if not count:
            is_ready(i)
    while True:
        for mesh, row in rows.items():
            while free[mesh] <= now and ready[mesh]:
                while starts[row[next_of[mesh]]] >= 0:
                    next_of[mesh] += 1
                due = row[next_of[mesh]]
                fits = (one for one in sorted(ready[mesh]) if one[1] == due or now + times[one[1]] <= latest[due])
                if (chosen := next(fits, None)) is None:
                    break
                ready[mesh].remove(chosen)
                begin(chosen[1], now)
                free[mesh] = now + times[chosen[1]]
        if not events:
            return _Simulation(starts, now)
        now = events[0][0]
        while events and events[0][0] <= now:
            _, done = heapq.heappop(events)
            for reader in readers[done]:
                missing[reader] -= 1
                if not missing[reader]:
                    is_ready(reader)
