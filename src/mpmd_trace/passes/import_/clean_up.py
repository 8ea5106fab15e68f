"""The first steps of the import pipeline.  Source: steps 1 to 4 of section 21 of the import specification."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ...ir.diagnostics import Diagnostics
from ...ir.ops import Module
from ..base import Pass
from ..greedy import walk_mutable
from ..inline_calls import InlineCalls, has_calls
from ..mlir_pass import MlirPass

__all__ = ["CanonicalizeUnrolled", "CleanUp"]

_CANONICALIZE = (
    "canonicalize{max-iterations=10 max-num-rewrites=-1 region-simplify=normal "
    "test-convergence=false top-down=true}"
)
_CHLO = "func.func(chlo-legalize-to-stablehlo)"
_INLINE = "inline{default-pipeline=canonicalize max-iterations=4}"
_SIMPLIFY = f"func.func(cse,{_CANONICALIZE})"


@dataclasses.dataclass(frozen=True)
class CleanUp(Pass):
    """There are no chlo ops, no `func.call`s, no repeated expressions, and no op has a simpler form.

        %0 = func.call @f(%a) ; %1 = func.call @f(%a)         %0 = multiply %a, %a
        %2 = add %0, %1                                  =>   %2 = add %0, %0
        func.func private @f(%x) { chlo.square %x .. }
    """

    name: ClassVar[str] = "mpmd-clean-up"
    summary: ClassVar[str] = "chlo-legalize-to-stablehlo, inline, cse and canonicalize"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        steps: list[Pass]
        if has_calls(module):
            steps = [MlirPass(_CHLO), InlineCalls(), MlirPass(_SIMPLIFY)]
        else:  # then MLIR's own inliner is good enough, and all steps are one run
            steps = [MlirPass(f"{_CHLO},{_INLINE},{_SIMPLIFY}")]
        changed = False
        for step in steps:
            changed = step.run(module, diagnostics) or changed
            if diagnostics.failed:
                break
        return changed


@dataclasses.dataclass(frozen=True)
class CanonicalizeUnrolled(Pass):
    """No op has a simpler form, unrolled loops included.

    Programs without unrolled loops are as `CleanUp` left them, so nothing is printed and read again for them.
    """

    name: ClassVar[str] = "mpmd-canonicalize-unrolled"
    summary: ClassVar[str] = "canonicalize what unrolled loops left"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        unrolled = any(
            "unroll_counter" in op.attrs
            for function in module.functions
            for region in function.regions
            for op in walk_mutable(region)
        )
        return unrolled and MlirPass(f"func.func({_CANONICALIZE})").run(module, diagnostics)
