"""`mpmd-simplify-named-computations`.  Source: section 4 of the import specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, NamedComputationOp
from mpmd_trace.ir.semantics import is_pure, trivially_dead
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.greedy import Pattern, Rewriter, apply_greedily, walk_mutable
from mpmd_trace.passes.import_.building_blocks import holds_computations, interned_body
from mpmd_trace.passes.settled import Settled

__all__ = ["SimplifyNamedComputations"]

_BARRIER = "stablehlo.optimization_barrier"


@dataclasses.dataclass(frozen=True)
class SimplifyNamedComputations(FunctionPass):
    """Named computations take no value twice, return none twice, and none merely passes through them.

        %0:3 = mpmd.named_computation<"k"> (%a, %b, %a) (%x, %y, %z) {
          %q = multiply %x, %z
          mpmd.return %q, %y, %q                   %0 = mpmd.named_computation<"k"> (%a) (%x) {
        }                                    =>      %q = multiply %x, %x ; mpmd.return %q }
        return %0#0, %0#1, %0#2                    return %0, %b, %0
    """

    name: ClassVar[str] = "mpmd-simplify-named-computations"
    summary: ClassVar[str] = "drop repeated, unused and passed-through values of named computations"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        barriers: list[Pattern] = [_BypassBarriersInBody(), _BypassBarrier()]
        thawed = [
            op
            for op in walk_mutable(function.regions[0])
            if isinstance(op, NamedComputationOp) and holds_computations(op.body)
        ]
        if not thawed and Settled([*barriers, _Simplify()])(function.regions[0]):
            return False
        for op in thawed:
            _thaw(op)
        changed = apply_greedily(function, barriers).changed
        changed = apply_greedily(function, [_Simplify()], region_dce=True).changed or changed
        if thawed:
            _freeze(function.regions[0])
        return changed


# A computation that holds others is simplified, inside and outside in turns, as a mutable op.


def _thaw(op: Op) -> None:
    """Give the computation, and those inside, bodies of their own that may be changed."""
    region = op.regions[0] = op.regions[0].clone()
    region.parent = op
    for nested in list(walk_mutable(region)):
        if isinstance(nested, NamedComputationOp):
            _thaw(nested)


def _freeze(region: Region) -> None:
    """Freeze all bodies of named computations again."""
    for op in walk_mutable(region):
        if isinstance(op, NamedComputationOp) and not op.body.frozen:
            op.body = interned_body(op.body.freeze())


class _BypassBarriersInBody:
    """The same as `_BypassBarrier` for all barriers in a frozen body."""

    op_name: str | None = "mpmd.named_computation"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, NamedComputationOp)
        body = op.body
        if not body.frozen:
            return False

        def rewrite(region: Region) -> bool:
            return apply_greedily(region, [_BypassBarrier(region)]).changed

        if any(nested.name == _BARRIER for nested in body.block):
            rewriter.about_to_change(op)
            op.body = map_ops(body, "bypass-barriers", rewrite)
        return op.body is not body


class _BypassBarrier:
    """An optimization barrier leaves arguments alone that the named computation only returns."""

    op_name: str | None = _BARRIER

    def __init__(self, body: Region | None = None) -> None:
        self.body = body

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert op.block is not None
        if op.block.parent is not self.body and not isinstance(op.parent_op, NamedComputationOp):
            return False
        transparent = [
            value.defining_op is None
            and result.has_one_use
            and result.users[0].name == "mpmd.return"
            for value, result in zip(op.operands, op.results, strict=True)
        ]
        if not any(transparent):
            return False
        kept = [i for i, passes in enumerate(transparent) if not passes]
        operands: list[Value] = op.operands
        types = [op.results[i].type for i in kept]
        new = make_op(_BARRIER, [operands[i] for i in kept], types, loc=op.loc)
        rewriter.insert_before(op, new)
        for i, result in zip(kept, new.results, strict=True):
            operands[i] = result
        rewriter.replace_op(op, operands)
        return True


class _Simplify:
    """Drops operands and results of one named computation."""

    op_name: str | None = "mpmd.named_computation"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, NamedComputationOp)
        plan = _Plan(op, rewriter)
        plan.merge_results()
        plan.merge_operands()
        plan.pass_through()
        plan.drop_unused_results()
        if len(plan.gone_results) == len(op.results):
            if is_pure(op):
                rewriter.erase(op)
                return True
            plan.give_up()
            return False
        if not plan.gone_results and not plan.gone_operands:
            return False
        plan.apply()
        return True


class _Plan:
    """What goes from a named computation.  Its body stays as it is until the plan is carried out."""

    def __init__(self, op: NamedComputationOp, rewriter: Rewriter) -> None:
        self.op = op
        self.rewriter = rewriter
        self.args = op.body.block.args
        self.returned: list[Value] = op.body.returned
        #: Per block argument the first one of the same operand.
        self.same_arg = list(range(len(self.args)))
        self.gone_results: set[int] = set()
        self.gone_operands: set[int] = set()

    def merge_results(self) -> None:
        first: dict[tuple[Value, object], int] = {}
        for j, (value, result) in enumerate(zip(self.returned, self.op.results, strict=True)):
            i = first.setdefault((value, result.type), j)
            if i != j:
                self.rewriter.replace_all_uses(result, self.op.results[i])
                self.gone_results.add(j)

    def merge_operands(self) -> None:
        first: dict[Value, int] = {}
        for j, value in enumerate(self.op.operands):
            i = first.setdefault(value, j)
            if i != j:
                self.same_arg[j] = i
                self.gone_operands.add(j)

    def pass_through(self) -> None:
        terminator = self.op.body.block.terminator
        other_use = [False] * len(self.args)
        passed: list[list[int]] = [[] for _ in self.args]
        for arg, i in zip(self.args, self.same_arg, strict=True):
            for use in arg.uses:
                if use.owner is terminator:
                    passed[i].append(use.index)
                else:
                    other_use[i] = True
        for i, results in enumerate(passed):
            operand = self.op.operand(i)
            for k in results:
                if self.op.results[k].type is operand.type:
                    self.rewriter.replace_all_uses(self.op.results[k], operand)
                    self.gone_results.add(k)
                else:
                    other_use[i] = True
            if not other_use[i]:
                self.gone_operands.add(i)

    def drop_unused_results(self) -> None:
        alone = len(self.op.results) == 1
        for k, (value, result) in enumerate(zip(self.returned, self.op.results, strict=True)):
            if result.has_uses:
                continue
            producer = value.defining_op
            if is_pure(self.op) if alone else producer is None or is_pure(producer):
                self.gone_results.add(k)

    def give_up(self) -> None:
        """Keep all operands and results; equal operands stay merged inside."""
        self.gone_results.clear()
        self.gone_operands.clear()
        if self.same_arg != list(range(len(self.args))):
            self.rewriter.about_to_change(self.op)
            self.op.regions[0] = self.body()

    def body(self) -> Region:
        """The body with merged arguments, and without what is gone."""
        region = self.op.body
        same, results, args = self.same_arg, sorted(self.gone_results), sorted(self.gone_operands)
        if not region.frozen:
            self._reduce(region, self.rewriter)
            return region
        key = ("simplify-named-computation", tuple(same), tuple(results), tuple(args))

        def rewrite(copy: Region) -> bool:
            self._reduce(copy, Rewriter(copy))
            return True

        return map_ops(region, key, rewrite)

    def _reduce(self, region: Region, rewriter: Rewriter) -> None:
        block = region.block
        for j, i in enumerate(self.same_arg):
            rewriter.replace_all_uses(block.args[j], block.args[i])
        block.terminator.erase_operands(self.gone_results)
        if self.gone_results or self.gone_operands:
            while _erase_dead(region, rewriter):
                pass
        block.erase_args(self.gone_operands)

    def apply(self) -> None:
        """Replace the computation by the smaller one."""
        op = self.op
        operands = _without(op.operands, self.gone_operands)
        kept = _without(op.results, self.gone_results)
        body = self.body()
        op.regions = [] if not body.frozen else op.regions
        new = make_op(
            op.name,
            operands,
            [r.type for r in kept],
            props={"origin": op.origin},
            regions=[body],
            loc=op.loc,
        )
        self.rewriter.insert_before(op, new)
        for old, result in zip(kept, new.results, strict=True):
            self.rewriter.replace_all_uses(old, result)
        self.rewriter.erase(op)


def _erase_dead(region: Region, rewriter: Rewriter) -> bool:
    dead = [op for op in walk_mutable(region) if trivially_dead(op)]
    for op in reversed(dead):
        rewriter.erase(op)
    return bool(dead)


def _without(values: Sequence[Value], gone: set[int]) -> list[Value]:
    return [v for i, v in enumerate(values) if i not in gone]
