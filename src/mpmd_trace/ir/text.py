"""MLIR text in: any module that jaxlib's parser reads becomes our IR."""

from __future__ import annotations

from typing import Any

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.jax_compat.mlir import module_to_generic, to_generic


def parse(
    text: str, *, filename: str = "-", allow_unregistered: bool = False, diagnostics: list[Diagnostic] | None = None
) -> Module:
    """Return the module spelled by `text`: pretty or generic MLIR, in any dialect that jaxlib knows.

    `filename` appears in diagnostics; `allow_unregistered` takes ops of unknown dialects, too.  Warnings and remarks
    of the parser go to `diagnostics`.  Raises `MpmdError` with every diagnostic of the parser and verifier, also for
    text with more than 200 brackets around a place.
    """
    if not isinstance(text, str):
        raise TypeError(f"parse takes MLIR text, a str, not {type(text).__name__}")
    generic = to_generic(text, filename=filename, allow_unregistered=allow_unregistered, diagnostics=diagnostics)
    try:
        return parse_generic(generic)
    except ValueError as error:
        raise MpmdError(f"cannot read what MLIR makes of {filename}: {error}") from error


def read_module(module: Any) -> Module:
    """Our IR of MLIR text, of a jaxlib module, or a copy of a module that is our IR already."""
    if isinstance(module, Module):
        return module.clone()
    if isinstance(module, str):
        return parse(module)
    if hasattr(module, "operation"):
        return parse(module_to_generic(module))
    raise TypeError(
        f"a module is MLIR text, a jaxlib.mlir.ir.Module or an mpmd_trace Module, not {type(module).__name__}"
    )
