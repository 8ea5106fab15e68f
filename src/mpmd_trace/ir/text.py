"""MLIR text in: any module that jaxlib's parser reads becomes our IR."""

from __future__ import annotations

from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.ir.ops import Module
from mpmd_trace.ir.parser import parse_generic
from mpmd_trace.jax_compat.mlir import to_generic

__all__ = ["parse"]


def parse(
    text: str, *, filename: str = "-", allow_unregistered: bool = False, diagnostics: list[Diagnostic] | None = None
) -> Module:
    """The module spelled by `text`: pretty or generic MLIR, in any dialect that jaxlib knows.

    `filename` appears in diagnostics; `allow_unregistered` takes ops of unknown dialects, too.  Warnings and remarks
    of the parser go to `diagnostics`.  Raises `MpmdError` with every diagnostic of the parser and verifier.
    """
    generic = to_generic(text, filename=filename, allow_unregistered=allow_unregistered, diagnostics=diagnostics)
    try:
        return parse_generic(generic)
    except ValueError as error:
        raise MpmdError(f"cannot read what MLIR makes of {filename}: {error}") from error
