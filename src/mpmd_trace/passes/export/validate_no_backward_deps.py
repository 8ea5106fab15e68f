"""`mpmd-validate-no-backward-deps`: a forward-only program goes through the meshes in order."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.core import OpResult, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.mesh_order import before


@dataclasses.dataclass(frozen=True)
class ValidateNoBackwardDeps(FunctionPass):
    """Check that data flows only from earlier to later meshes, in a program without transposed computations.

    Each fragment call that reads, through transfers, a result of a call on another mesh that does not precede its own
    is reported: as a warning, or, with `fail_on_backward_deps`, as an error, also in a program with transposed
    computations.

    Refused:

        func.func public @main(%q: !b) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment_call<mesh="b", origin=["f"]> @f(%q) : (!b) -> !b
          %1 = mpmd.transfer %0 : (!b) -> !a
          %2 = mpmd.fragment_call<mesh="a", origin=["g"]> @g(%1) : (!a) -> !a
          return %2 : !a
        }
        func.func @f(%u: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          return %u : !t
        }
        func.func @g(%u: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          return %u : !t
        }

    Says: @g on mesh 'a' needs a value that @f computes on mesh 'b', which is not before it in the pipeline;
      microbatches cannot overlap there: move one of the computations to another mesh
    """

    name = "mpmd-validate-no-backward-deps"
    summary = "find values that flow backward through the meshes of a forward program"
    mpmd_only = True

    fail_on_backward_deps: bool = option(False, "make it an error")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        calls = [op for op in function.body if isinstance(op, FragmentCallOp)]
        transposed = next((op for op in calls if any(o.transpose_count for o in op.origin)), None)
        if transposed is not None:
            if self.fail_on_backward_deps:
                diagnostics.refuse(
                    function,
                    f"@{function.sym_name} is not forward-only (@{transposed.callee} is part of a backward pass), so "
                    "its data must flow backward through the meshes; drop fail-on-backward-deps",
                )
            return False
        report = diagnostics.refuse if self.fail_on_backward_deps else diagnostics.warning
        reported: set[tuple[str, str]] = set()  # once for two functions, however often one calls the other
        for op in calls:
            for value in op.operands:
                producer = _producer(value)
                if producer is None or producer.mesh == op.mesh or before(producer.mesh, op.mesh):
                    continue
                if (producer.callee, op.callee) in reported:
                    continue
                reported.add((producer.callee, op.callee))
                report(
                    op,
                    f"@{op.callee} on mesh '{op.mesh}' needs a value that @{producer.callee} computes on mesh "
                    f"'{producer.mesh}', which is not before it in the pipeline; microbatches cannot overlap there: "
                    "move one of the computations to another mesh",
                )
        return False


def _producer(value: Value) -> FragmentCallOp | None:
    """Return the call that computes the value, however far it was transferred."""
    while isinstance(value, OpResult):
        if isinstance(value.op, FragmentCallOp):
            return value.op
        if not isinstance(value.op, TransferOp):
            return None
        value = value.op.operand(0)
    return None
