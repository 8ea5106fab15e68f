"""Functions in which nothing can be simplified but the bodies of fragments."""

from __future__ import annotations

from mpmd_trace.ir.core import OpResult, Region
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.common.region_simplification import facts_of


def settled_bodies(function: FuncOp) -> list[Region] | None:
    """Return the distinct bodies of fragments if nothing else of the function can be simplified; None otherwise.

    That is so if its ops are fragments, transfers and a return, and if

    - all results have uses, and no two ops read the same,
    - the operands of a fragment are different, and its body returns and forwards nothing twice or for nothing,
    - transfers change the type, and come from no transfer.

    After the schedule, a program of many microbatches has thousands of fragments and a few bodies.  One look at each op
    takes a fraction of the time of the passes that would find nothing: without it, compiling 512 microbatches takes a
    fifth longer.
    """
    block = function.regions[0].blocks[0]
    if len(function.regions[0].blocks) != 1:
        return None
    arguments: dict[Region, int] = {}
    known: set[object] = set()
    last = block.terminator
    op = block.first
    while op is not None and op is not last:
        results = op.results
        for result in results:
            if result.first_use is None:
                return None
        if op.__class__ is FragmentOp:
            operands = tuple([use.value for use in op.operand_uses])
            body = op.regions[0]
            count = arguments.get(body)
            if count is None:
                if not body.frozen or len(body.blocks) != 1 or not facts_of(body).stays:
                    return None
                count = arguments[body] = len(body.blocks[0].args)
            if not results or len(operands) != count or (count > 1 and len(set(operands)) < count):
                return None
            key: object = operands or op.props["mesh_name"]
        elif op.__class__ is TransferOp:
            value = op.operand_uses[0].value
            if value.type is results[0].type or (isinstance(value, OpResult) and value.op.__class__ is TransferOp):
                return None
            key = value
        else:
            return None
        if key in known and "remat" in op.attrs:
            key = "remat", key
        if key in known:
            return None
        known.add(key)
        op = op._next
    return list(arguments)
