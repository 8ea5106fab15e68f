"""The schedule of programs without backward passes: inference and evaluation.

List scheduling in the manner of Graham (SIAM J. Appl. Math. 17, 1969): no mesh waits while something is ready for it.
"""

from __future__ import annotations

from heapq import heappop, heappush

from mpmd_trace.schedules._actions import Action, Step
from mpmd_trace.schedules._costs import Costs, per_stage
from mpmd_trace.schedules._graph import StageGraph
from mpmd_trace.schedules._schedule import Placement, Schedule, make


def forward_only(meshes: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Forward passes, with V chunks per mesh in a loop: groups of P microbatches go through all chunks.

    At equal costs a step takes MV + P - 1 chunk times, if P divides M.
    """
    return forward_passes(Placement.loop(meshes, chunks), microbatches)


def forward_passes(
    placement: Placement, microbatches: int, graph: StageGraph | None = None, costs: Costs | None = None
) -> Schedule:
    """Forward passes through stages that are anywhere.

    A mesh takes, of what is ready, the latest stage, and of that the first microbatch. So microbatches leave as early
    as they can: when stages come back to a mesh, new microbatches start in the gaps only.

    `graph` is the data flow between the stages, a chain by default. Of `costs` the forward times and the latencies
    count; by default all meshes have as much to do, and transfers take no time.
    """
    mesh_of = placement.mesh_of
    graph = StageGraph.chain(len(mesh_of)) if graph is None else graph
    costs = Costs() if costs is None else costs
    empty = make("forward", [[] for _ in range(placement.meshes)], placement, microbatches, graph=graph)
    times = per_stage(costs.forward, empty, "forward")
    ready: list[list[tuple[int, int]]] = [[] for _ in range(placement.meshes)]
    missing = [[len(feeds)] * microbatches for feeds in graph.feeds]
    for stage, feeds in enumerate(graph.feeds):
        for microbatch in range(0 if feeds else microbatches):
            heappush(ready[mesh_of[stage]], (-stage, microbatch))
    orders: list[list[Step]] = [[] for _ in ready]
    busy = [False] * placement.meshes
    #: What will happen: when, to which stage and microbatch, and whether it is done there (-1), or ready for a reader.
    events: list[tuple[float, int, int, int]] = []
    now = 0.0
    touched = set(range(placement.meshes))
    while touched:
        for mesh in sorted(touched):
            if ready[mesh] and not busy[mesh]:
                last, microbatch = heappop(ready[mesh])
                orders[mesh].append(Action(-last, "F", microbatch))
                end = now + times[-last]
                heappush(events, (end, -1, -last, microbatch))
                for reader in graph.readers[-last]:
                    heappush(events, (end + costs.delay(mesh, mesh_of[reader]), reader, -last, microbatch))
                busy[mesh] = True
        touched = set()
        now = events[0][0] if events else now
        while events and events[0][0] <= now:
            _, reader, stage, microbatch = heappop(events)
            mesh = mesh_of[stage if reader < 0 else reader]
            touched.add(mesh)
            if reader < 0:
                busy[mesh] = False
                continue
            missing[reader][microbatch] -= 1
            if not missing[reader][microbatch]:
                heappush(ready[mesh], (-reader, microbatch))
    return make("forward", orders, placement, microbatches, graph=graph, forward_only=True)
