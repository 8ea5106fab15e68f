"""`mpmd-merge-forward-with-backward`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.merge_neighbours import merge_neighbours
from mpmd_trace.passes.fragment_info import is_backward, is_forward

__all__ = ["MergeForwardWithBackward"]


@dataclasses.dataclass(frozen=True)
class MergeForwardWithBackward(FunctionPass):
    """A forward fragment directly followed, on its mesh, by a backward fragment that uses it is one with it.

        %0 = mpmd.fragment<mesh="m", origin=["f"], stage=2> (%a) (%x) { y = f(x); return y }
        %1 = mpmd.fragment<mesh="m", origin=["f"(1)], stage=2> (%0) (%x) { y = g(x); return y }
    becomes
        %1 = mpmd.fragment<mesh="m", origin=["f", "f"(1)], stage=2> (%a) (%x) { y = f(x); z = g(y); return z }
    """

    name: ClassVar[str] = "mpmd-merge-forward-with-backward"
    summary: ClassVar[str] = "merge a forward fragment with the backward fragment that follows it"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return merge_neighbours(function, _allowed)


def _allowed(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    return is_next and is_forward(producer) and is_backward(consumer)
