"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

import dataclasses
import logging

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.body_rewrites import cover_transferred_results
from mpmd_trace.passes.common.merge import merge_fragments, union_inferred_by
from mpmd_trace.passes.fragment_info import describe_fragment
from mpmd_trace.passes.greedy import Rewriter, apply_greedily, walk_mutable

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AbsorbInferredFragments(FunctionPass):
    """Merge inferred fragments into the root fragments next to them.

    A root is a user fragment, or one that reads no fragment, or that no fragment reads. Only callees are rewritten,
    unless `absorb_on_entry_point_function` is set. The rewriting is greedy, with unique constants, and has two patterns
    for a root R:

    - For the inferred fragments that R reads, in the order of its operands: their transfers move to the first op that
      reads them (unused ones are removed). The first of these fragments whose first user is then R is merged into R.
    - For the inferred fragments that read R, in the order of uses: the transfers that they read move behind the op that
      computes their operand. The first of these fragments that reads no op behind R is merged, at the place of R.

    The merged fragment has the attributes of R; two inferred ones have the `mpmd.inferred_by` of both.

    Before, with {absorb-on-entry-point-function}:

        %0 = mpmd.fragment<mesh="a", origin=[]> (%p) (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"]> (%0) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.sine %u : !t
          %2 = stablehlo.negate %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-absorb-inferred-fragments"
    summary = "let user fragments of callees absorb adjacent inferred fragments"
    mpmd_only = True
    absorb_on_entry_point_function: bool = option(False, "also work on entry point functions")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if function.is_entry_point and not self.absorb_on_entry_point_function:
            return False
        absorption = _Absorption()
        result = apply_greedily(function, [absorption], unique_constants=True)
        if not result.converged:
            raise diagnostics.fatal(
                function, f"@{function.sym_name} has inferred fragments that still change after ten rounds"
            )
        if function.is_entry_point:
            for op in walk_mutable(function.regions[0]):
                if isinstance(op, FragmentOp) and not op.is_user:
                    _log.warning(
                        "@%s still contains an %s, which may cost performance", function.sym_name, describe_fragment(op)
                    )
        for fragment in absorption.merged:
            if fragment.block is not None:
                cover_transferred_results(fragment)
        return True


class _Absorption:
    """A root takes in the inferred fragments next to it; what it takes in last is visited next."""

    op_name: str | None = "mpmd.fragment"

    def __init__(self) -> None:
        self.merged: list[FragmentOp] = []

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, FragmentOp)
        return _is_root(op) and (self._absorb_producer(op, rewriter) or self._absorb_consumer(op, rewriter))

    def _absorb_producer(self, root: FragmentOp, rewriter: Rewriter) -> bool:
        """Merge the first inferred producer whose first consumer is the root; transfers give way."""
        eligible: list[FragmentOp] = []
        for producer in _producers(root):
            if not isinstance(producer, FragmentOp) or producer.is_user:
                continue
            for transfer in producer.distinct_users:
                if isinstance(transfer, TransferOp):
                    _delay(transfer, rewriter)
            if _closest_consumer(producer) is root:
                eligible.append(producer)
        if eligible:
            self._merge(eligible[0], root, root, rewriter)
        return bool(eligible)

    def _absorb_consumer(self, root: FragmentOp, rewriter: Rewriter) -> bool:
        """Merge the first inferred user whose last producer is the root; transfers give way."""
        eligible: list[FragmentOp] = []
        for user in root.users:  # again for each use: transfers may move once more
            if not isinstance(user, FragmentOp) or user.is_user:
                continue
            for transfer in _producers(user):
                if isinstance(transfer, TransferOp):
                    _advance(transfer, rewriter)
            if _closest_producer(user) is root:
                eligible.append(user)
        if not eligible:
            return False
        consumer, behind = eligible[0], root.next_op
        if behind is consumer:
            behind = consumer.next_op
        assert behind is not None
        rewriter.move_before(self._merge(root, consumer, root, rewriter), behind)
        return True

    def _merge(self, producer: FragmentOp, consumer: FragmentOp, root: FragmentOp, rewriter: Rewriter) -> FragmentOp:
        """Merge the two; the result has the discardable attributes of the root."""
        attrs = dict(root.attrs)
        other = producer if root is consumer else consumer
        if not root.is_user and "mpmd.inferred_by" in other.attrs:
            inferred_by = union_inferred_by(root, other)
            assert inferred_by is not None
            attrs["mpmd.inferred_by"] = inferred_by
        merged = merge_fragments(producer, consumer, rewriter)
        merged.attrs.clear()
        merged.attrs.update(attrs)
        self.merged.append(merged)
        return merged


def _is_root(fragment: FragmentOp) -> bool:
    """Return whether it is a user fragment, or an inferred one at the end or the beginning of a chain of fragments."""
    return (
        fragment.is_user
        or not any(isinstance(user, FragmentOp) for user in fragment.users)
        or not any(isinstance(v.defining_op, FragmentOp) for v in fragment.operands)
    )


def _producers(op: Op) -> list[Op]:
    """Return the ops that define the operands, in operand order, each once."""
    return list(dict.fromkeys(maker for value in op.operands if (maker := value.defining_op) is not None))


def _closest_consumer(op: Op) -> Op | None:
    """Return the first op that uses a result, or holds one that does."""
    assert op.block is not None
    first: Op | None = None
    for user in op.distinct_users:
        around = user.ancestor_in(op.block)
        if around is not None and (first is None or around.is_before(first)):
            first = around
    return first


def _closest_producer(op: Op) -> Op | None:
    """Return the last op of the block that defines an operand."""
    last: Op | None = None
    for maker in _producers(op):
        if maker.block is op.block and (last is None or last.is_before(maker)):
            last = maker
    return last


def _delay(transfer: TransferOp, rewriter: Rewriter) -> None:
    """Move the transfer to its first user, or drop it."""
    consumer = _closest_consumer(transfer)
    if consumer is None:
        rewriter.erase(transfer)
    else:
        rewriter.move_before(transfer, consumer)


def _advance(transfer: TransferOp, rewriter: Rewriter) -> None:
    """Move the transfer directly behind the definition of its operand."""
    producer = transfer.operand(0).defining_op
    if producer is not None:
        rewriter.move_after(transfer, producer)
    else:
        assert transfer.block is not None
        rewriter.insert_front(transfer.block, transfer)
