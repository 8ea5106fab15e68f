"""`mpmd-validate-no-param-transfers`: parameters stay on their meshes."""

from __future__ import annotations

import dataclasses

from mpmd_trace.diagnostics.location import Location
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass, option


@dataclasses.dataclass(frozen=True)
class ValidateNoParamTransfers(FunctionPass):
    """Warn about (or fail for) transfers between meshes whose value or name looks like a parameter.

    That is, the location of the value or of the transfer is a name that contains `param_pattern`. A step that moves
    parameters between meshes usually has a wrong assignment of inputs.

    Refused, with {fail-on-param-transfers}:

        func.func public @main(%p: !a loc("params['transformer']")) -> !b attributes {topology = #meshes} {
          %0 = mpmd.transfer %p : (!a) -> !b
          return %0 : !b
        }

    Says: a parameter (a name with "params['transformer") is transferred from mesh 'a' to mesh 'b':
      params['transformer']; parameters should live on the meshes that use them: check the assignment of inputs,
      or compute with the parameter on its own mesh
    """

    name = "mpmd-validate-no-param-transfers"
    summary = "find parameters that are transferred between meshes"
    mpmd_only = True

    fail_on_param_transfers: bool = option(False, "make it an error")
    param_pattern: str = option("params['transformer", "text that the names of parameters contain")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        known: dict[tuple[str, int], str | None] = {}  # many microbatches have one location, and reading it is slow

        def matching(location: Location) -> str | None:
            key = location.text, id(location.table)
            if key not in known:
                name = location.name
                known[key] = name if name is not None and self.param_pattern in name else None
            return known[key]

        report = diagnostics.refuse if self.fail_on_param_transfers else diagnostics.warning
        for op in function.body:
            if not isinstance(op, TransferOp) or op.is_intra_mesh:
                continue
            matches = (matching(op.operand(0).location), matching(op.loc))
            names = dict.fromkeys([name for name in matches if name is not None])
            if not names:
                continue
            report(
                op,
                f'a parameter (a name with "{self.param_pattern}") is transferred from mesh '
                f"'{op.source_type.mesh}' to mesh '{op.target_type.mesh}': {', '.join(names)}; parameters should live "
                "on the meshes that use them: check the assignment of inputs, or compute with the parameter on its own "
                "mesh",
            )
        return False
