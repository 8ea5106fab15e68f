"""MLIR text in: any module that jaxlib's parser reads becomes our IR."""

from __future__ import annotations

from .ir.collector import paused_collector
from .ir.ops import Module
from .ir.parser import parse_generic

__all__ = ["parse"]


def parse(text: str, *, filename: str = "-", allow_unregistered: bool = False) -> Module:
    """The module spelled by `text`: pretty or generic MLIR with the mpmd, StableHLO, sdy, func and chlo dialects.

    `filename` appears in diagnostics.  Raises `MpmdError` with every diagnostic of the parser and verifier.
    """
    from .jax_compat.mlir import to_generic

    generic = to_generic(text, filename=filename, allow_unregistered=allow_unregistered)
    with paused_collector():
        return parse_generic(generic)
