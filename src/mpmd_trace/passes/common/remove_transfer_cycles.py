"""`mpmd-remove-transfer-cycles`: a value that comes back is not transferred back."""

from __future__ import annotations

from mpmd_trace.ir.core import Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass


class RemoveTransferCycles(FunctionPass):
    """Replace a chain of transfers that returns to an earlier type by the earlier value.

    From the last transfer to the first, its result is replaced by the nearest value in its chain with the same type.
    Chains through host memory are kept, because they free device memory. The other transfers of the chain are not
    removed.

    Before:

        %0 = mpmd.transfer %p : (!a) -> !b
        %1 = mpmd.transfer %0 : (!b) -> !a
        return %0, %1 : !b, !a

    After:

        %0 = mpmd.transfer %p : (!a) -> !b
        return %0, %p : !b, !a
    """

    name = "mpmd-remove-transfer-cycles"
    summary = "use the original of a value that was transferred around and back"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for op in reversed(function.body):
            if isinstance(op, TransferOp):
                root = _root(op)
                if root is not None:
                    op.results[0].replace_all_uses_with(root)
                    op.erase()
                    changed = True
        return changed


def _root(transfer: TransferOp) -> Value | None:
    """Return the nearest value up the chain of transfers that has the type of the result."""
    wanted = transfer.target_type
    step: TransferOp | None = transfer
    while step is not None:
        if step.source_type.memory_kind not in (None, "device"):
            return None
        value = step.operand(0)
        if value.type is wanted:
            return value
        producer = value.defining_op
        step = producer if isinstance(producer, TransferOp) else None
    return None
