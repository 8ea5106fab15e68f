"""`mpmd-validate-no-inferred-fragments`: everything belongs to a computation that the user named."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import ArrayAttr, StringAttr
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.greedy import walk_mutable

#: Passes whose fragments may stay; what each of them is about, for the message.
_EXPECTED = {
    "uniquify": "a value is an input or output of the program more than once",
    "infer_mesh_wrap_meshless_ops": "code outside of named computations",
    "extract_reshards": "a transfer had to change a sharding",
    "infer_mesh_wrap_resultless_ops": "code with effects outside of named computations",
    "infer_mesh_convert_reduce_ops": "a reduction across meshes",
    "introduce_transfers": "a value that a transfer needs",
}


@dataclasses.dataclass(frozen=True)
class ValidateNoInferredFragments(FunctionPass):
    """Warn about (or fail for) fragments without origin that could not be merged into others.

    Fragments of some passes (for returned arguments, reshards, ...) sometimes remain, and cause only a warning. An
    inferred fragment without `mpmd.inferred_by` is an error.

    Refused:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) {mpmd.inferred_by = ["uniquify"]} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0 : !a

    Says: a computation on mesh 'a' belongs to no named computation and could not be merged into one (made by
      uniquify: a value is an input or output of the program more than once); it costs a program launch of its
      own: move the code into a named computation on 'a'
    """

    name = "mpmd-validate-no-inferred-fragments"
    summary = "find inferred fragments that no user fragment absorbed"

    fail_on_inferred_fragments: bool = option(True, "fail for fragments made by a pass that should not leave any")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        for op in walk_mutable(function.regions[0]):
            if isinstance(op, FragmentOp) and not op.is_user:
                self._report(op, diagnostics)
        return False

    def _report(self, op: FragmentOp, diagnostics: Diagnostics) -> None:
        inferred_by = op.attrs.get("mpmd.inferred_by")
        tags = (
            [e.value for e in inferred_by.elements if isinstance(e, StringAttr)]
            if isinstance(inferred_by, ArrayAttr)
            else []
        )
        if not tags:
            diagnostics.refuse(
                op,
                f"internal error: the fragment on mesh '{op.mesh}' has neither an origin nor an "
                "'mpmd.inferred_by' that names the pass that made it",
            )
            return
        reasons = "; ".join(_EXPECTED[t] for t in tags if t in _EXPECTED)
        report = diagnostics.warning if reasons or not self.fail_on_inferred_fragments else diagnostics.refuse
        report(
            op,
            f"a computation on mesh '{op.mesh}' belongs to no named computation and could not be merged into one "
            f"(made by {', '.join(tags)}{': ' + reasons if reasons else ''}); it costs a program launch of its own: "
            f"move the code into a named computation on '{op.mesh}'",
        )
