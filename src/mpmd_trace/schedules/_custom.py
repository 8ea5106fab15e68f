"""Schedules a user describes: by a comparator, a sort key, a table, or a function.

A comparator or key orders the actions of each mesh; the data flow between stages is kept whatever
it says, because an action that another one on its mesh needs always comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from mpmd_trace.schedules._actions import Action, Kind, Step
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._graph import StageGraph, topological
from mpmd_trace.schedules._program import build
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
    """Return the schedule in which `comparator(a, b)` means: a before b, for actions on one mesh.

    The comparator need not order all pairs: other actions run in program order (microbatch by
    microbatch, forward then backward). A pair that contradicts the data flow is ignored. A cycle
    of pairs is an error. `placement` has the mesh of each stage (a loop over `meshes` by default),
    `graph` the data flow between stages (a chain). `split` gives input- and weight-gradients instead of full backwards.
    The comparator is called for every pair of a mesh: quadratic in microbatches and chunks.
    """
    placement = Placement.loop(meshes, chunks) if placement is None else placement
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    needs = _needs(placement, graph, split)
    rows = _program_order(placement, graph, microbatches, split)
    orders = [_sorted(actions, comparator, needs, mesh) for mesh, actions in enumerate(rows)]
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
    """Return the schedule that sorts the actions of each mesh by `key(action)`, ties in program order.

    The other arguments are those of `from_comparator`.
    """
    placement = Placement.loop(meshes, chunks) if placement is None else placement
    graph = StageGraph.chain(len(placement.mesh_of)) if graph is None else graph
    rows = _program_order(placement, graph, microbatches, split)
    try:
        orders = [sorted(actions, key=key) for actions in rows]
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
    """Return the schedule that `function(meshes, microbatches)` lists, mesh by mesh; see `from_orders` for the rest."""
    rows = [list(row) for row in function(meshes, microbatches)]
    if len(rows) != meshes:
        message = f"the function returned {len(rows)} lists of actions for {meshes} meshes"
        raise ScheduleError.of("placement", message)
    return from_orders(
        rows,
        name=name or str(getattr(function, "__name__", "function")),
        placement=placement,
        microbatches=microbatches,
        graph=graph,
    )


def _program_order(placement: Placement, graph: StageGraph, microbatches: int, split: bool) -> list[list[Action]]:
    """Return the actions of each mesh as a program without a schedule would run them."""
    rank = {stage: n for n, stage in enumerate(graph.order())}
    back: tuple[Kind, ...] = ("I", "W") if split else ("B",)
    rows = []
    for stages in placement.stages_on:
        down = sorted(stages, key=rank.__getitem__)
        once: list[tuple[int, Kind]] = [(s, "F") for s in down]
        once += [(s, k) for s in reversed(down) for k in back]
        rows.append([Action(s, k, m) for m in range(microbatches) for s, k in once])
    return rows


#: For each stage and kind of action, those that it needs for its microbatch, directly or through others.
_Needs: TypeAlias = "dict[tuple[int, Kind], set[tuple[int, Kind]]]"


def _sorted(actions: list[Action], comparator: Comparator, needs: _Needs, mesh: int) -> list[Action]:
    def flows(a: Action, b: Action) -> bool:
        return a.microbatch == b.microbatch and (a.stage, a.kind) in needs[b.stage, b.kind]

    count = len(actions)
    after: list[list[int]] = [[] for _ in range(count)]
    for i, a in enumerate(actions):
        for j, b in enumerate(actions):
            if i != j and (flows(a, b) or (not flows(b, a) and comparator(a, b))):
                after[i].append(j)
    order = topological(after)
    if len(order) < count:
        # Follow predecessors that are still open: within a cycle every step has one.
        left = sorted(set(range(count)).difference(order))
        before = {j: i for i in left for j in after[i]}
        step = left[0]
        path: list[int] = []
        while step not in path:
            path.append(step)
            step = before[step]
        cycle = [*path[path.index(step) :], step][::-1]
        text = " before ".join(str(actions[i]) for i in cycle)
        raise ScheduleError.of("order", f"the comparator demands a cycle on mesh {mesh}: {text}", row=mesh)
    return [actions[i] for i in order]


def _needs(placement: Placement, graph: StageGraph, split: bool) -> _Needs:
    """Return what actions need, from a schedule of one microbatch."""
    program = build(make("", _program_order(placement, graph, 1, split), placement, 1, graph=graph))
    after: list[list[int]] = [[] for _ in program.steps]
    for step, needs in enumerate(program.needs):
        for need in needs:
            after[need].append(step)
    names = [(action.stage, action.kind) for step in program.steps for action in step.parts]
    result: _Needs = {name: set() for name in names}
    for step in topological(after):
        for later in after[step]:
            result[names[later]] |= {names[step], *result[names[step]]}
    return result
