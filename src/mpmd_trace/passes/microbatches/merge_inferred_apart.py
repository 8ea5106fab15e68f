"""`MergeInferredApart`: inferred fragments are merged with what belongs to the same microbatch, or to none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, TransferOp
from mpmd_trace.passes.base import option
from mpmd_trace.passes.common.merge_inferred_fragments import MergeInferredFragments, allowed, with_inferred
from mpmd_trace.passes.common.merge_neighbours import Mode, merge_neighbours
from mpmd_trace.passes.fragment_info import is_of_microbatch


@dataclasses.dataclass(frozen=True)
class MergeInferredApart(MergeInferredFragments):
    """Merge inferred fragments as the reference does, but keep the programs of microbatches equal.

    With both `merge_any_consumer` and `merge_sideways`, consumers come first.
    """

    name = "mpmd-merge-inferred-apart"
    summary = "mpmd-merge-inferred-fragments that keeps programs of microbatches equal"

    keep_sends_separate: bool = option(False, "keep inferred fragments that send what they make of gradients")
    uniform: bool = option(
        True, "keep fragments of microbatches apart from what belongs to none, where there are several microbatches"
    )

    def modes(self, function: FuncOp, diagnostics: Diagnostics) -> tuple[Mode, ...]:
        if self.merge_any_consumer and self.merge_sideways:
            return "any", "sideways"
        return super().modes(function, diagnostics)

    def merge(self, function: FuncOp, mode: Mode) -> bool:
        stays = _sends if self.keep_sends_separate else None
        if self.uniform and _has_microbatches(function):
            return merge_neighbours(function, _allowed_apart, mode, _with_inferred_apart, stays)
        return merge_neighbours(function, allowed, mode, with_inferred, stays)


def _with_inferred_apart(fragments: Sequence[FragmentOp]) -> Callable[[FragmentOp], bool]:
    """As `with_inferred`; besides, a fragment that belongs to a microbatch goes with one that does, too."""
    possible = with_inferred(fragments)
    meshes = {fragment.mesh for fragment in fragments if not fragment.is_user and is_of_microbatch(fragment)}
    # One that belongs to none may be merged with what was merged of several microbatches.
    return lambda producer: (
        producer.mesh in meshes if producer.is_user and is_of_microbatch(producer) else possible(producer)
    )


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
    first: int | None = None
    for op in function.body:
        if isinstance(op, FragmentOp) and (counter := op.call_counter) is not None:
            if first is not None and counter != first:
                return True
            first = counter
    return False


def _allowed_apart(producer: FragmentOp, consumer: FragmentOp, is_next: bool) -> bool:
    """With what comes before the first or after the last microbatch in it, that one would be a program of its own."""
    return is_of_microbatch(producer) == is_of_microbatch(consumer) and allowed(producer, consumer, is_next)
