"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

import dataclasses
import logging

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.absorption import Absorption
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.greedy import apply_greedily, walk_mutable

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AbsorbInferredFragments(FunctionPass):
    """Merge inferred fragments into the root fragments next to them.

    A root is a user fragment, or one that reads no fragment, or that no fragment reads. Only callees are rewritten,
    unless `absorb_on_entry_point_function` is set. The rewriting is greedy, with unique constants, and has two patterns
    for a root R:

    - For the inferred fragments that R reads, in the order of its operands: their transfers move to the first op that
      reads them (unused ones are removed). The first of these fragments whose first user is then R is merged into R.
    - For the inferred fragments that read R, in the order of uses: the transfers that they read move behind the op that
      computes their operand. The first of these fragments that reads no op behind R is merged, at the place of R.

    The merged fragment has the attributes of R; two inferred ones have the `mpmd.inferred_by` of both.

    Before, with {absorb-on-entry-point-function}:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.sine %u : !t
          %2 = stablehlo.negate %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-absorb-inferred-fragments"
    summary = "let user fragments of callees absorb adjacent inferred fragments"
    mpmd_only = True
    absorb_on_entry_point_function: bool = option(False, "also work on entry point functions")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if function.is_entry_point and not self.absorb_on_entry_point_function:
            return False
        absorption = Absorption(function)
        result = apply_greedily(function, [absorption], unique_constants=True, settle=absorption.settle)
        if not result.converged:
            raise diagnostics.fatal(
                function, f"@{function.sym_name} has inferred fragments that still change after ten rounds"
            )
        if function.is_entry_point:
            for op in walk_mutable(function.regions[0]):
                if isinstance(op, FragmentOp) and not op.is_user:
                    _log.warning(
                        "@%s still contains an %s, which may cost performance", function.sym_name, describe_fragment(op)
                    )
        return True
