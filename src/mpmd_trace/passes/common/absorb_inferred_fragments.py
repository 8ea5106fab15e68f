"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

import dataclasses
import logging
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.absorption import Absorption
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.greedy import apply_greedily, walk_mutable

__all__ = ["AbsorbInferredFragments"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AbsorbInferredFragments(FunctionPass):
    """Root fragments contain the inferred fragments next to them: callees look as the user wrote them.

        %0 = mpmd.fragment<mesh="m", origin=[]> (%a) (%x) { y = add(x, x); return y }
        %1 = mpmd.fragment<mesh="m", origin=["f"]> (%0) (%x) { y = f(x); return y }
    becomes
        %1 = mpmd.fragment<mesh="m", origin=["f"]> (%a) (%x) { y = add(x, x); z = f(y); return z }

    Unused ops are gone and the constants of every body are unified and at its front.
    """

    name: ClassVar[str] = "mpmd-absorb-inferred-fragments"
    summary: ClassVar[str] = "let user fragments of callees swallow neighbouring inferred fragments"
    mpmd_only: ClassVar[bool] = True
    absorb_on_entry_point_function: bool = option(False, "also work on entry point functions")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if function.is_entry_point and not self.absorb_on_entry_point_function:
            return False
        absorption = Absorption(function)
        result = apply_greedily(
            function, [absorption], unique_constants=True, settle=absorption.settle
        )
        if not result.converged:
            raise diagnostics.fatal(
                function,
                f"@{function.sym_name} has inferred fragments that still change after ten rounds",
            )
        if function.is_entry_point:
            for op in walk_mutable(function.regions[0]):
                if isinstance(op, FragmentOp) and not op.is_user:
                    _log.warning(
                        "@%s still contains an %s, which may cost performance",
                        function.sym_name,
                        describe_fragment(op),
                    )
        return True
