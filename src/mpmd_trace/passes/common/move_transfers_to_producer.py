"""`mpmd-move-transfers-to-producer`: transfers stand directly behind what they transfer."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops


class MoveTransfersToProducer(FunctionPass):
    """Move every transfer directly behind the op that computes its operand; for a block argument, to the front.

    So no transfer is between two fragments that could be merged. Transfers are moved one by one, in the order of the
    program, so those of the same producer, and those of arguments, end up in reversed order.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="b", origin=["g"]> (%q) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!b) -> !b
        %2 = mpmd.transfer %0 : (!a) -> !b
        return %1, %2 : !b, !b

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!a) -> !a
        %1 = mpmd.transfer %0 : (!a) -> !b
        %2 = mpmd.fragment<mesh="b", origin=["g"]> (%q) (%u: !t) {
          %3 = stablehlo.negate %u : !t
          mpmd.return %3 : !t
        } : (!b) -> !b
        return %2, %1 : !b, !b
    """

    name = "mpmd-move-transfers-to-producer"
    summary = "move every transfer directly behind its producer"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
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
