"""`mpmd-merge-inferred-fragments`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.merge_neighbours import Mode, merge_neighbours
from mpmd_trace.passes.fragment_info import is_of_microbatch

__all__ = ["MergeInferredFragments"]


@dataclasses.dataclass(frozen=True)
class MergeInferredFragments(FunctionPass):
    """Inferred fragments are part of a neighbour on their mesh wherever the order of ops allows it.

    Merges neighbours (docs/rewriting.md) of which at least one is inferred, except the second half of a split
    fragment into the first.  Only the first user of P is considered; with `merge_any_consumer` the first that may be
    merged; with `merge_sideways` the next fragment of the mesh behind P instead, whether or not it uses P.

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

    name: ClassVar[str] = "mpmd-merge-inferred-fragments"
    summary: ClassVar[str] = "merge inferred fragments with their neighbours"
    merge_any_consumer: bool = option(
        False, "merge with the first consumer that allows it, not only with the closest one"
    )
    merge_sideways: bool = option(False, "merge with the next fragment on the mesh, also when it is not a consumer")
    #: Whether inferred fragments stay that send what they make of gradients, which the reference merges.
    keep_sends_separate: bool = False
    #: Whether fragments of microbatches stay apart from what belongs to none, where there are several microbatches.
    uniform_microbatch_programs: bool = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        mode: Mode = "sideways" if self.merge_sideways else "any" if self.merge_any_consumer else "closest"
        if self.merge_any_consumer and self.merge_sideways and any(isinstance(op, FragmentOp) for op in function.body):
            raise diagnostics.fatal(
                function,
                f"{self.name}: merge-any-consumer and merge-sideways cannot be used together; run the pass "
                f"once with each",
            )
        apart = self.uniform_microbatch_programs and _has_microbatches(function)
        allowed = _allowed_apart if apart else _allowed
        return merge_neighbours(function, allowed, mode, _Inferred(apart), _sends if self.keep_sends_separate else None)


class _Inferred:
    """Every allowed pair has an inferred fragment: a user fragment needs one on its mesh.

    Args:
        apart: whether one that belongs to a microbatch needs one that does, too.
    """

    def __init__(self, apart: bool) -> None:
        self.apart = apart
        #: The numbers of inferred fragments on each mesh, of microbatches and of all.
        self.of_microbatches: dict[str, int] = {}
        self.on_mesh: dict[str, int] = {}

    def note(self, fragment: FragmentOp, change: int) -> None:
        if not fragment.is_user:
            self.on_mesh[fragment.mesh] = self.on_mesh.get(fragment.mesh, 0) + change
            if self.apart and is_of_microbatch(fragment):
                self.of_microbatches[fragment.mesh] = self.of_microbatches.get(fragment.mesh, 0) + change

    def possible(self, producer: FragmentOp) -> bool:
        if not self.on_mesh:
            return False
        if not producer.is_user:
            return True
        # One that belongs to none may be merged with what was merged of several microbatches.
        counts = self.of_microbatches if self.apart and is_of_microbatch(producer) else self.on_mesh
        return counts.get(producer.mesh, 0) > 0


def _sends(fragment: FragmentOp) -> bool:
    """Return whether it is inferred and makes something of gradients for another mesh, such as a part of their norm.

    In the last backward fragment, of which `mpmd-split-bwd-fragments` puts what is sent in the first part, it would
    take all weight gradients there with it, and the gradients of activations would wait for them.
    """
    return (
        not fragment.is_user
        and any(isinstance(user, TransferOp) for result in fragment.results for user in result.users)
        and any(isinstance(op := value.defining_op, FragmentOp) and op.is_user for value in fragment.operands)
    )


def _has_microbatches(function: FuncOp) -> bool:
    counters = {op.call_counter for op in function.body if isinstance(op, FragmentOp)}
    return len(counters - {None}) > 1


def _allowed_apart(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    """With what comes before the first or after the last microbatch in it, that one would be a program of its own."""
    return is_of_microbatch(producer) == is_of_microbatch(consumer) and _allowed(producer, consumer, is_next)


def _allowed(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    if producer.is_user and consumer.is_user:
        return False
    # The point of a split is that other work may run between the halves.
    return not ("split_keep_transferred" in producer.attrs and "split_drop_transferred" in consumer.attrs)
