"""`mpmd-validate-no-reshards`: no program exists only to change shardings."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import DictAttr, StringAttr
from mpmd_trace.ir.core import BlockArg, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentCallOp, FuncOp, Module
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.base import FunctionPass, option


@dataclasses.dataclass(frozen=True)
class ValidateNoReshards(FunctionPass):
    """Warn about (or fail for) fragment calls whose function only returns its arguments.

    The warning lists shapes and shardings of arguments and results, and the outputs of the program among them. A named
    fragment is an error.

    Refused:

        func.func public @main(%p: !a) -> !a attributes {topology = #meshes} {
          %0 = mpmd.fragment_call<mesh="a", origin=[]> @f(%p) : (!a) -> !a
          return %0 : !a
        }
        func.func @f(%u: !t) -> !t attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          return %u : !t
        }

    Says: @f on mesh 'a' computes nothing: it only changes shardings or copies values. Give the values the same ...
    """

    name = "mpmd-validate-no-reshards"
    summary = "find fragments that do nothing but reshard"

    fail_on_reshard_only_fragments: bool = option(False, "make it an error")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        calls = [op for op in function.body if isinstance(op, FragmentCallOp)]
        forwarding = {f.sym_name for f in module.functions if _only_returns_arguments(f)} if calls else set()
        report = diagnostics.refuse if self.fail_on_reshard_only_fragments else diagnostics.warning
        for op in calls:
            if op.callee not in forwarding:
                continue
            if not op.origin:
                report(
                    op,
                    f"@{op.callee} on mesh '{op.mesh}' computes nothing: it only changes shardings or copies values. "
                    "Give the values the same sharding where they are made and where they are used\n"
                    + "\n".join(_lines(op, function)),
                )
            else:
                diagnostics.refuse(
                    op,
                    f"internal error: the call of @{op.callee} has an origin, but the function only returns its "
                    "arguments; such a fragment should have been removed",
                )
        return False


def _only_returns_arguments(function: FuncOp) -> bool:
    if function.is_declaration:
        return False
    block = function.body
    terminator = block.terminator
    return block.first is terminator and all(isinstance(v, BlockArg) for v in terminator.operands)


def _shown(value: Value) -> str:
    type = value.type
    if not isinstance(type, MeshTensorType):
        return type.text
    sharding = "Replicated" if type.sharding is None else type.sharding.stripped
    return f"{type.tensor.text} {sharding}"


def _lines(op: FragmentCallOp, function: FuncOp) -> list[str]:
    lines = [f"  operand {i}: {_shown(v)} from {v.location}" for i, v in enumerate(op.operands)]
    terminator = function.body.terminator
    res_attrs: list[DictAttr] = function.res_attrs
    for i, result in enumerate(op.results):
        line = f"  result {i}: {_shown(result)} at {result.location}"
        for use in result.uses:
            if use.owner is terminator:
                info = res_attrs[use.index].entries.get("jax.result_info")
                name = info.value if isinstance(info, StringAttr) else f"number {use.index}"
                line += f", program output {name}"
        lines.append(line)
    return lines
