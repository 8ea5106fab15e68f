"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import ClassVar

from ...ir.core import Op
from ...ir.diagnostics import Diagnostics
from ...ir.ops import FragmentOp, FuncOp, Module, TransferOp
from ..base import FunctionPass, option
from ..fragment_info import describe_fragment
from ..greedy import Rewriter, apply_greedily, walk_mutable
from .merge import merge_fragments, union_inferred_by

__all__ = ["AbsorbInferredFragments"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AbsorbInferredFragments(FunctionPass):
    """Root fragments contain the inferred fragments next to them: callees look as the user wrote them.

        %0 = mpmd.fragment<mesh="m", origin=[]> (%a) (%x) { y = add(x, x); return y }
        %1 = mpmd.fragment<mesh="m", origin=["f"]> (%0) (%x) { y = f(x); return y }
    becomes
        %1 = mpmd.fragment<mesh="m", origin=["f"]> (%a) (%x) { y = add(x, x); z = f(y); return z }

    Unused ops are gone and the constants of every body are unified and at its front.
    """

    name: ClassVar[str] = "mpmd-absorb-inferred-fragments"
    summary: ClassVar[str] = "let user fragments of callees swallow neighbouring inferred fragments"
    mpmd_only: ClassVar[bool] = True
    absorb_on_entry_point_function: bool = option(False, "also work on entry point functions")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        if function.is_entry_point and not self.absorb_on_entry_point_function:
            return False
        result = apply_greedily(
            function, [_AbsorbProducer(), _AbsorbConsumer()], unique_constants=True
        )
        if not result.converged:
            raise diagnostics.fatal(
                function,
                f"@{function.sym_name} has inferred fragments that still change after ten rounds",
            )
        if function.is_entry_point:
            for op in walk_mutable(function.regions[0]):
                if isinstance(op, FragmentOp) and not op.is_user:
                    _log.warning(
                        "@%s still contains an %s, which may cost performance",
                        function.sym_name,
                        describe_fragment(op),
                    )
        return True


def _is_root(fragment: FragmentOp) -> bool:
    """A user fragment, or an inferred one at the end or at the beginning of a chain of fragments."""
    return (
        fragment.is_user
        or not any(isinstance(user, FragmentOp) for user in fragment.users)
        or not any(isinstance(v.defining_op, FragmentOp) for v in fragment.operands)
    )


def _producers(op: Op) -> list[Op]:
    """The ops that define the operands, in operand order, each once."""
    found = [value.defining_op for value in op.operands]
    return list(dict.fromkeys(producer for producer in found if producer is not None))


def _earliest(ops: Sequence[Op]) -> Op | None:
    found: Op | None = None
    for op in ops:
        if found is None or op.is_before(found):
            found = op
    return found


def _latest(ops: Sequence[Op]) -> Op | None:
    found: Op | None = None
    for op in ops:
        if found is None or found.is_before(op):
            found = op
    return found


def _closest_consumer(op: Op) -> Op | None:
    assert op.block is not None
    around = [user.ancestor_in(op.block) for user in op.distinct_users]
    return _earliest([user for user in around if user is not None])


def _closest_producer(op: Op) -> Op | None:
    return _latest([p for p in _producers(op) if p.block is op.block])



def _absorb(
    producer: FragmentOp, consumer: FragmentOp, root: FragmentOp, rewriter: Rewriter
) -> FragmentOp:
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
    return merged


class _AbsorbProducer:
    """A root swallows the first inferred producer whose first consumer it is; transfers give way."""

    op_name: str | None = "mpmd.fragment"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, FragmentOp)
        if not _is_root(op):
            return False
        eligible: list[FragmentOp] = []
        for producer in _producers(op):
            if not isinstance(producer, FragmentOp) or producer.is_user:
                continue
            for transfer in producer.distinct_users:
                if isinstance(transfer, TransferOp):
                    self.delay(transfer, rewriter)
            if _closest_consumer(producer) is op:
                eligible.append(producer)
        if not eligible:
            return False
        _absorb(eligible[0], op, op, rewriter)
        return True

    def delay(self, transfer: TransferOp, rewriter: Rewriter) -> None:
        """Move the transfer to its first user, or drop it."""
        consumer = _closest_consumer(transfer)
        if consumer is None:
            rewriter.erase(transfer)
        else:
            rewriter.move_before(transfer, consumer)


class _AbsorbConsumer:
    """A root swallows the first inferred user whose last producer it is; transfers give way."""

    op_name: str | None = "mpmd.fragment"

    def match_and_rewrite(self, op: Op, rewriter: Rewriter) -> bool:
        assert isinstance(op, FragmentOp)
        if not _is_root(op):
            return False
        eligible: list[FragmentOp] = []
        for user in op.distinct_users:
            if not isinstance(user, FragmentOp) or user.is_user:
                continue
            for transfer in _producers(user):
                if isinstance(transfer, TransferOp):
                    self.advance(transfer, rewriter)
            if _closest_producer(user) is op:
                eligible.append(user)
        if not eligible:
            return False
        consumer = eligible[0]
        target = op.next_op
        if target is consumer:
            target = consumer.next_op
        assert target is not None
        merged = _absorb(op, consumer, op, rewriter)
        rewriter.move_before(merged, target)
        return True

    def advance(self, transfer: TransferOp, rewriter: Rewriter) -> None:
        """Move the transfer directly behind the definition of its operand."""
        producer = transfer.operand(0).defining_op
        if producer is not None:
            rewriter.move_after(transfer, producer)
        else:
            assert transfer.block is not None
            rewriter.insert_front(transfer.block, transfer)
