"""`mpmd-validate-named-ops-in-mpmd-func`."""

from __future__ import annotations

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, NamedComputationOp, NamedTensorOp
from mpmd_trace.passes.base import FunctionPass


class ValidateNamedOpsInMpmdFunc(FunctionPass):
    """Report named computations and tensors that are not directly in an mpmd function or another mpmd op.

    The pass does not fail; the errors are raised when the pipeline has run.

    Refused:

        func.func public @main(%x: !t) -> !t {
          %0 = mpmd.named_tensor %x name="t" : !t
          return %0 : !t
        }

    Says: named tensor 't' is in function @main, which has no topology. Named tensors can only be nested in mpmd
      functions or mpmd ops: call that function with mpmd.call, or move the name into the entry point
    """

    name = "mpmd-validate-named-ops-in-mpmd-func"
    summary = "report named ops in places where they can have no mesh"
    only_with = ("nested names",)
    distributed_only = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        _validate(function, function, diagnostics)
        return False


def _validate(parent: Op, function: FuncOp, diagnostics: Diagnostics) -> None:
    for region in parent.regions:
        for block in region.blocks:
            for op in block:
                _validate(op, function, diagnostics)
                if isinstance(op, NamedComputationOp | NamedTensorOp) and not _may_hold(parent):
                    diagnostics.error(op, _message(op, parent, function))


def _may_hold(parent: Op) -> bool:
    if isinstance(parent, FuncOp):
        return parent.is_mpmd
    return parent.name.startswith("mpmd.")


def _message(op: NamedComputationOp | NamedTensorOp, parent: Op, function: FuncOp) -> str:
    if isinstance(op, NamedComputationOp):
        what, kind = f"named computation '{op.origin.name}'", "Named computations"
    else:
        what, kind = f"named tensor '{op.tensor_name}'", "Named tensors"
    if isinstance(parent, FuncOp):
        place, advice = (
            f"function @{function.sym_name}, which has no topology",
            "call that function with mpmd.call, or move the name into the entry point",
        )
    else:
        place, advice = (
            f"the body of a '{parent.name}' in @{function.sym_name}",
            "name the whole control flow construct instead of its inside, or unroll it",
        )
    return f"{what} is in {place}. {kind} can only be nested in mpmd functions or mpmd ops: {advice}"
