"""`mpmd-merge-inferred-fragments`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.merge_neighbours import Mode, merge_neighbours


@dataclasses.dataclass(frozen=True)
class MergeInferredFragments(FunctionPass):
    """Merge inferred fragments into neighbors on their mesh, where the order of ops allows it.

    At least one of the merged neighbors P and C (docs/rewriting.md) is inferred; the second half of a split fragment is
    never merged into the first. Only the first user of P is considered; with `merge_any_consumer`, the first user that
    may be merged; with `merge_sideways`, the next fragment of the mesh behind P instead, whether or not it uses P.

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=[]> (%0) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a

    Before, with {merge-sideways}:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %0, %1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %u : !t
          mpmd.return %1, %2 : !t, !t
        } : (!a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a
    """

    name = "mpmd-merge-inferred-fragments"
    summary = "merge inferred fragments with their neighbors"
    merge_any_consumer: bool = option(
        False, "merge with the first consumer that allows it, not only with the closest one"
    )
    merge_sideways: bool = option(False, "merge with the next fragment on the mesh, also when it is not a consumer")

    def modes(self, function: FuncOp, diagnostics: Diagnostics) -> tuple[Mode, ...]:
        """Return the ways of merging, in order."""
        if self.merge_any_consumer and self.merge_sideways and any(isinstance(op, FragmentOp) for op in function.body):
            raise diagnostics.fatal(
                function,
                f"{self.name}: merge-any-consumer and merge-sideways cannot be used together; run the pass "
                f"once with each",
            )
        return ("sideways" if self.merge_sideways else "any" if self.merge_any_consumer else "closest",)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for mode in self.modes(function, diagnostics):
            changed = self.merge(function, mode) or changed
        return changed

    def merge(self, function: FuncOp, mode: Mode) -> bool:
        """Merge the fragments of a function; says whether anything changed."""
        return merge_neighbours(function, allowed, mode, with_inferred)


def with_inferred(fragments: Sequence[FragmentOp]) -> Callable[[FragmentOp], bool]:
    """Return what tells who may be in an allowed pair: inferred fragments, and those with one on their mesh."""
    meshes = {fragment.mesh for fragment in fragments if not fragment.is_user}
    return lambda producer: producer.mesh in meshes


def allowed(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    """Return whether two neighbors may be merged."""
    if producer.is_user and consumer.is_user:
        return False
    # The point of a split is that other work may run between the halves.
    return not ("split_keep_transferred" in producer.attrs and "split_drop_transferred" in consumer.attrs)
