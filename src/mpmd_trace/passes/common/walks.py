"""Walks over the ops at function level: those of a function and of the `mpmd.for` loops in it.

Bodies of fragments and named computations are never entered.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpmd_trace.ir.core import Block, Op
from mpmd_trace.ir.functions import function_around
from mpmd_trace.ir.ops import CallOp, ForOp, FragmentOp, FuncOp, Module


def function_ops(function: FuncOp, *, reverse: bool = False) -> Iterator[Op]:
    """Yield the ops of the function, each before the ops in its loop body.

    The op behind the current one is fixed before the current one is handed out.
    """
    for region in function.regions:
        for block in reversed(region.blocks) if reverse else region.blocks:
            yield from _block_ops(block, reverse)


def _block_ops(block: Block, reverse: bool) -> Iterator[Op]:
    for op in reversed(block) if reverse else block:
        yield op
        if isinstance(op, ForOp):
            yield from _block_ops(op.body.block, reverse)


def function_fragments(function: FuncOp, *, reverse: bool = False) -> Iterator[FragmentOp]:
    """Yield the fragments among `function_ops`."""
    for op in function_ops(function, reverse=reverse):
        if isinstance(op, FragmentOp):
            yield op


def calls_by_callee(module: Module) -> dict[str, list[CallOp]]:
    """Return every `mpmd.call` of the module, by the name of the callee, in module order."""
    result: dict[str, list[CallOp]] = {}
    for function in module.functions:
        for op in function_ops(function):
            if isinstance(op, CallOp):
                result.setdefault(op.callee, []).append(op)
    return result


def enclosing_function(op: Op) -> FuncOp:
    """Return the function that contains the op (or is it)."""
    result = function_around(op)
    assert result is not None, "the op is in no function"
    return result
