"""`FollowSchedule`: the scheduler of `mpmd_trace.jit`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mpmd_trace.ir.attributes import integer_in
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import OMITTED, FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import option
from mpmd_trace.passes.block_order import (
    Join,
    all_waits,
    apply_order,
    block_dependencies,
    ranked_order,
    scan_order,
    sort_block,
)
from mpmd_trace.passes.control_dependencies import add_control_dependency, remove_control_dependencies
from mpmd_trace.passes.fragment_info import set_block
from mpmd_trace.passes.fragment_rules import ScheduleRule
from mpmd_trace.passes.loop_numbers import LoopNumbers
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.microbatches.action_order import (
    ActionOrder,
    MeshOrders,
    RepeatedUnit,
    StagesError,
    as_listed,
    number_by_pipeline,
)
from mpmd_trace.passes.microbatches.loop_order import order_of_loops
from mpmd_trace.passes.microbatches.rule_orders import contradictions, obstacle, ordered_pairs
from mpmd_trace.passes.optimize.pipeline_scheduler import PipelineScheduler, as_graph, by_mesh, scheduling_units
from mpmd_trace.passes.optimize.reference_schedules import (
    SCHEDULES,
    Comparator,
    Constraints,
    Order,
    ScheduleError,
    Unit,
)

#: How the warning begins.
INEXACT = "the schedule cannot be followed exactly"
_INSTEAD = (
    "Such fragments keep the program's order. Gradients that are added up from the first microbatch to the last one, "
    "for example, do not allow backwards from the last to the first, nor the other way round; choose a schedule of the "
    "other order, or take the gradient inside of the loop over microbatches, or around it (docs/schedules.md)"
)


class _Graph(NamedTuple):
    """What a schedule wants of the ops, by their places: orders, and blocks that are to be one program."""

    edges: list[tuple[int, int]]
    joins: list[Join]
    blocks: list[list[int]]


def _graph_of(constraints: list[Constraints]) -> _Graph:
    return _Graph(*as_graph(constraints), [[u.index for u in block] for one in constraints for block in one.blocks])


def _loops_and_times(units: Mapping[FragmentOp, Unit]) -> list[tuple[int, int]]:
    """For each unit its loop over microbatches, and how often its mesh has run the same of the microbatch in it."""
    loops = LoopNumbers()
    times: dict[tuple[Hashable, ...], int] = {}
    result: list[tuple[int, int]] = []
    for op, unit in units.items():
        mesh, counter, transpose, origin = unit.mesh, unit.counter, unit.transpose, op.props.get("origin")
        loop = loops.of(mesh, None if transpose else origin, counter)
        key = loop, mesh, origin, transpose, unit.drops_transferred, counter
        time = times[key] = times.get(key, -1) + 1
        result.append((loop, time))
    return result


def _by_loop(
    units: Mapping[FragmentOp, Unit], numbers: Sequence[tuple[int, int]], repeats: bool
) -> Iterator[list[list[RepeatedUnit]]]:
    """Yield the units of each mesh and loop over microbatches, in several ways if one is run through something again.

    What it runs again, with something of other meshes in between, has another `time` (if the schedule `repeats`); the
    second way has it together with the first time, the third one apart.
    """
    by_loop: dict[tuple[str, int], list[RepeatedUnit]] = {}
    last: dict[int, int] = {}
    stages: dict[str, dict[int | None, None]] = {}
    for unit in units.values():
        stages.setdefault(unit.mesh, {})[unit.stage] = None
    for unit, (loop, time) in zip(units.values(), numbers, strict=True):
        last[loop] = max(last.get(loop, 0), time)
        known = RepeatedUnit(  # `dataclasses.asdict` copies deeply, which takes as long as all the rest of the pass
            unit.index,
            unit.mesh,
            unit.mesh_index,
            unit.num_meshes,
            unit.transpose,
            unit.counter,
            unit.stage,
            unit.drops_transferred,
            loop,
            time,
            stages=tuple(stages[unit.mesh]),
        )
        by_loop.setdefault((unit.mesh, loop), []).append(known)
    if repeats and any(last.values()):
        yield [[dataclasses.replace(u, times=last[loop] + 1) for u in group] for (_, loop), group in by_loop.items()]
    yield [*by_loop.values()]
    if any(last.values()):
        yield [[u for u in own if u.time == time] for own in by_loop.values() for time in sorted({u.time for u in own})]


def _moved(
    wanted: Sequence[int],
    uses: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    joins: Sequence[Join],
    pairs: Sequence[tuple[int, int]],
) -> list[int] | None:
    """Return the order nearest to the wanted one that has the pairs, too; None when there is a cycle."""
    if not pairs:
        return list(wanted)
    rank = [0] * len(wanted)
    for place, index in enumerate(wanted):
        rank[index] = place
    if all(rank[a] < rank[b] for a, b in pairs):
        return list(wanted)
    waits = all_waits(uses, (*edges, *pairs), joins)
    order = ranked_order(waits, rank + [-1] * len(joins))
    return [i for i in order if i < len(wanted)] if len(order) == len(waits) else None


def _chains(order: Sequence[int], ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Return each of the fragments and the next one on its mesh."""
    rows: dict[str, list[int]] = {}
    for index in order:
        op = ops[index]
        assert isinstance(op, FragmentOp)
        rows.setdefault(op.mesh, []).append(index)
    return [pair for row in rows.values() for pair in itertools.pairwise(row)]


