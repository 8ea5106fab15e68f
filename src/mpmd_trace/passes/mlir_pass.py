"""MLIR's own passes (canonicalize, cse, symbol-dce, inline, sdy-* ...) as passes over our IR."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.jax_compat.mlir import expand_pipeline, pipeline_parses, run_pipeline
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.parse_pipeline import REPEATED


def is_upstream(name: str) -> bool:
    """Return whether jaxlib registers a pass of this name."""
    return pipeline_parses(f"builtin.module({name})") or _on_functions(name)


def _on_functions(name: str) -> bool:
    """Return whether the upstream pass works on single functions only."""
    return not pipeline_parses(f"builtin.module({name})") and pipeline_parses(f"builtin.module(func.func({name}))")


def run_on_text(module: Module, pipeline: str, diagnostics: Diagnostics) -> str | None:
    """Return the text of the module after MLIR's pass manager has run the pipeline; None when that failed."""
    with failing(diagnostics):
        text, reported = run_pipeline(
            module.to_generic(debug_info=True, outlined=False), pipeline, allow_unregistered=True
        )
        diagnostics.found += reported
        return text
    return None


@contextmanager
def failing(diagnostics: Diagnostics) -> Iterator[None]:
    """Turn an `MpmdError` into diagnostics of a pass that fails."""
    try:
        yield
    except MpmdError as error:
        diagnostics.found += error.diagnostics
        diagnostics.fail()


@dataclasses.dataclass(frozen=True)
class MlirPass(Pass):
    """Runs `pipeline`, a spec such as `canonicalize{top-down=false}`, on the printed module and reads it back."""

    name = "mlir"
    summary = "a pass of MLIR, StableHLO or Shardy itself"
    pipeline: str = ""
    on_functions: bool | None = None

    @classmethod
    def checked(cls, name: str, options: Mapping[str, str | None]) -> MlirPass:
        """Return the pass with options as text.  Raises `MpmdError` when jaxlib does not accept them."""
        text = " ".join(
            key if value is None else " ".join(f"{key}={v}" for v in value.split(REPEATED))
            for key, value in options.items()
        )
        one = cls(f"{name}{{{text}}}" if text else name)
        expand_pipeline(one.anchored)  # says what is wrong
        return one

    @property
    def anchored(self) -> str:
        """The pipeline with the ops that it works on."""
        nested = self.on_functions
        if nested is None:
            nested = _on_functions(self.pipeline.partition("{")[0])
        return f"builtin.module({f'func.func({self.pipeline})' if nested else self.pipeline})"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        after = run_on_text(module, self.anchored, diagnostics)
        if after is None:
            return False
        new = parse_generic(after)
        changed = new.to_generic(outlined=False) != module.to_generic(outlined=False)
        if changed:
            module.op, module.resources = new.op, new.resources
        return changed

    @property
    def spec(self) -> str:
        return self.pipeline
