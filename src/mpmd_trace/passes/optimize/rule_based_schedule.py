"""`mpmd-rule-based-schedule`: puts fragments in the order that the user's rules ask for."""

from __future__ import annotations

import dataclasses
import logging

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import sort_block
from mpmd_trace.passes.control_dependencies import add_control_dependency, remove_control_dependencies
from mpmd_trace.passes.fragment_rules import FragmentInfo, ScheduleRule
from mpmd_trace.passes.optimize.paths import find_path

log = logging.getLogger(__name__)


def _show(op: Op) -> str:
    return str(FragmentInfo.of(op)) if isinstance(op, FragmentOp) else op.name


@dataclasses.dataclass(frozen=True)
class RuleBasedSchedule(FunctionPass):
    """Run each fragment that a rule names before the next one of the rule on its mesh.

    For each two consecutive fragments of a rule, if neither depends on the other, the later one gets a control operand;
    then the block is sorted as by `mpmd-pipeline-scheduler`. Parts of rules that contradict the data flow, span meshes,
    or name unknown fragments are skipped, with a warning in the log. Two user fragments that a rule cannot distinguish
    are an error.

    Before, with {rules=FragmentScheduleRule(ordered_fragments=[
        FragmentInfo(origins=["g"],mesh_name="a")
        ->FragmentInfo(origins=["f"],mesh_name="a")])}:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["g"]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["g"]> (%p) (%u: !t) {
          %2 = stablehlo.sine %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %2 = stablehlo.negate %u : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %1, %0 : !a, !a
    """

    name = "mpmd-rule-based-schedule"
    summary = "order fragments by the user's rules"
    mpmd_only = True
    rules: tuple[ScheduleRule, ...] = option(
        (), "Comma separated rules: FragmentScheduleRule(ordered_fragments=[INFO->INFO])."
    )
    remove_control_dependencies: bool = option(True, "remove the control operands that express the order at the end")

    def always_verifies(self) -> bool:
        return self.remove_control_dependencies

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        fragments: dict[FragmentInfo, FragmentOp] = {}
        ambiguous = False
        for op in function.walk():
            if not isinstance(op, FragmentOp) or not op.is_user:
                continue
            info = FragmentInfo.of(op)
            if info in fragments:
                ambiguous = True
                diagnostics.refuse(
                    function,
                    f"two fragments are called {info} ({fragments[info].loc} and {op.loc}), so a schedule rule "
                    "cannot tell them apart; give one of the named computations another name",
                )
            else:
                fragments[info] = op
        if ambiguous:
            return False
        for rule in self.rules:
            self._apply(rule, fragments)
        before = function.body.ops
        if not sort_block(function.body):
            log.warning("%sthe schedule rules contradict each other or the data flow", function.loc.prefix)
        if self.remove_control_dependencies:
            remove_control_dependencies(function)
        return function.body.ops != before

    @staticmethod
    def _apply(rule: ScheduleRule, fragments: dict[FragmentInfo, FragmentOp]) -> None:
        infos = rule.ordered_fragments
        if len(infos) < 2:
            log.warning("a schedule rule needs at least two fragments; skipped: %s", rule)
            return
        before = infos[0]
        for after in infos[1:]:
            first, second = fragments.get(before), fragments.get(after)
            if first is None:
                log.warning("no fragment is %s; the part of the schedule rule is skipped", before)
            elif second is None:
                log.warning("no fragment is %s; the part of the schedule rule is skipped", after)
                continue
            elif first is second or find_path(first, second) is not None:
                pass
            elif first.mesh != second.mesh:
                log.warning(
                    "%s and %s run on different meshes; a schedule rule orders only within a mesh", before, after
                )
            elif (conflict := find_path(second, first)) is not None:
                log.warning(
                    "the schedule rule wants %s before %s, but the data flow is the other way round:\n  %s",
                    before,
                    after,
                    "\n  ".join(_show(op) for op in conflict),
                )
            elif not first.results:
                log.warning("%s has no result, so nothing can wait for it; the schedule rule is skipped there", before)
            else:
                add_control_dependency(first, second)
            before = after
