"""`mpmd-remat-fragment`: recomputes forward fragments in front of the backward fragments that use them."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.attributes import UNIT
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.fragment_groups import merge_fragments
from mpmd_trace.passes.fragment_info import (
    call_counter,
    is_backward,
    is_executed_immediately_after,
    is_forward,
    set_call_counter,
    take_over_block,
)


def _matches(forward: FragmentOp) -> list[FragmentOp]:
    """Return the backward fragments in front of which `forward` has to be recomputed."""
    counter = call_counter(forward)
    if counter is None:
        return []
    return [
        user
        for user in forward.distinct_users
        if isinstance(user, FragmentOp)
        and is_backward(user)
        and call_counter(user) == counter
        and user.stage == forward.stage
        and not is_executed_immediately_after(forward, user)
    ]


@dataclasses.dataclass(frozen=True)
class RematFragment(FunctionPass):
    """Recompute the activations of a forward fragment in front of the backward fragments that read them.

    This applies to forward fragments with a call counter, in the order of the program. Each backward fragment that
    reads results of the forward fragment, has its call counter and stage, and does not directly follow it on their
    mesh, gets a copy of it, marked `remat`, and reads the results of the copy. With `merge_remat_fragments`, the copy
    is merged into the backward fragment (docs/rewriting.md).

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 1 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%0) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1, %2 : !a, !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %4 = stablehlo.negate %u : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 1 : ui32} (%u: !t) {
          %4 = stablehlo.negate %u : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %2 = mpmd.fragment<mesh="a", origin=["f"]> (%p) {call_counter = 0 : ui32, remat} (%u: !t) {
          %4 = stablehlo.negate %u : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        %3 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%2) {call_counter = 0 : ui32} (%u: !t) {
          %4 = stablehlo.sine %u : !t
          mpmd.return %4 : !t
        } : (!a) -> !a
        return %1, %3 : !a, !a
    """

    name = "mpmd-remat-fragment"
    summary = "recompute forward fragments for the backward fragments that use them"
    merge_remat_fragments: bool = option(False, "merge the copy into the backward fragment")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        forwards = [op for op in function.body if isinstance(op, FragmentOp) and is_forward(op)]
        changed = False
        for forward in forwards:
            for backward in _matches(forward):
                changed = True
                copy = forward.clone()
                assert isinstance(copy, FragmentOp)
                backward.block.insert_before(backward, copy)  # type: ignore[union-attr]
                for old, new in zip(forward.results, copy.results, strict=True):
                    old.replace_uses_if(new, lambda use, b=backward: use.owner is b)  # type: ignore[misc]
                if self.merge_remat_fragments:
                    counter = call_counter(backward)
                    copy = merge_fragments(copy, backward)
                    if counter is not None:
                        set_call_counter(copy, counter)
                copy.attrs["remat"] = UNIT
                take_over_block(copy, backward)
        return changed
