"""`mpmd-split-bwd-fragments`: what the previous stage waits for is computed first, the rest apart."""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.gradient_cut import activation_ops
from mpmd_trace.passes.common.splitting import BlockSizes, backward_closure, split_fragment
from mpmd_trace.passes.common.walks import function_fragments
from mpmd_trace.passes.fragment_info import is_backward, split_type


@dataclasses.dataclass(frozen=True)
class SplitBwdFragments(FunctionPass):
    """Split backward fragments: first the results that are transferred, then the others.

    The second part (mostly weight gradients) can run later, as zero-bubble schedules require. The first part
    (docs/rewriting.md) has the ops on which a transferred result depends, the second part the others. Fragments of
    which all results, or none, are transferred are not split, nor are parts of split fragments.

    The backward fragment of the first stage has no transferred results. With `split_first_stage`, it is split into the
    gradients of activations and, behind them, the gradients of parameters.

    Before:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          %w = stablehlo.negate %v : !t
          mpmd.return %v, %w : !t, !t
        } : (!a) -> (!a, !a)
        %1 = mpmd.transfer %0#0 : (!a) -> !b
        return %0#1, %1 : !a, !b

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p) {split_keep_transferred} (%u: !t) {
          %3 = stablehlo.sine %u : !t
          mpmd.return %3, %3 : !t, !t
        } : (!a) -> (!a, !a)
        %1 = mpmd.fragment<mesh="a", origin=["f"(1)]> (%p, %0#1) {split_drop_transferred} (%u: !t, %v: !t) {
          %3 = stablehlo.negate %v : !t
          mpmd.return %3 : !t
        } : (!a, !a) -> !a
        %2 = mpmd.transfer %0#0 : (!a) -> !b
        return %1, %2 : !a, !b
    """

    name = "mpmd-split-bwd-fragments"
    summary = "split backward fragments into a part with the transferred results and the rest"
    distributed_only = False

    split_first_stage: bool = option(
        False, "also split backward fragments without transferred results, at the parameter gradients"
    )

    def may_split(self, fragment: FragmentOp) -> bool:
        """Return whether this backward may be split."""
        return split_type(fragment) is None

    def ops_that_stay(
        self,
        fragment: FragmentOp,
        pulled: tuple[bool, ...],
        function: FuncOp,
        sizes: BlockSizes,
        diagnostics: Diagnostics,
    ) -> tuple[Op, ...] | None:
        """Return the ops of the first part, None to keep the fragment; `pulled` results are those of the second."""
        stay = needed_ops(fragment.body, pulled)
        assert fragment.block is not None
        # The reference compares with the size of the wrong block here.
        return None if len(stay) + 1 == sizes.of(fragment.block) else stay

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        sizes = BlockSizes()
        changed = False
        for fragment in function_fragments(function):
            if not is_backward(fragment) or not self.may_split(fragment):
                continue
            block = fragment.block
            assert block is not None
            stay: tuple[Op, ...]
            pulled = tuple(not any(isinstance(user, TransferOp) for user in r.users) for r in fragment.results)
            if not any(pulled):
                continue
            if all(pulled):
                if not self.split_first_stage:
                    continue
                stay = activation_ops(fragment.body, _incoming_gradients(fragment))
                here = set(stay)
                pulled = tuple(v.defining_op not in here for v in fragment.body.returned)
                if not stay or not any(pulled):
                    continue
            else:
                needed = self.ops_that_stay(fragment, pulled, function, sizes, diagnostics)
                if needed is None:
                    continue
                stay = needed
            if split_fragment(fragment, pulled, stay, diagnostics):
                sizes.grow(block)
                changed = True
        return changed


@remembers
def needed_ops(body: Region, pulled: tuple[bool, ...]) -> tuple[Op, ...]:
    """Return the ops that compute the results that are not pulled."""
    return backward_closure(body, [v for v, p in zip(body.returned, pulled, strict=True) if not p])


def _incoming_gradients(fragment: FragmentOp) -> tuple[int, ...]:
    """Return the arguments that come from another mesh or from another backward fragment."""
    makers = [value.defining_op for value in fragment.operands[: len(fragment.body.block.args)]]
    return tuple(
        i
        for i, op in enumerate(makers)
        if isinstance(op, TransferOp) or (isinstance(op, FragmentOp) and is_backward(op))
    )
