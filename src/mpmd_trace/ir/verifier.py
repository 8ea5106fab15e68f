"""Checks the rules of all dialects on our IR, by MLIR's verifiers on the printed module.

problems = verify(module)     # a list of diagnostics; empty for a valid module
"""

from __future__ import annotations

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.jax_compat.mlir import prettify_or_fail


def verify(module: Module) -> list[Diagnostic]:
    """Return what is wrong with the module, as errors; empty when it is valid."""
    try:
        prettify_or_fail(module.to_generic(debug_info=True))
    except MpmdError as error:
        return list(error.diagnostics)
    return []
