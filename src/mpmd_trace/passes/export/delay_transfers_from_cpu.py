"""`mpmd-delay-transfers-from-cpu`: host values come to the device when they are needed.

Source: section 4.4 of the specification of the export passes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.mesh_order import is_cpu_mesh

__all__ = ["DelayTransfersFromCpu"]


@dataclasses.dataclass(frozen=True)
class DelayTransfersFromCpu(FunctionPass):
    """A transfer from a host mesh, or from host memory, is directly before its first user.

    Those with the same first user keep their order.

        %t = mpmd.transfer %a : (!cpu) -> !d                 %f = mpmd.fragment<..> (%b) ..
        %f = mpmd.fragment<..> (%b) ..             =>        %t = mpmd.transfer %a : (!cpu) -> !d
        %g = mpmd.fragment<..> (%t) ..                       %g = mpmd.fragment<..> (%t) ..
    """

    name: ClassVar[str] = "mpmd-delay-transfers-from-cpu"
    summary: ClassVar[str] = "move transfers from the host to their first users"
    mpmd_only: ClassVar[bool] = True
    entry_only: ClassVar[bool] = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        block = function.body
        # Users of a transfer come after it, so none of them has moved yet: the old order decides.
        number = {op: i for i, op in enumerate(block)}
        changed = False
        for op in block.ops:
            if not isinstance(op, TransferOp) or not op.has_uses:
                continue
            source = op.source_type
            if not isinstance(source, MeshTensorType) or not (is_cpu_mesh(source.mesh) or source.on_host):
                continue
            users = [u for user in op.users if (u := user.ancestor_in(block)) is not None]
            first = min(users, key=number.__getitem__)
            if op.next_op is not first:
                op.move_before(first)
                changed = True
        return changed
