"""Shardy's own propagation, run by the pass manager of the installed jaxlib."""

from __future__ import annotations

import functools

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.jax_compat.mlir import expand_pipeline, run_pipeline
from mpmd_trace.passes.option_text import split_outside

__all__ = ["propagation_pipeline", "run_shardy"]

#: The part of Shardy's pipeline that partitioning needs ends with this pass.
_LAST = "sdy-insert-func-call-reshards"
_EXPORT = "sdy-export-pipeline{avoid-export-for-partitioning=true}"
#: Writes debug dumps: printed as a part of the pipeline, but not accepted by the parser.
_DUMP = "sdy-save-module"


@functools.cache
def propagation_pipeline() -> str:
    """The passes of this jaxlib's propagation pipeline without those that prepare partitioning by XLA."""
    expanded = expand_pipeline("builtin.module(sdy-propagation-pipeline)")
    steps = split_outside(expanded[len("builtin.module(") : -1], ",")
    names = [step.partition("{")[0] for step in steps]
    if _LAST not in names:
        raise MpmdError(
            f"the propagation pipeline of the installed jaxlib has no '{_LAST}'; this version of Shardy is "
            f"not "
            f"supported: install a jaxlib between 0.10 and 0.12"
        )
    kept = [s for s in steps[: names.index(_LAST) + 1] if not s.startswith(_DUMP)]
    return f"builtin.module({','.join([*kept, _EXPORT])})"


def run_shardy(module: Module, diagnostics: Diagnostics) -> Module | None:
    """A new module: `module` after Shardy's propagation.  None when it failed."""
    try:
        text, found = run_pipeline(
            module.to_generic(debug_info=True), propagation_pipeline(), allow_unregistered=True
        )
    except MpmdError as error:
        diagnostics.found += error.diagnostics
        diagnostics.fail()
        return None
    diagnostics.found += found
    return parse_generic(text)
