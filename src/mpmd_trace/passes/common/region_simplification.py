"""Simplifies an op with a one-block body: equal results, equal operands, forwarded and unused values go."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from mpmd_trace.ir.bodies import map_ops, region_dce, remembered
from mpmd_trace.ir.core import Op, Region, Value, make_op
from mpmd_trace.ir.semantics import is_pure, trivially_dead
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.greedy import OpPattern, Pattern, Rewriter, walk_mutable


def simplify_region(op_name: str, *, keep_attributes: bool) -> Pattern:
    """Return the rule that the op `op_name` takes no value twice and returns none twice, and forwards and wastes none.

    In this order: uses of a result that returns the same value as an earlier one, with the same type, become uses
    of that one; the body uses the first of equal operands for all; uses of a result that is an argument become uses
    of the operand, if the types agree; unused results go if what computes them is pure (of a single result: if the
    whole op is).  An op without results left is erased if it is pure, and keeps all its results otherwise.

    `keep_attributes`: whether the simplified op has the attributes that are no properties.
    """
    return OpPattern(op_name, functools.partial(_simplify, keep_attributes))


def _simplify(keep_attributes: bool, op: Op, rewriter: Rewriter) -> bool:
    body = op.regions[0]
    if len(op.operand_uses) != len(body.block.args):  # control operands are no arguments
        return False
    facts = facts_of(body) if body.frozen else _facts(body)
    merged = _repeated_operands(op)
    if not merged and facts.stays and op.results:
        for result in op.results:
            if result.first_use is None:
                break
        else:
            return False
    gone_results = _repeated_results(op, facts, rewriter)
    gone_operands = _forward(op, facts, merged, gone_results, rewriter)
    _add_unused(op, facts, gone_results)
    if len(gone_results) == len(op.results):
        if is_pure(op):
            rewriter.erase(op)
            return True
        if merged:
            op.regions[0] = _reduced(body, merged, set(), set(), rewriter)
        return False
    if not gone_results and not gone_operands:
        return False
    kept = [r for r in op.results if r.index not in gone_results]
    body = _reduced(body, merged, gone_operands, gone_results, rewriter)
    if not body.frozen:
        op.regions = []  # it moves
    new = make_op(
        op.name,
        [v for i, v in enumerate(op.operands) if i not in gone_operands],
        [r.type for r in kept],
        props=op.props,
        attrs=op.attrs if keep_attributes else {},
        regions=[body],
        loc=op.loc,
    )
    rewriter.insert_before(op, new)
    for old, result in zip(kept, new.results, strict=True):
        rewriter.replace_all_uses(old, result)
    rewriter.erase(op)
    return True


class _Argument(NamedTuple):
    """How a body uses an argument: where it returns it, and whether it does anything else with it."""

    returned_at: tuple[int, ...]
    used_otherwise: bool


class _Facts(NamedTuple):
    """What does not depend on the operands and the users of the op."""

    arguments: tuple[_Argument, ...]
    #: Per returned value the first position that returns the same value.
    first: tuple[int, ...]
    #: Per returned value whether it may be dropped when it is unused.
    droppable: tuple[bool, ...]
    #: Whether some value is returned twice.
    repeats: bool
    #: The arguments that are returned or unused.
    forwarded: tuple[int, ...]

    @property
    def stays(self) -> bool:
        """True if nothing is simplified where operands differ and all results are used."""
        return not self.repeats and not self.forwarded


def facts_of(body: Region) -> _Facts:
    """Return what is known of a frozen body alone."""
    return remembered(body, "region simplification", lambda: _facts(body))


def _facts(body: Region) -> _Facts:
    block = body.block
    terminator = block.terminator
    arguments = []
    for arg in block.args:
        uses = arg.uses
        at = tuple(sorted(u.index for u in uses if u.owner is terminator))
        arguments.append(_Argument(at, len(at) < len(uses)))
    positions: dict[Value, int] = {}
    first, droppable = [], []
    pure: dict[Op, bool] = {}
    for k, value in enumerate(terminator.operands):
        first.append(positions.setdefault(value, k))
        producer = value.defining_op
        if producer is not None and producer not in pure:
            pure[producer] = is_pure(producer)
        droppable.append(producer is None or pure[producer])
    forwarded = tuple(i for i, a in enumerate(arguments) if a.returned_at or not a.used_otherwise)
    repeats = len(positions) < len(first)
    return _Facts(tuple(arguments), tuple(first), tuple(droppable), repeats, forwarded)


def _add_unused(op: Op, facts: _Facts, gone: set[int]) -> None:
    """Add the results that are not used and need not be computed."""
    if len(op.results) == 1:
        if not op.results[0].has_uses and is_pure(op):
            gone.add(0)
        return
    for result in op.results:
        if result.first_use is None and facts.droppable[result.index]:
            gone.add(result.index)


def _repeated_operands(op: Op) -> dict[int, int]:
    """For each operand that repeats an earlier one with the same type inside: which."""
    operands = op.operands
    if len(set(operands)) == len(operands):
        return {}
    seen: dict[tuple[Value, Type], int] = {}
    args = op.regions[0].block.args
    result = {}
    for i, value in enumerate(operands):
        first = seen.setdefault((value, args[i].type), i)
        if first != i:
            result[i] = first
    return result


def _repeated_results(op: Op, facts: _Facts, rewriter: Rewriter) -> set[int]:
    """Make users read the first of results that are the same value with the same type; gives the others."""
    gone: set[int] = set()
    if not facts.repeats:
        return gone
    seen: dict[tuple[int, Type], int] = {}
    for k, result in enumerate(op.results):
        first = seen.setdefault((facts.first[k], result.type), k)
        if first != k:
            rewriter.replace_all_uses(result, op.results[first])
            gone.add(k)
    return gone


def _forward(op: Op, facts: _Facts, merged: dict[int, int], gone_results: set[int], rewriter: Rewriter) -> set[int]:
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
                gone_results.add(k)
            else:
                all_forwarded = False
        if all_forwarded:
            dropped.add(i)
    return dropped


def _merge(arguments: Sequence[_Argument], merged: dict[int, int]) -> list[_Argument]:
    """Return the arguments after each use of a repeated one became a use of the first."""
    result = list(arguments)
    for i, first in merged.items():
        a, b = result[first], result[i]
        result[first] = _Argument(tuple(sorted(a.returned_at + b.returned_at)), a.used_otherwise or b.used_otherwise)
        result[i] = _Argument((), False)
    return result


def _reduced(body: Region, merged: dict[int, int], operands: set[int], results: set[int], rewriter: Rewriter) -> Region:
    """Return the body after merging arguments and dropping arguments and returned values, without dead code."""

    def change(region: Region) -> bool:
        block = region.block
        for i, first in merged.items():
            block.args[i].replace_all_uses_with(block.args[first])
        block.terminator.erase_operands(results)
        block.erase_args(operands)
        region_dce(region)
        return True

    if body.frozen:
        key = ("simplify region", tuple(merged.items()), tuple(sorted(operands)), tuple(sorted(results)))
        return map_ops(body, key, change)
    block = body.block
    for i, first in merged.items():
        rewriter.replace_all_uses(block.args[i], block.args[first])
    block.terminator.erase_operands(results)
    while dead := [op for op in walk_mutable(body) if (results or operands) and trivially_dead(op)]:
        for op in reversed(dead):
            rewriter.erase(op)
    block.erase_args(operands)
    return body
