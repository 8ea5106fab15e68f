"""`mpmd-pipeline-scheduler`: puts the fragments of each mesh in the order of a pipeline schedule."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import Join, apply_order, block_dependencies, ranked_order, scan_order, sort_block
from mpmd_trace.passes.control_dependencies import add_control_dependency, remove_control_dependencies
from mpmd_trace.passes.fragment_info import call_counter, single_transpose_count, split_type
from mpmd_trace.passes.fragment_rules import ScheduleRule
from mpmd_trace.passes.loop_numbers import LoopNumbers
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.optimize.paths import find_path
from mpmd_trace.passes.optimize.rule_orders import contradictions, obstacle, ordered_pairs
from mpmd_trace.passes.optimize.schedules import (
    SCHEDULES,
    Comparator,
    Constraints,
    ExplicitOrder,
    Order,
    Schedule,
    ScheduleError,
    Unit,
)

__all__ = ["INEXACT", "PipelineScheduler"]

log = logging.getLogger(__name__)

#: How the warning begins.
INEXACT = "the schedule cannot be followed exactly"
_INSTEAD = (
    "Such fragments keep the program's order. Gradients that are added up from the first microbatch to the last one, "
    "for example, do not allow backwards from the last to the first, nor the other way round; choose a schedule of the "
    "other order, or take the gradient inside of the loop over microbatches, or around it (docs/schedules.md)"
)


def scheduling_units(function: FuncOp, ops: Sequence[Op]) -> dict[FragmentOp, Unit]:
    """Return the scheduling units among the ops: user fragments with a call counter, all forward or all backward."""
    assert function.topology is not None
    meshes = {name: i for i, name in enumerate(schedulable_meshes(function.topology))}
    units: dict[FragmentOp, Unit] = {}
    for index, op in enumerate(ops):
        if not isinstance(op, FragmentOp) or not op.is_user:
            continue
        counter, transpose, mesh = call_counter(op), single_transpose_count(op), op.mesh
        if counter is None or transpose not in (0, 1):
            continue
        units[op] = Unit(
            index,
            mesh,
            mesh_index=meshes.get(mesh),
            num_meshes=len(meshes),
            transpose=transpose,
            counter=counter,
            stage=op.stage,
            drops_transferred="split_drop_transferred" in op.attrs and split_type(op) == "kDropTransferred",
        )
    return units


def _by_mesh(units: Mapping[FragmentOp, Unit]) -> list[list[Unit]]:
    by_mesh: dict[str, list[Unit]] = {}
    for unit in units.values():
        by_mesh.setdefault(unit.mesh, []).append(unit)
    return list(by_mesh.values())


def _by_loop(units: Mapping[FragmentOp, Unit], repeats: bool) -> Iterator[list[list[Unit]]]:
    """The units of each mesh and loop over microbatches, in two ways where one runs something more than once for one.

    What it runs again, with something of other meshes in between, has another `time` (if the schedule `repeats`); the
    second way has it apart.
    """
    by_loop: dict[tuple[str, int], list[Unit]] = {}
    loops = LoopNumbers()
    times: dict[tuple[Hashable, ...], int] = {}
    last: dict[int, int] = {}
    for op, unit in units.items():
        origin = op.props.get("origin")
        loop = loops.of(unit.mesh, None if unit.transpose else origin, unit.counter)
        key = loop, unit.mesh, origin, unit.transpose, unit.drops_transferred, unit.counter
        time = times[key] = times.get(key, -1) + 1
        last[loop] = max(last.get(loop, 0), time)
        by_loop.setdefault((unit.mesh, loop), []).append(dataclasses.replace(unit, time=time))
    if repeats and any(last.values()):
        yield [[dataclasses.replace(u, times=last[loop] + 1) for u in group] for (_, loop), group in by_loop.items()]
    yield [
        [u for u in group if u.time == time] for group in by_loop.values() for time in sorted({u.time for u in group})
    ]


def _as_graph(given: list[Constraints]) -> tuple[list[tuple[int, int]], list[Join]]:
    """Edges between op indices, and joins for the orders between whole groups."""
    edges: list[tuple[int, int]] = []
    joins: list[Join] = []
    for constraints in given:
        edges += [(a.index, b.index) for a, b in constraints.edges]
        for firsts, seconds in constraints.barriers:
            joins.append(Join([u.index for u in firsts], [u.index for u in seconds]))
        for chain in constraints.chains:
            for left, right in itertools.pairwise(chain):
                if len(left) * len(right) <= len(left) + len(right):
                    edges += [(a.index, b.index) for a in left for b in right]
                else:
                    joins.append(Join([u.index for u in left], [u.index for u in right]))
    return edges, joins


def _moved(
    wanted: Sequence[int],
    uses: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    joins: Sequence[Join],
    pairs: Sequence[tuple[int, int]],
) -> list[int] | None:
    """Return the order nearest to the wanted one that has the pairs, too; None when there is a cycle."""
    rank = [0] * len(wanted)
    for place, index in enumerate(wanted):
        rank[index] = place
    if all(rank[a] < rank[b] for a, b in pairs):
        return list(wanted)
    waits = [list(p) for p in uses] + [list(join.sources) for join in joins]
    for a, b in (*edges, *pairs):
        waits[b].append(a)
    for node, join in enumerate(joins, len(wanted)):
        for b in join.targets:
            waits[b].append(node)
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
class PipelineScheduler(FunctionPass):
    """Fragments on each mesh follow a pipeline schedule; transfers and the rest follow their operands.

    Each two scheduling units a and b of a mesh are asked about, in the order of the program, unless one depends on
    the other already: where the schedule (`optimize/schedules.py`) wants a first, b gets a control operand, which
    counts in what follows.  Then the block is sorted: ops come, scan by scan, as soon as what they read is there.  A
    cycle leaves the order as it is.  In the end the control operands go, unless `remove_control_dependencies` is off.

    When the schedule's orders and the uses have no cycle together, the result depends on their transitive closure
    alone.  So first all constraints of the schedule are taken at once, and one topological sort gives the same order
    in linear time.

    Before:

        %0 = mpmd.fragment<mesh="b", origin=["f"]> (%q) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!b) -> !b
        %1 = mpmd.fragment<mesh="b", origin=["f"]> (%q) {call_counter = 1 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!b) -> !b
        %2 = mpmd.fragment<mesh="b", origin=["f"(1)]> (%0) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!b) -> !b
        return %1, %2 : !b, !b

    After:

        %0 = mpmd.fragment<mesh="b", origin=["f"]> (%q) {call_counter = 0 : ui32} (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        %1 = mpmd.fragment<mesh="b", origin=["f"(1)]> (%0) {call_counter = 0 : ui32} (%u: !t) {
          %3 = stablehlo.sine %u : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        %2 = mpmd.fragment<mesh="b", origin=["f"]> (%q) {call_counter = 1 : ui32} (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        return %2, %1 : !b, !b
    """

    name: ClassVar[str] = "mpmd-pipeline-scheduler"
    summary: ClassVar[str] = "order the fragments of each mesh by a pipeline schedule"
    mpmd_only: ClassVar[bool] = True
    schedule: Order = option(SCHEDULES["1F1B"], f"The schedule: {', '.join(SCHEDULES)}.", name="must-happen-before")
    remove_control_dependencies: bool = option(True, "remove the control operands that express the order at the end")
    #: Orders on top of the schedule, which may not contradict it; None for what the reference does.
    rules: tuple[ScheduleRule, ...] | None = None
    #: Whether to warn of schedules of the reference that the data flow does not allow, of which it says nothing.
    warns: bool = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        units = scheduling_units(function, ops)
        if self.rules is not None:
            return self._with_rules(function, ops, units, self.rules, diagnostics)
        if isinstance(self.schedule, ExplicitOrder):
            return self._explicit_order(function, ops, units, diagnostics)
        if isinstance(self.schedule, Schedule) and self.schedule.by_stage:
            self._check_stages(units)
        if self.remove_control_dependencies:
            order = self._sorted(ops, self._constraints(_by_mesh(units)))
            if order is None and self.warns:
                order = self._in_loops(ops, units)
            if order is not None:
                return apply_order(function.body, order)
            if self.warns:
                self._warn(ops, units, diagnostics)
        try:
            self._add_pair_by_pair(units)
        except ScheduleError as error:
            remove_control_dependencies(function)
            raise diagnostics.fatal(function.loc, str(error)) from None
        before = function.body.ops
        sort_block(function.body)
        if self.remove_control_dependencies:
            remove_control_dependencies(function)
        return function.body.ops != before

    def _check_stages(self, units: dict[FragmentOp, Unit]) -> None:
        for op, unit in units.items():
            if unit.stage is None:
                log.warning(
                    "%sthe %s schedule orders by stage, but a fragment of mesh '%s' (%s) has none; it "
                    "stays where its operands allow. Assign a stage to its name.",
                    op.loc.prefix,
                    self.schedule,
                    unit.mesh,
                    ", ".join(o.short for o in op.origin),
                )

    def _warn(self, ops: Sequence[Op], units: dict[FragmentOp, Unit], diagnostics: Diagnostics) -> None:
        """Say why the schedule cannot be followed, unless only asking about pairs would tell."""
        constraints = self._constraints(_by_mesh(units))
        if constraints is not None:
            edges, joins = _as_graph(constraints)
            reason = obstacle(ops, block_dependencies(ops), edges, joins, f"the schedule '{self.schedule}'")
            diagnostics.warning(None, f"{INEXACT}: {reason}\n{self._several_stages(units) or _INSTEAD}")

    def _several_stages(self, units: dict[FragmentOp, Unit]) -> str | None:
        """What to do where the flow comes back to a mesh with other layers, for which the schedule has no order."""
        if not isinstance(self.schedule, Schedule) or self.schedule.by_stage:
            return None
        first: dict[tuple[str, int], str] = {}
        for op, unit in units.items():
            names = ", ".join(f'"{origin.name}"' for origin in op.origin)
            before = first.setdefault((unit.mesh, unit.counter), names) if unit.transpose == 0 else names
            if before != names:
                return (
                    f"Such fragments keep the program's order. Mesh '{unit.mesh}' computes {before}, and later "
                    f"{names}, which '{self.schedule}' takes for one stage. A schedule that has several stages on a "
                    "mesh, such as 'interleaved-1f1b', orders them (docs/schedules.md)"
                )
        return None

    def _with_rules(
        self,
        function: FuncOp,
        ops: Sequence[Op],
        units: dict[FragmentOp, Unit],
        rules: Sequence[ScheduleRule],
        diagnostics: Diagnostics,
    ) -> bool:
        """The schedule, from which the rules move only what they must; if it cannot be followed, rules come first."""
        if isinstance(self.schedule, Schedule) and self.schedule.by_stage:
            self._check_stages(units)
        uses = block_dependencies(ops)
        pairs = ordered_pairs(rules, ops)
        try:
            graphs = itertools.chain(
                [self._schedule_graph(function, ops, units)], map(_as_graph, self._of_loops(units))
            )
            orders = ((graph, order) for graph in graphs if (order := scan_order(uses, *graph)) is not None)
            exact = next(orders, None)
            if exact is not None:
                (edges, joins), wanted = exact
            else:
                self._warn(ops, units, diagnostics)
                edges, joins, wanted = [], [], self._nearest(function, ops, units)
        except ScheduleError as error:
            remove_control_dependencies(function)
            raise diagnostics.fatal(function.loc, str(error)) from None
        order = _moved(wanted, uses, edges, joins, pairs)
        if order is None:
            what = "comparator" if isinstance(self.schedule, Comparator) else "schedule"
            for text in contradictions(ops, uses, edges, joins, pairs, f"the {what} '{self.schedule}'"):
                diagnostics.error(None, text)
            diagnostics.fail()
            return False
        changed = apply_order(function.body, [ops[i] for i in order])
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

    def _schedule_graph(
        self, function: FuncOp, ops: Sequence[Op], units: dict[FragmentOp, Unit]
    ) -> tuple[list[tuple[int, int]], list[Join]]:
        """Return what the schedule orders, as edges between the places of the ops, and joins."""
        constraints = self._constraints(_by_mesh(units))
        if constraints is not None:
            return _as_graph(constraints)
        before = [set(p) for p in block_dependencies(ops)]
        self._add_pair_by_pair(units)
        edges = [(p, i) for i, ps in enumerate(block_dependencies(ops)) for p in ps if p not in before[i]]
        remove_control_dependencies(function)
        return edges, []

    def _nearest(self, function: FuncOp, ops: Sequence[Op], units: dict[FragmentOp, Unit]) -> list[int]:
        """Return the order that a schedule has which cannot be followed exactly."""
        if isinstance(self.schedule, ExplicitOrder):
            wanted = self._nearest_order(ops, units)
        else:
            self._add_pair_by_pair(units)
            sort_block(function.body)
            remove_control_dependencies(function)
            wanted = function.body.ops[:-1]
        place = {op: i for i, op in enumerate(ops)}
        return [place[op] for op in wanted]

    def _constraints(self, groups: Sequence[Sequence[Unit]]) -> list[Constraints] | None:
        """Return the constraints of groups of units of one mesh; None where pairs have to be asked."""
        result: list[Constraints] = []
        for group in groups:
            constraints = self.schedule.constraints(group)
            if constraints is None:
                return None
            result.append(constraints)
        return result

    def _of_loops(self, units: dict[FragmentOp, Unit]) -> Iterator[list[Constraints]]:
        """Constraints with which each loop over microbatches follows the schedule by itself, if there are several."""
        whole = len(_by_mesh(units))
        for groups in _by_loop(units, repeats=isinstance(self.schedule, Schedule) and self.schedule.repeats):
            if len(groups) == whole and groups[0][0].times == 1:
                continue
            try:
                constraints = self._constraints(groups)
            except ScheduleError:  # a loop has not all stages, say
                continue
            if constraints is not None:
                yield constraints

    def _in_loops(self, ops: Sequence[Op], units: dict[FragmentOp, Unit]) -> list[Op] | None:
        orders = (self._sorted(ops, constraints) for constraints in self._of_loops(units))
        return next((order for order in orders if order is not None), None)

    def _sorted(self, ops: Sequence[Op], constraints: list[Constraints] | None) -> list[Op] | None:
        """Return the ops in the order of the constraints; None where these and the uses have a cycle."""
        if constraints is None:
            return None
        order = scan_order(block_dependencies(ops), *_as_graph(constraints))
        return None if order is None else [ops[i] for i in order]

    def _explicit_order(
        self, function: FuncOp, ops: Sequence[Op], units: dict[FragmentOp, Unit], diagnostics: Diagnostics
    ) -> bool:
        try:
            order = self._sorted(ops, self._constraints(_by_mesh(units)))
        except ScheduleError as error:
            raise diagnostics.fatal(function.loc, str(error)) from None
        if order is None:
            order = self._in_loops(ops, units)
        if order is None:
            self._warn(ops, units, diagnostics)
            order = self._nearest_order(ops, units)
        return apply_order(function.body, order)

    def _nearest_order(self, ops: Sequence[Op], units: dict[FragmentOp, Unit]) -> list[Op]:
        """Return the order of the schedule as far as the uses allow; other ops come as soon as they can."""
        rank = [-1] * len(ops)
        for group in _by_mesh(units):
            constraints = self.schedule.constraints(group)
            for chain in constraints.chains if constraints is not None else ():
                for place, members in enumerate(chain):
                    for unit in members:
                        rank[unit.index] = place
        return [ops[i] for i in ranked_order(block_dependencies(ops), rank)]

    def _add_pair_by_pair(self, units: dict[FragmentOp, Unit]) -> None:
        """The reference's way: every independent pair of a mesh, each edge visible to the next question."""
        by_mesh: dict[str, list[tuple[FragmentOp, Unit]]] = {}
        for op, unit in units.items():
            by_mesh.setdefault(unit.mesh, []).append((op, unit))
        for a, unit_a in units.items():
            for b, unit_b in by_mesh[unit_a.mesh]:
                if a is b or not a.results:
                    continue
                earlier, later = (a, b) if unit_a.index < unit_b.index else (b, a)
                try:
                    wanted = self.schedule.before(unit_a, unit_b)
                except ScheduleError:
                    if find_path(earlier, later) is None:  # only independent units need an order
                        raise
                    continue
                if wanted and find_path(earlier, later) is None:
                    add_control_dependency(a, b)