@dataclasses.dataclass(frozen=True)
class FollowSchedule(PipelineScheduler):
    """Apply schedules as `mpmd-pipeline-scheduler`, with rules of users, explicit orders, and several loops.

    If the data flow does not allow the schedule, each loop over microbatches follows it separately. If that is also
    impossible, the order is the closest possible one, and a warning says why.
    """

    name = "mpmd-follow-schedule"
    summary = "mpmd-pipeline-scheduler with orders on top, and several loops over microbatches"

    schedule: Order = option(
        ActionOrder.of(SCHEDULES["1F1B"]), f"The schedule: {', '.join(SCHEDULES)}.", name="must-happen-before"
    )
    rules: tuple[ScheduleRule, ...] | None = option(
        None, "orders on top of the schedule, which may not contradict it, as in mpmd-rule-based-schedule"
    )
    mark_blocks: bool = option(False, "mark the fragments of blocks of the schedule, for mpmd-merge-blocks")

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", as_listed(self.schedule))

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        omitted = integer_in(function.attrs, OMITTED)
        if omitted is not None:
            whole = dataclasses.replace(self, schedule=self.schedule.without(omitted))
            return whole._follow(function, module, diagnostics)
        return self._follow(function, module, diagnostics)

    def _follow(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        units = scheduling_units(function, ops)
        assert function.topology is not None
        meshes = schedulable_meshes(function.topology)
        if isinstance(self.schedule, ActionOrder | MeshOrders):
            number_by_pipeline(units.values(), meshes, self.schedule)
        uses = block_dependencies(ops)
        pairs = ordered_pairs(self.rules or (), ops)
        try:
            exact = next(self._exact(function, module, uses, units), None)
            if exact is not None:
                (edges, joins, blocks), wanted = exact
            else:
                self._warn(function, ops, units, diagnostics)
                blocks, wanted = self._nearest(function, ops, units)
                edges, joins = [], []
        except ScheduleError as error:
            remove_control_dependencies(function)
            idle = [f"'{name}'" for name in meshes if name not in {unit.mesh for unit in units.values()}]
            text = str(error)
            if isinstance(error, StagesError) and idle and not isinstance(self.schedule, MeshOrders):
                text = (
                    f"the schedule '{self.schedule}' has stages on all {len(meshes)} meshes, but nothing of a "
                    f"microbatch is on {', '.join(idle)}; assign names to them, or leave them out of the topology"
                )
            raise diagnostics.fatal(function.loc, text) from None
        order = _moved(wanted, uses, edges, joins, pairs)
        if order is None:
            what = "comparator" if isinstance(self.schedule, Comparator) else "schedule"
            for text in contradictions(ops, uses, edges, joins, pairs, f"the {what} '{self.schedule}'"):
                diagnostics.error(None, text)
            diagnostics.fail()
            return False
        changed = apply_order(function.body, [ops[i] for i in order])
        for number, block in enumerate(blocks if self.mark_blocks else ()):
            for index in block:
                op = ops[index]
                assert isinstance(op, FragmentOp)
                set_block(op, number)
                changed = True
        if not self.remove_control_dependencies:
            if exact is not None:
                edges += [(a, b) for join in joins for a in join.sources for b in join.targets]
            else:
                edges = _chains([i for i in order if ops[i] in units], ops)
            for a, b in dict.fromkeys([*edges, *pairs]):
                first, second = ops[a], ops[b]
                if isinstance(first, FragmentOp) and isinstance(second, FragmentOp) and first.results:
                    add_control_dependency(first, second)
        return changed

    def _warn(
        self, function: FuncOp, ops: Sequence[Op], units: dict[FragmentOp, Unit], diagnostics: Diagnostics
    ) -> None:
        """Say why the schedule cannot be followed, unless only asking about pairs would tell."""
        constraints = self._constraints(by_mesh(units))
        if constraints is not None:
            edges, joins = as_graph(constraints)
            reason, last = obstacle(ops, block_dependencies(ops), edges, joins, f"the schedule '{self.schedule}'")
            if OMITTED in function.attrs and 2 * last > max(unit.counter for unit in units.values()):
                raise diagnostics.fatal(function.loc, "the warning is of a microbatch behind those that are missing")
            diagnostics.warning(None, f"{INEXACT}: {reason}\n{self._several_stages(units) or _INSTEAD}")

    def _several_stages(self, units: dict[FragmentOp, Unit]) -> str | None:
        """Return what to do where the flow returns to a mesh with other layers, for which the schedule has no order."""
        if not isinstance(self.schedule, ActionOrder):
            return None
        if self.schedule.by_stage and any(unit.stage is not None for unit in units.values()):
            return None
        first: dict[tuple[str, int], str] = {}
        for op, unit in units.items():
            names = ", ".join(f'"{origin.name}"' for origin in op.origin)
            before = first.setdefault((unit.mesh, unit.counter), names) if unit.transpose == 0 else names
            if before != names:
                return (
                    f"Such fragments keep the program's order. Mesh '{unit.mesh}' computes {before}, and later "
                    f"{names}, which '{self.schedule}' takes for one stage; a schedule for several stages on a mesh "
                    "orders them (docs/schedules.md)"
                )
        return None

    def _graph(self, function: FuncOp, uses: Sequence[Sequence[int]], units: dict[FragmentOp, Unit]) -> _Graph:
        """Return what the schedule orders."""
        constraints = self._constraints(by_mesh(units))
        if constraints is not None:
            return _graph_of(constraints)
        self._add_pair_by_pair(units)
        now = block_dependencies(function.body.ops[:-1])
        edges = [
            (p, i)
            for i, (ps, before) in enumerate(zip(now, map(set, uses), strict=True))
            for p in ps
            if p not in before
        ]
        remove_control_dependencies(function)
        return _Graph(edges, [], [])

    def _nearest(
        self, function: FuncOp, ops: Sequence[Op], units: dict[FragmentOp, Unit]
    ) -> tuple[list[list[int]], list[int]]:
        """Return the blocks and the order of the schedule as far as the uses allow; other ops come as soon as they can.

        Of several loops over microbatches, each has an order of its own, and comes after the one before it.
        """
        loops = next(_by_loop(units, _loops_and_times(units), repeats=False), [])
        loop_of = {unit.index: unit.loop for group in loops for unit in group}
        try:
            constraints = self._constraints(loops)
        except ScheduleError:  # a loop has not all stages, say
            loop_of, constraints = {}, self._constraints(by_mesh(units))
        if constraints is None:
            self._add_pair_by_pair(units)
            sort_block(function.body)
            remove_control_dependencies(function)
            place = {op: i for i, op in enumerate(ops)}
            return [], [place[op] for op in function.body.ops[:-1]]
        rank = [-1] * len(ops)
        for one in constraints:
            for chain in one.chains:
                for slot, members in enumerate(chain):
                    for unit in members:
                        rank[unit.index] = loop_of.get(unit.index, 0) * len(ops) + slot
        return _graph_of(constraints).blocks, ranked_order(block_dependencies(ops), rank)

    def _exact(
        self, function: FuncOp, module: Module, uses: Sequence[Sequence[int]], units: dict[FragmentOp, Unit]
    ) -> Iterator[tuple[_Graph, list[int]]]:
        """Yield orders that follow the schedule, with what it orders: each loop by itself, where there are several."""
        numbers = _loops_and_times(units)
        repeats = isinstance(self.schedule, ActionOrder) and self.schedule.repeats
        several = len({loop for loop, _ in numbers}) > 1
        if several:
            loops = {unit.index: loop for unit, (loop, _) in zip(units.values(), numbers, strict=True)}
            for graph in self._of_loops(_by_loop(units, numbers, repeats)):
                if scan_order(uses, graph.edges, graph.joins) is not None:
                    waits = all_waits(uses, graph.edges, graph.joins)
                    yield graph, order_of_loops(function, module, waits, loops)
        graph = self._graph(function, uses, units)
        if (order := scan_order(uses, graph.edges, graph.joins)) is not None:
            yield graph, order
        if not several:
            whole = len(by_mesh(units))
            ways = _by_loop(units, numbers, repeats)
            others = [groups for groups in ways if len(groups) != whole or groups[0][0].times > 1]
            for graph in self._of_loops(others):
                if (order := scan_order(uses, graph.edges, graph.joins)) is not None:
                    yield graph, order

    def _of_loops(self, ways: Iterable[list[list[RepeatedUnit]]]) -> Iterator[_Graph]:
        """Yield what the schedule orders in each group of units by itself, for each way to group them."""
        for groups in ways:
            try:
                constraints = self._constraints(groups)
            except ScheduleError:  # a loop has not all stages, say
                continue
            if constraints is not None:
                yield _graph_of(constraints)
