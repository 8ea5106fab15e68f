"""`mpmd-rule-based-merge`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics, error_at
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.block_order import in_block_order, sort_block
from mpmd_trace.passes.common.fragment_groups import merge_fragments
from mpmd_trace.passes.control_dependencies import remove_control_dependencies
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.fragment_rules import FragmentInfo, MergeRule
from mpmd_trace.passes.greedy import Rewriter, apply_greedily

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RuleBasedMerge(FunctionPass):
    """Merge all fragments of a mesh that a rule names into one, with the label that the rule gives.

    A rule names fragments by origins (sorted), stage, call counter, part of a split, and mesh, all of which must agree.
    All others of a group on the mesh are merged with the last one, in an order in which none reads a later one
    directly, at the place of the first. The label replaces origins, stage, call counter, part and mesh; other
    attributes are removed. Another rule may then name the merged fragment. In the end, the block is sorted: repeated
    scans append each op as soon as all ops that it reads have been appended. If that is impossible, the pass fails.

    Before, with {rules=FragmentMergeRule(sources=[FragmentInfo(origins=["f"],mesh_name="a"),
        FragmentInfo(origins=["g"],mesh_name="a")],
        target=FragmentInfo(origins=["h"],stage=1,mesh_name="a"))}:

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

        %0:2 = mpmd.fragment<mesh="a", origin=["h"], stage=1> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %u : !t
          mpmd.return %1, %2 : !t, !t
        } : (!a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a
    """

    name = "mpmd-rule-based-merge"
    summary = "merge groups of fragments named by rules"
    mpmd_only = True
    rules: tuple[MergeRule, ...] = option((), "merge rules: FragmentMergeRule(sources=[INFO,...],target=INFO)")
    remove_control_dependencies: bool = option(True, "take out the control operands that a scheduling pass left behind")

    def always_verifies(self) -> bool:
        return self.remove_control_dependencies

    def refuse(self, rule: MergeRule, last: Op) -> None:
        """Tell that the fragments of a rule depend on each other in a cycle, so that they stay as they are."""
        _log.error("the fragments of the rule %s depend on each other in a cycle", rule)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        rule_of: dict[FragmentInfo, MergeRule] = {}
        for rule in self.rules:
            for info in rule.sources:
                if info in rule_of:
                    raise diagnostics.fatal(
                        function,
                        f"{info} is already part of another merge rule; a fragment can be merged by one rule only",
                    )
                rule_of[info] = rule
        result = apply_greedily(function, [_MergeGroup(function, rule_of, self.refuse)])
        if not result.converged:
            raise diagnostics.fatal(
                function,
                "the merge rules never come to an end: after ten rounds they still apply; a target that is a "
                "source of another rule is merged again, so look for rules that feed each other",
            )
        if not sort_block(function.body):
            raise diagnostics.fatal(
                function,
                "Cycle detected in the program, not all fragments could be properly merged. Merging the "
                "groups named by the rules makes fragments wait for each other: leave out the members "
                "between which another fragment or a transfer lies",
            )
        if self.remove_control_dependencies:
            remove_control_dependencies(function)
        return True


class _MergeGroup:
    """Merges the group that a fragment belongs to."""

    op_name: str | None = "mpmd.fragment"

    def __init__(
        self, function: FuncOp, rule_of: dict[FragmentInfo, MergeRule], refuse: Callable[[MergeRule, Op], None]
    ) -> None:
        self.refuse = refuse
        self.block = function.body
        self.rule_of = rule_of
        #: The fragments of each rule and mesh at the top level; erased ones are dropped when met.
        self.members: dict[tuple[int, str], dict[FragmentOp, None]] = {}
        for op in self.block:
            if isinstance(op, FragmentOp):
                self.record(op)

    def record(self, fragment: FragmentOp) -> None:
        rule = self.rule_of.get(FragmentInfo.of(fragment))
        if rule is not None:
            self.members.setdefault((id(rule), fragment.mesh), {})[fragment] = None

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, FragmentOp)
        rule = self.rule_of.get(FragmentInfo.of(op))
        if rule is None or op.block is not self.block:  # a fragment of a loop runs several times
            return False
        members = self.members.get((id(rule), op.mesh), {})
        others = [m for m in members if m is not op and m.block is self.block]
        if not others:
            return False
        group = _producers_first([*in_block_order(others), op])
        if group is None:
            self.refuse(rule, op)
            return False
        if rule.target.mesh_name != op.mesh:
            mesh_text = f"mesh '{rule.target.mesh_name}'" if rule.target.mesh_name else "no mesh"
            raise error_at(
                op,
                f"the target of a merge rule names {mesh_text}, but {describe_fragment(op)}, which the rule merges, is "
                f"on mesh '{op.mesh}': write mesh_name=\"{op.mesh}\" in the target of {rule}",
            )
        for member in group:
            members.pop(member, None)
        current = group[0]
        target = current.next_op
        for member in group[1:]:
            if target is member:
                target = member.next_op
            current = merge_fragments(current, member, rewriter)
        rule.target.write_to(current)
        assert target is not None
        rewriter.move_before(current, target)
        self.record(current)
        return True


def _producers_first(fragments: list[FragmentOp]) -> list[FragmentOp] | None:
    """Return the fragments such that direct producers come first; None when there is a cycle.

    Passes over the list swap each fragment that is ready with the first one that is not placed yet.
    """
    order = list(fragments)
    placed = 0
    waiting = set(order)
    while placed < len(order):
        before = placed
        for i in range(placed, len(order)):
            fragment = order[i]
            if fragment in waiting and not any(
                v.defining_op is not fragment and v.defining_op in waiting for v in fragment.operands
            ):
                waiting.discard(fragment)
                order[i], order[placed] = order[placed], order[i]
                placed += 1
        if placed == before:
            return None
    return order
