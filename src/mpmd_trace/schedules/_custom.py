"""Schedules a user describes: by a comparator, a sort key, a table, or a function.

A comparator or key orders the actions of each mesh; the data flow between stages is kept whatever
it says, because an action that another one on its mesh needs always comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpmd_trace.schedules._actions import Action, Kind, Step
from mpmd_trace.schedules._errors import Problem, ScheduleError
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, from_orders, make

Comparator = Callable[[Action, Action], bool]
"""`comparator(a, b)`: must a run before b? Called for pairs of actions on one mesh."""

SortKey = Callable[[Action], Any]
OrderFunction = Callable[[int, int], Iterable[Iterable[Step | str]]]
"""`function(meshes, microbatches)` returns a list of actions (or their text) per mesh."""


def from_comparator(
    comparator: Comparator,
    meshes: int,
    microbatches: int,
    *,
    chunks: int = 1,
    split: bool = False,
    placement: Placement | None = None,
    graph: StageGraph | None = None,
    name: str = "comparator",
) -> Schedule:
    """The schedule in which `comparator(a, b)` means: a before b, for actions on one mesh.

    The relation may be partial; actions it leaves open run in program order (microbatch by
    microbatch, forward then backward). A pair that contradicts the data flow is ignored. A circle
    of pairs is an error. `placement` has the mesh of each stage (a loop over `meshes` by default),
    `graph` the data flow between stages (a chain). `split` gives input- and weight-gradients instead of full backwards.
    The comparator is called for every pair of a mesh: quadratic in microbatches and chunks.
    """
    placement = Placement.loop(meshes, chunks) if placement is None else placement
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    rank = {stage: n for n, stage in enumerate(graph.order())}
    orders: list[list[Step]] = []
    for mesh in range(placement.meshes):
        actions = _program_order(placement.stages_on[mesh], microbatches, rank, split)
        orders.append(list(_sorted(actions, comparator, rank, graph, mesh)))
    return make(name, orders, placement, microbatches, graph=graph)


def from_key(
    key: SortKey,
    meshes: int,
    microbatches: int,
    *,
    chunks: int = 1,
    split: bool = False,
    placement: Placement | None = None,
    graph: StageGraph | None = None,
    name: str = "sort-key",
) -> Schedule:
    """The schedule that sorts the actions of each mesh by `key(action)`, ties in program order.

    The other arguments are those of `from_comparator`.
    """
    placement = Placement.loop(meshes, chunks) if placement is None else placement
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    rank = {stage: n for n, stage in enumerate(graph.order())}
    orders: list[list[Step]] = []
    for mesh in range(placement.meshes):
        actions = _program_order(placement.stages_on[mesh], microbatches, rank, split)
        try:
            orders.append([*sorted(actions, key=key)])
        except TypeError as error:
            raise ScheduleError(f"the sort key gives values that do not compare: {error}") from None
    return make(name, orders, placement, microbatches, graph=graph)


def from_function(
    function: OrderFunction,
    meshes: int,
    microbatches: int,
    *,
    placement: Placement | None = None,
    graph: StageGraph | None = None,
    name: str | None = None,
) -> Schedule:
    """The schedule that `function(meshes, microbatches)` lists, mesh by mesh; see `from_orders` for the rest."""
    rows = [list(row) for row in function(meshes, microbatches)]
    if len(rows) != meshes:
        message = f"the function returned {len(rows)} lists of actions for {meshes} meshes"
        raise ScheduleError(message, [Problem("placement", message)])
    return from_orders(
        rows,
        name=name or str(getattr(function, "__name__", "function")),
        placement=placement,
        microbatches=microbatches,
        graph=graph,
    )


def _program_order(stages: Sequence[int], microbatches: int, rank: dict[int, int], split: bool) -> list[Action]:
    """The actions of a mesh as a program without a schedule would run them."""
    down = sorted(stages, key=rank.__getitem__)
    back: tuple[Kind, ...] = ("I", "W") if split else ("B",)
    out: list[Action] = []
    for m in range(microbatches):
        out += [Action(s, "F", m) for s in down]
        out += [Action(s, k, m) for s in reversed(down) for k in back]
    return out


def _sorted(
    actions: list[Action], comparator: Comparator, rank: dict[int, int], graph: StageGraph, mesh: int
) -> Iterable[Action]:
    count = len(actions)
    reach = _reachability(graph, rank)
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for i, a in enumerate(actions):
        for j, b in enumerate(actions):
            if i == j:
                continue
            flows = _flows(a, b, reach)
            if flows or (not _flows(b, a, reach) and comparator(a, b)):
                after[i].append(j)
                missing[j] += 1
    ready = [i for i in range(count) if missing[i] == 0]
    out: list[Action] = []
    while ready:
        i = heapq.heappop(ready)
        out.append(actions[i])
        for j in after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
    if len(out) < count:
        # Follow predecessors that are still open: within a circle every step has one.
        before = {j: i for i in range(count) for j in after[i] if missing[i] and missing[j]}
        step = next(j for j in range(count) if missing[j])
        path: list[int] = []
        while step not in path:
            path.append(step)
            step = before[step]
        circle = [*path[path.index(step) :], step][::-1]
        text = " before ".join(str(actions[i]) for i in circle)
        message = f"the comparator demands a circle on mesh {mesh}: {text}"
        raise ScheduleError(message, [Problem("order", message, mesh)])
    return out


def _reachability(graph: StageGraph, rank: dict[int, int]) -> list[int]:
    """For each stage, a bit set of the stages downstream of it, itself included."""
    reach = [0] * len(graph)
    for stage in sorted(rank, key=rank.__getitem__, reverse=True):
        reach[stage] = 1 << stage
        for reader in graph.readers[stage]:
            reach[stage] |= reach[reader]
    return reach


def _flows(a: Action, b: Action, reach: list[int]) -> bool:
    """Whether b needs a, directly or through others."""
    if a.microbatch != b.microbatch or a.kind == "W":
        return False
    if a.kind == "F":
        if b.kind == "F":
            return a.stage != b.stage and bool(reach[a.stage] >> b.stage & 1)
        # Backward of b follows the forward of everything between here and any of its ends.
        return bool(reach[a.stage] & reach[b.stage])
    if b.kind == "F":
        return False
    if a.stage == b.stage:
        return b.kind == "W"
    return bool(reach[b.stage] >> a.stage & 1)
