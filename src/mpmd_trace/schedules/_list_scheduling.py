"""Schedules for stages that are anywhere: no mesh waits while something is ready for it.

List scheduling in the manner of Graham (SIAM J. Appl. Math. 17, 1969).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._costs import Costs, Timer, per_stage
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def forward_passes(
    placement: Placement, microbatches: int, graph: StageGraph | None = None, costs: Costs | None = None
) -> Schedule:
    """Forward passes through stages on any meshes.

    Of the actions that are ready, a mesh runs the latest stage first, and of this stage the first microbatch. So
    microbatches end as early as possible; if stages come back to a mesh, new microbatches start only in the gaps.

    `graph` is the data flow between the stages, a chain by default. Only the forward times and the latencies of
    `costs` are used; by default, all meshes have the same work, and transfers take no time.
    """
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    costs = Costs() if costs is None else costs
    empty = make("forward", [[] for _ in range(placement.meshes)], placement, microbatches, graph=graph)
    times = per_stage(costs.forward, empty, "forward")
    rows = _list_scheduled(
        graph.feeds,
        placement,
        placement.mesh_of,
        times,
        costs,
        microbatches,
        microbatches,
        lambda stage, m: (-stage, m),
    )
    orders: list[list[Step]] = [[Action(stage, "F", m) for stage, m in row] for row in rows]
    return make("forward", orders, placement, microbatches, graph=graph, forward_only=True)


def forward_only(meshes: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Forward passes, with V chunks per mesh in a loop: groups of P microbatches go through all chunks.

    At equal costs a step takes MV + P - 1 chunk times, if P divides M.
    """
    return forward_passes(Placement.loop(meshes, chunks), microbatches)


def training_passes(
    placement: Placement,
    microbatches: int,
    graph: StageGraph | None = None,
    costs: Costs | None = None,
    in_flight: int | None = None,
) -> Schedule:
    """Forward and backward passes through stages on any meshes, such as a U-Net that comes back to its first mesh.

    A mesh runs backwards before forwards: of backwards the first microbatch, of forwards the latest stage. At most
    `in_flight` microbatches are started and not finished, which limits the activations; by default, there is no limit.
    If stages form a chain, and as many microbatches are in flight as there are stages, a step takes as long as with
    1F1B.

    `graph` is the data flow between the stages, a chain by default; gradients flow in the opposite direction.
    """
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    costs = Costs() if costs is None else costs
    stages = len(graph)
    table = Timer(make("", [[] for _ in range(placement.meshes)], placement, microbatches, graph=graph), costs).table
    # The backward of stage s is number stages + s.
    back = [(s, *(stages + reader for reader in graph.readers[s])) for s in range(stages)]

    def priority(node: int, microbatch: int) -> tuple[int, ...]:
        return (0, microbatch, -node) if node >= stages else (1, -node, microbatch)

    rows = _list_scheduled(
        [*graph.feeds, *back],
        placement,
        placement.mesh_of * 2,
        [*table["F"], *table["B"]],
        costs,
        microbatches,
        microbatches if in_flight is None else in_flight,
        priority,
    )
    orders: list[list[Step]] = [[Action(n % stages, "F" if n < stages else "B", m) for n, m in row] for row in rows]
    return make("stages-1f1b", orders, placement, microbatches, graph=graph)


def _list_scheduled(
    feeds: Sequence[Sequence[int]],
    placement: Placement,
    mesh_of: Sequence[int],
    times: Sequence[float],
    costs: Costs,
    microbatches: int,
    in_flight: int,
    priority: Callable[[int, int], tuple[int, ...]],
) -> list[list[tuple[int, int]]]:
    """Return for each mesh its nodes and microbatches in order; `feeds` has the nodes that each node waits for."""
    readers: list[list[int]] = [[] for _ in feeds]
    for node, inputs in enumerate(feeds):
        for one in inputs:
            readers[one].append(node)
    ready: list[list[tuple[tuple[int, ...], int, int]]] = [[] for _ in range(placement.meshes)]
    missing = [[len(inputs)] * microbatches for inputs in feeds]
    entries = [node for node, inputs in enumerate(feeds) if not inputs]
    left = [len(feeds)] * microbatches
    begun = done = 0
    orders: list[list[tuple[int, int]]] = [[] for _ in ready]
    busy = [False] * placement.meshes
    #: What will happen: when, to which node and microbatch, and whether it is done there (-1), or ready for a reader.
    events: list[tuple[float, int, int, int]] = []
    now = 0.0
    touched = set(range(placement.meshes))
    while touched:
        before, begun = begun, min(microbatches, done + in_flight)
        for microbatch in range(before, begun):
            for node in entries:
                heappush(ready[mesh_of[node]], (priority(node, microbatch), node, microbatch))
                touched.add(mesh_of[node])
        for mesh in sorted(touched):
            if ready[mesh] and not busy[mesh]:
                _, node, microbatch = heappop(ready[mesh])
                orders[mesh].append((node, microbatch))
                end = now + times[node]
                heappush(events, (end, -1, node, microbatch))
                for reader in readers[node]:
                    heappush(events, (end + costs.delay(mesh, mesh_of[reader]), reader, node, microbatch))
                busy[mesh] = True
        touched = set()
        now = events[0][0] if events else now
        while events and events[0][0] <= now:
            _, reader, node, microbatch = heappop(events)
            mesh = mesh_of[node if reader < 0 else reader]
            touched.add(mesh)
            if reader < 0:
                busy[mesh] = False
                left[microbatch] -= 1
                while done < microbatches and not left[done]:
                    done += 1
                continue
            missing[reader][microbatch] -= 1
            if not missing[reader][microbatch]:
                heappush(ready[mesh], (priority(reader, microbatch), reader, microbatch))
    return orders
