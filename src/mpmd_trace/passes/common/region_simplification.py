"""Simplifies an op with a one-block body: equal results, equal operands, forwarded and unused values go.

A helper of passes of other groups (named computations on import, fragments during sharding propagation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpmd_trace.ir.bodies import dce, restrict
from mpmd_trace.ir.core import BlockArg, Op, Region, Value
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.common.body_rewrites import alias_arguments

__all__ = ["Rebuild", "simplify_region_op"]

#: Makes the (detached) simplified op: old op, operands, result types, body, which operands and results stay.
Rebuild = Callable[
    [Op, list[Value], list[Type], Region, Sequence[bool], Sequence[bool]], Op
]


def simplify_region_op(op: Op, rebuild: Rebuild) -> bool:
    """Simplify `op`, whose body is frozen and has one argument an operand; says whether it changed.

    Uses of results that are forwarded operands are redirected even when the op cannot be replaced.
    """
    body = op.regions[0]
    results, operands = op.results, op.operands
    returned = body.returned
    gone_results = [False] * len(results)
    gone_operands = [False] * len(operands)

    seen: dict[tuple[Value, Type], int] = {}
    for j, result in enumerate(results):
        i = seen.setdefault((returned[j], result.type), j)
        if i != j:
            result.replace_all_uses_with(results[i])
            gone_results[j] = True

    first: list[int] = []
    same: dict[tuple[Value, Type], int] = {}
    for j, (value, arg) in enumerate(zip(operands, body.block.args, strict=True)):
        first.append(same.setdefault((value, arg.type), j))
        gone_operands[j] = first[j] != j
    op.regions[0] = body = alias_arguments(body, first)

    terminator = body.block.terminator
    for i, arg in enumerate(body.block.args):
        only_forwarded = True
        for use in arg.uses:
            if use.owner is terminator and operands[i].type is results[use.index].type:
                results[use.index].replace_all_uses_with(operands[i])
                gone_results[use.index] = True
            else:
                only_forwarded = False
        gone_operands[i] = gone_operands[i] or only_forwarded

    for i, (result, value) in enumerate(zip(results, body.returned, strict=True)):
        if not result.has_uses and not gone_results[i]:
            producer = value.defining_op
            gone_results[i] = (
                is_pure(op)
                if len(results) == 1
                else isinstance(value, BlockArg) or (producer is not None and is_pure(producer))
            )

    if all(gone_results):
        if is_pure(op):
            op.erase()
            return True
        return False
    if not any(gone_results) and not any(gone_operands):
        return False
    keep_operands = [not g for g in gone_operands]
    keep_results = [not g for g in gone_results]
    kept = [r for r, k in zip(results, keep_results, strict=True) if k]
    new = rebuild(
        op,
        [v for v, k in zip(operands, keep_operands, strict=True) if k],
        [r.type for r in kept],
        dce(restrict(body, keep_operands, keep_results)),
        keep_operands,
        keep_results,
    )
    assert op.block is not None
    op.block.insert_before(op, new)
    for old, result in zip(kept, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()
    return True
