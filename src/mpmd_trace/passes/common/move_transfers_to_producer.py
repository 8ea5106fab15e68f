"""`mpmd-move-transfers-to-producer`: transfers stand directly behind what they transfer."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops

__all__ = ["MoveTransfersToProducer"]


@dataclasses.dataclass(frozen=True)
class MoveTransfersToProducer(FunctionPass):
    """Every transfer stands behind the op whose result it moves, or at the front for a block argument.

    No transfer stands between two fragments that could be merged.  Transfers of one producer, and those of
    arguments, end in reversed order.

        %0 = mpmd.fragment ... ; %1 = mpmd.fragment ... ; %2 = mpmd.transfer %0
    becomes
        %0 = mpmd.fragment ... ; %2 = mpmd.transfer %0 ; %1 = mpmd.fragment ...
    """

    name: ClassVar[str] = "mpmd-move-transfers-to-producer"
    summary: ClassVar[str] = "move every transfer directly behind its producer"

    def run_on_function(
        self, function: FuncOp, module: Module, diagnostics: Diagnostics
    ) -> bool:
        changed = False
        for op in function_ops(function):
            if not isinstance(op, TransferOp):
                continue
            value = op.operand(0)
            producer, before = value.defining_op, op.prev_op
            if producer is not None:
                op.move_after(producer)
            else:
                assert value.block is not None and value.block.first is not None
                op.move_before(value.block.first)
            changed = changed or op.prev_op is not before
        return changed
