"""MLIR's own passes (canonicalize, cse, symbol-dce, inline, sdy-* ...) as passes over our IR."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..ir.diagnostics import Diagnostics, MpmdError
from ..ir.ops import Module
from ..ir.parser import parse_generic
from .base import Pass

__all__ = ["MlirPass", "is_upstream"]

#: Upstream passes that work on single functions.
_ON_FUNCTIONS = frozenset({"chlo-legalize-to-stablehlo"})


def is_upstream(name: str) -> bool:
    """Whether jaxlib registers a pass of this name."""
    from ..jax_compat.mlir import pipeline_parses

    return pipeline_parses(f"builtin.module({name})") or pipeline_parses(
        f"builtin.module(func.func({name}))"
    )


@dataclasses.dataclass(frozen=True)
class MlirPass(Pass):
    """Runs `pipeline`, a spec such as `canonicalize{top-down=false}`, on the printed module and reads it back."""

    name: ClassVar[str] = "mlir"
    summary: ClassVar[str] = "a pass of MLIR, StableHLO or Shardy itself"
    pipeline: str = ""
    on_functions: bool | None = None

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        from ..jax_compat.mlir import run_pipeline

        bare = self.pipeline.partition("{")[0]
        nested = bare in _ON_FUNCTIONS if self.on_functions is None else self.on_functions
        text = f"func.func({self.pipeline})" if nested else self.pipeline
        before = module.to_generic(debug_info=True)
        try:
            after, found = run_pipeline(before, f"builtin.module({text})", allow_unregistered=True)
        except MpmdError as error:
            diagnostics.found += error.diagnostics
            diagnostics.fail()
            return False
        diagnostics.found += found
        new = parse_generic(after)
        changed = new.to_generic() != module.to_generic()
        if changed:
            module.op, module.resources = new.op, new.resources
        return changed

    @property
    def spec(self) -> str:
        return self.pipeline
