"""`mpmd-pipeline-scheduler`: puts the fragments of each mesh in the order of a pipeline schedule."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import Join, apply_order, block_dependencies, scan_order, sort_block
from mpmd_trace.passes.control_dependencies import add_control_dependency, remove_control_dependencies
from mpmd_trace.passes.fragment_info import call_counter, single_transpose_count, split_type
from mpmd_trace.passes.mesh_order import schedulable_meshes
from mpmd_trace.passes.optimize.paths import find_path
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Constraints, Order, Schedule, ScheduleError, Unit

log = logging.getLogger(__name__)


def scheduling_units(function: FuncOp, ops: Sequence[Op]) -> dict[FragmentOp, Unit]:
    """Return the scheduling units among the ops: user fragments with a call counter, all forward or all backward."""
    assert function.topology is not None
    meshes = {name: i for i, name in enumerate(schedulable_meshes(function.topology))}
    units: dict[FragmentOp, Unit] = {}
    for index, op in enumerate(ops):
        if not isinstance(op, FragmentOp):
            continue
        transpose = single_transpose_count(op)
        if transpose is None and not op.is_user:
            continue
        counter = call_counter(op)
        if counter is None or transpose not in (0, 1):
            continue
        mesh = op.mesh
        drops = "split_drop_transferred" in op.attrs and split_type(op) == "kDropTransferred"
        units[op] = Unit(index, mesh, meshes.get(mesh), len(meshes), transpose, counter, op.stage, drops)
    return units


def by_mesh(units: Mapping[FragmentOp, Unit]) -> list[list[Unit]]:
    """Return the units of each mesh."""
    by_mesh: dict[str, list[Unit]] = {}
    for unit in units.values():
        by_mesh.setdefault(unit.mesh, []).append(unit)
    return list(by_mesh.values())


def as_graph(given: list[Constraints]) -> tuple[list[tuple[int, int]], list[Join]]:
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


@dataclasses.dataclass(frozen=True)
class PipelineScheduler(FunctionPass):
    """Order the fragments of each mesh by a pipeline schedule, and other ops by their operands.

    For each two scheduling units a and b of a mesh, in the order of the program, unless one already depends on the
    other: if the schedule (`optimize/reference_schedules.py`) orders a first, b gets a control operand, which counts as
    a dependence from then on. Then the block is sorted: repeated scans append each op as soon as all ops that it reads
    have been appended. If there is a cycle, the order does not change. In the end, the control operands are removed,
    unless `remove_control_dependencies` is off.

    If the orders of the schedule and the uses together have no cycle, the result depends only on their transitive
    closure. So the pass first tries all constraints of the schedule at once: one topological sort then gives the same
    order in linear time.

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

    name = "mpmd-pipeline-scheduler"
    summary = "order the fragments of each mesh by a pipeline schedule"
    mpmd_only = True
    schedule: Order = option(SCHEDULES["1F1B"], f"The schedule: {', '.join(SCHEDULES)}.", name="must-happen-before")
    remove_control_dependencies: bool = option(True, "remove the control operands that express the order at the end")

    def always_verifies(self) -> bool:
        return self.remove_control_dependencies

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        ops = function.body.ops[:-1]
        units = scheduling_units(function, ops)
        if isinstance(self.schedule, Schedule) and self.schedule.by_stage:
            self._check_stages(units)
        constraints = self._constraints(by_mesh(units)) if self.remove_control_dependencies else None
        order = None if constraints is None else scan_order(block_dependencies(ops), *as_graph(constraints))
        if order is not None:
            return apply_order(function.body, [ops[i] for i in order])
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

    def _constraints(self, groups: Sequence[Sequence[Unit]]) -> list[Constraints] | None:
        """Return the constraints of groups of units of one mesh; None where pairs have to be asked."""
        result: list[Constraints] = []
        for group in groups:
            constraints = self.schedule.constraints(group)
            if constraints is None:
                return None
            result.append(constraints)
        return result

    def _add_pair_by_pair(self, units: dict[FragmentOp, Unit]) -> None:
        """Order in the reference's way: every independent pair of a mesh, each edge visible to the next question."""
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
