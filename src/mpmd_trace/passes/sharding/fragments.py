"""Walking the fragments of a function, also those in loops."""

from __future__ import annotations

from collections.abc import Iterator

from mpmd_trace.ir.core import Block
from mpmd_trace.ir.ops import ForOp, FragmentOp, FuncOp

__all__ = ["walk_fragments"]


def walk_fragments(function: FuncOp) -> Iterator[FragmentOp]:
    """The fragments at the top level and in loop bodies, in program order."""
    yield from _walk(function.body)


def _walk(block: Block) -> Iterator[FragmentOp]:
    for op in block:
        if isinstance(op, FragmentOp):
            yield op
        elif isinstance(op, ForOp):
            for nested in op.body.blocks:
                yield from _walk(nested)
