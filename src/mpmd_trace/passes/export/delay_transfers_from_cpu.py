"""`mpmd-delay-transfers-from-cpu`: host values come to the device when they are needed."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.mesh_order import is_cpu_mesh


class DelayTransfersFromCpu(FunctionPass):
    """Move transfers from host memory or a host mesh (`.../cpu`) directly in front of their first user.

    Transfers with the same first user keep their order.

    Before:

        !h = !mpmd.mesh_tensor<"a", tensor<4xf32>, memory_kind="pinned_host">
        func.func public @main(%p: !h, %r: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.transfer %p : (!h) -> !a
          %1 = mpmd.fragment<mesh="a", origin=["f"]> (%r) (%u: !t) {
            %v = stablehlo.negate %u : !t
            mpmd.return %v : !t
          } : (!a) -> !a
          return %1, %0 : !a, !a
        }

    After:

        !h = !mpmd.mesh_tensor<"a", tensor<4xf32>, memory_kind="pinned_host">
        func.func public @main(%arg0: !h, %arg1: !a) -> (!a, !a) attributes {topology = #meshes} {
          %0 = mpmd.fragment<mesh="a", origin=["f"]> (%arg1) (%arg2: !t) {
            %2 = stablehlo.negate %arg2 : !t
            mpmd.return %2 : !t
          } : (!a) -> !a
          %1 = mpmd.transfer %arg0 : (!h) -> !a
          return %0, %1 : !a, !a
        }
    """

    name = "mpmd-delay-transfers-from-cpu"
    summary = "move transfers from the host to their first users"
    only_with = ("host memory",)
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        block = function.body
        # Users of a transfer come after it, so none of them has moved yet: the old order decides.
        number = {op: i for i, op in enumerate(block)}
        changed = False
        for op in block.ops:
            if not isinstance(op, TransferOp) or not op.has_uses or op.comes_back:  # that is where it is for a reason
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
