"""`mpmd-merge-forward-with-backward`."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.merge_neighbours import merge_neighbours
from mpmd_trace.passes.fragment_info import is_backward, is_forward


class MergeForwardWithBackward(FunctionPass):
    """Merge a forward fragment with a backward fragment that uses it and directly follows it on its mesh.

    The neighbors (docs/rewriting.md) P and C are merged if C is the first fragment of the mesh behind P; only the first
    user of P is considered. The result has origins of both kinds, is neither forward nor backward, and is not merged
    again.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"], stage=2> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=2> (%0) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f", "f"(1)], stage=2> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-merge-forward-with-backward"
    summary = "merge a forward fragment with the backward fragment that follows it"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return merge_neighbours(function, _allowed)


def _allowed(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    return is_next and is_forward(producer) and is_backward(consumer)
