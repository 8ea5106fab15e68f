"""`mpmd-simplify-program`: fragments have the operands and results that they need.

Source: section 3.9 of the specification of sharding propagation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from mpmd_trace.ir.bodies import map_ops, region_dce, remembered
from mpmd_trace.ir.core import BlockArg, Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.greedy import Choices, Rewriter, apply_greedily
from mpmd_trace.passes.settled import Settled

__all__ = ["SimplifyProgram"]


@dataclasses.dataclass(frozen=True)
class SimplifyProgram(FunctionPass):
    """No fragment has repeated, forwarded or unused operands and results; nothing unused is left.

    %f:3 = mpmd.fragment<..> (%a, %b, %a) (%x: t, %y: t, %z: t) {
      %s = stablehlo.subtract %x, %z : t
      mpmd.return %s, %y, %s : t, t, t
    } : (!s, !s, !s) -> (!s, !s, !s)                              // %f#1 is read as %b from now on
    becomes
    %f = mpmd.fragment<..> (%a) (%x: t) { %s = stablehlo.subtract %x, %x : t  mpmd.return %s : t } ..
    """

    name: ClassVar[str] = "mpmd-simplify-program"
    summary: ClassVar[str] = "minimize the operands and results of fragments"
    distributed_only: ClassVar[bool] = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        patterns = Choices([_Simplify()])
        settled = Settled(patterns, unique_constants=True)
        result = apply_greedily(function, patterns, unique_constants=True, region_dce=True, settled=settled)
        if not result.converged:
            diagnostics.error(
                function,
                f"@{function.sym_name} still changes after ten rounds of simplification; this is a bug",
            )
            diagnostics.fail()
        return result.changed


class _Argument(NamedTuple):
    """How a body uses an argument: where it returns it, and whether it does anything else with it."""

    returned_at: tuple[int, ...]
    used_otherwise: bool


class _Facts(NamedTuple):
    """What does not depend on the operands and the users of a fragment."""

    arguments: tuple[_Argument, ...]
    #: Per returned value the first position that returns the same value.
    first: tuple[int, ...]
    #: Per returned value whether it may be dropped when it is unused.
    droppable: tuple[bool, ...]
    #: Whether some value is returned twice.
    repeats: bool
    #: The arguments that are returned or unused.
    forwarded: tuple[int, ...]


def _facts(body: Region) -> _Facts:
    return remembered(body, "facts for mpmd-simplify-program", lambda: _compute_facts(body))


def _compute_facts(body: Region) -> _Facts:
    block = body.block
    terminator = block.terminator
    arguments = []
    for arg in block.args:
        uses = arg.uses
        at = tuple(sorted(u.index for u in uses if u.owner is terminator))
        arguments.append(_Argument(at, len(at) < len(uses)))
    positions: dict[Value, int] = {}
    first, droppable = [], []
    for k, value in enumerate(terminator.operands):
        first.append(positions.setdefault(value, k))
        producer = value.defining_op
        droppable.append(isinstance(value, BlockArg) or producer is None or is_pure(producer))
    forwarded = tuple(i for i, a in enumerate(arguments) if a.returned_at or not a.used_otherwise)
    repeats = len(positions) < len(first)
    return _Facts(tuple(arguments), tuple(first), tuple(droppable), repeats, forwarded)


class _Simplify:
    op_name: str | None = "mpmd.fragment"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        if not isinstance(op, FragmentOp) or op.num_operands != len(op.body.block.args):
            return False
        facts = _facts(op.body)
        merged = _repeated_operands(op)
        erased_results = _repeated_results(op, facts, rewriter)
        erased_operands = _forward(op, facts, merged, erased_results, rewriter)
        self._mark_unused(op, facts, erased_results)
        if len(erased_results) == len(op.results):
            if is_pure(op):
                rewriter.erase(op)
                return True
            if merged:
                rewriter.about_to_change(op)
                op.body = _body(op.body, merged, set(), set())
            return False
        if not erased_results and not erased_operands:
            return False
        self._rebuild(op, merged, erased_operands, erased_results, rewriter)
        return True

    @staticmethod
    def _mark_unused(op: FragmentOp, facts: _Facts, erased: set[int]) -> None:
        if len(op.results) == 1:
            if not op.results[0].has_uses and is_pure(op):
                erased.add(0)
            return
        for result in op.results:
            if result._first is None and facts.droppable[result.index]:
                erased.add(result.index)

    @staticmethod
    def _rebuild(
        op: FragmentOp, merged: dict[int, int], operands: set[int], results: set[int], rewriter: Rewriter
    ) -> None:
        kept = [r for r in op.results if r.index not in results]
        new = FragmentOp(
            op.name,
            [v for i, v in enumerate(op.operands) if i not in operands],
            [r.type for r in kept],
            props=op.props,
            attrs=op.attrs,
            regions=[_body(op.body, merged, operands, results)],
            loc=op.loc,
        )
        rewriter.insert_before(op, new)
        for old, result in zip(kept, new.results, strict=True):
            rewriter.replace_all_uses(old, result)
        rewriter.erase(op)


def _repeated_operands(op: FragmentOp) -> dict[int, int]:
    """For each operand that repeats an earlier one with the same type inside: which."""
    operands = op.operands
    if len(set(operands)) == len(operands):
        return {}
    seen: dict[tuple[Value, Type], int] = {}
    args = op.body.block.args
    found = {}
    for i, value in enumerate(operands):
        first = seen.setdefault((value, args[i].type), i)
        if first != i:
            found[i] = first
    return found


def _repeated_results(op: FragmentOp, facts: _Facts, rewriter: Rewriter) -> set[int]:
    """Make users read the first of results that are the same value with the same type; gives the others."""
    erased: set[int] = set()
    if not facts.repeats:
        return erased
    seen: dict[tuple[int, Type], int] = {}
    for k, result in enumerate(op.results):
        first = seen.setdefault((facts.first[k], result.type), k)
        if first != k:
            rewriter.replace_all_uses(result, op.results[first])
            erased.add(k)
    return erased


def _forward(
    op: FragmentOp, facts: _Facts, merged: dict[int, int], erased: set[int], rewriter: Rewriter
) -> set[int]:
    """Make users of a returned argument read the operand, if the types agree; gives the operands to drop."""
    arguments: Sequence[_Argument] = facts.arguments
    candidates: Sequence[int] = facts.forwarded
    if merged:
        arguments = _merge(facts.arguments, merged)
        candidates = range(len(arguments))
    dropped: set[int] = set()
    for i in candidates:
        argument = arguments[i]
        all_forwarded = not argument.used_otherwise
        for k in argument.returned_at:
            if op.results[k].type is op.operand(i).type:
                rewriter.replace_all_uses(op.results[k], op.operand(i))
                erased.add(k)
            else:
                all_forwarded = False
        if all_forwarded:
            dropped.add(i)
    return dropped


def _merge(arguments: Sequence[_Argument], merged: dict[int, int]) -> list[_Argument]:
    """The arguments after each use of a repeated one became a use of the first."""
    found = list(arguments)
    for i, first in merged.items():
        a, b = found[first], found[i]
        found[first] = _Argument(
            tuple(sorted(a.returned_at + b.returned_at)), a.used_otherwise or b.used_otherwise
        )
        found[i] = _Argument((), False)
    return found


def _body(body: Region, merged: dict[int, int], operands: set[int], results: set[int]) -> Region:
    """The body after merging arguments and dropping arguments and returned values, without dead code."""
    key = (
        "mpmd-simplify-program",
        tuple(merged.items()),
        tuple(sorted(operands)),
        tuple(sorted(results)),
    )

    def change(region: Region) -> bool:
        block = region.block
        for i, first in merged.items():
            block.args[i].replace_all_uses_with(block.args[first])
        block.terminator.erase_operands(results)
        block.erase_args(operands)
        region_dce(region)
        return True

    return map_ops(body, key, change)
