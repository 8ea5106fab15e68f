"""`mpmd-merge-paired-programs` (ours): a forward and a backward that run together each time are one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp, before_transfers
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.dedup_bodies import first_equal
from mpmd_trace.passes.fragment_info import (
    BLOCK,
    call_counter,
    set_call_counter,
    single_transpose_count,
    stages_consistent,
)
from mpmd_trace.passes.programs.merge_followers import merge_in_place

#: A forward and the backward that follows it.
Pair = tuple[FragmentOp, FragmentOp]
#: What they may say besides mesh, stage and origin: anything else is lost when they are merged.  Parts that are still
#: marked as of a block are programs of their own.
_ATTRIBUTES = frozenset({"call_counter", "split_keep_transferred", BLOCK})


class MergePairedPrograms(FunctionPass):
    """Merge a forward with the backward that directly follows it, if neither program runs elsewhere.

    Under 1F1B, this applies to the last mesh, for what no other stage has: the head, or the whole stage. XLA then
    optimizes both together, activations between them never become arrays, and there is one launch less per microbatch
    and one program less to compile. Programs that also run elsewhere, such as layers that other stages share, are not
    merged. Nor is a forward whose results go to other meshes, because they would wait for the backward. Nor is a
    backward that has to wait longer for other meshes than the forward does (inputs that are computed earlier than those
    of the forward, such as a slice of the targets on the first mesh, do not count).

    Before:

        %0 = mpmd.fragment<mesh="a", origin=["f"], stage=2> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=2> (%0) {call_counter = 0 : ui32} (%u: !t) {
          %v = stablehlo.sine %u : !t
          mpmd.return %v : !t
        } : (!a) -> !a
        return %1 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f", "f"(1)], stage=2> (%p) {call_counter = 0 : ui32} (%u: !t) {
          %1 = stablehlo.negate %u : !t
          %2 = stablehlo.sine %1 : !t
          mpmd.return %2 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-merge-paired-programs"
    summary = "merge a forward and a backward program that always run together"
    mpmd_only = True
    entry_only = True

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        order: dict[Op, int] = {op: i for i, op in enumerate(function.body)}
        fragments = [op for op in order if isinstance(op, FragmentOp)]
        pairs = list(_pairs(fragments))
        if not pairs:
            return False
        same = first_equal(dict.fromkeys([op.regions[0] for op in fragments]))
        for op in fragments:
            op.regions[0] = same[op.regions[0]]
        changed = False
        for first, second in _inseparable(pairs, Counter([op.regions[0] for op in fragments])):
            counter = call_counter(first)
            merged = merge_in_place(first, second, order)
            if merged is not None:
                set_call_counter(merged, counter)
                changed = True
        return changed


def _inseparable(pairs: list[Pair], runs: Mapping[Region, int]) -> list[Pair]:
    """Return the pairs without those of a program that also runs in no pair; `runs` counts all."""
    while True:
        paired = Counter([op.regions[0] for pair in pairs for op in pair])
        whole = {body for body, count in paired.items() if count == runs[body]}
        kept = [pair for pair in pairs if pair[0].regions[0] in whole and pair[1].regions[0] in whole]
        if len(kept) == len(pairs):
            return kept
        pairs = kept


def _pairs(fragments: Iterable[FragmentOp]) -> Iterator[Pair]:
    """Yield each forward with the next fragment of its mesh, where that is its backward and nothing speaks against it.

    What needs nothing, such as the zeros that sums start from, can as well run in front of both.
    """
    last: dict[str, tuple[FragmentOp, int | None]] = {}
    for op in fragments:
        if not op.operand_uses and is_pure(op):
            continue
        mesh, phase = op.mesh, single_transpose_count(op)
        if phase == 1 and mesh in last:
            before, its_phase = last[mesh]
            if its_phase == 0 and _may_be_one(before, op):
                yield before, op
        last[mesh] = op, phase


def _may_be_one(first: FragmentOp, second: FragmentOp) -> bool:
    if call_counter(first) != call_counter(second) or not stages_consistent(first, second):
        return False
    if not (_ATTRIBUTES.issuperset(first.attrs) and _ATTRIBUTES.issuperset(second.attrs)):
        return False
    for result in first.results:
        use = result.first_use
        while use is not None:
            if isinstance(use.owner, TransferOp):
                return False
            use = use.next
    given = {use.value for use in first.operand_uses}
    needed = [use.value for use in second.operand_uses if use.value not in given]
    makers = [value.defining_op for value in needed]
    if first not in makers:
        return False
    if any(map(_on_host, {value.type for value in (*first.results, *needed)})):
        return False
    awaited = {_maker(value) for value, op in zip(needed, makers, strict=True) if isinstance(op, TransferOp)}
    return not awaited or awaited <= _awaited_by(first)


def _maker(value: Value) -> Op | None:
    """Return what computes a value, wherever it is sent from there; None for an argument."""
    return before_transfers(value).defining_op


def _awaited_by(fragment: FragmentOp) -> set[Op | None]:
    """Return what has to run before a fragment, as far as it is of the same microbatch, and None for arguments."""
    result: set[Op | None] = {None}
    pending = [fragment]
    while pending:
        makers = {_maker(value) for value in pending.pop().operands} - result
        result |= makers
        pending += [op for op in makers if isinstance(op, FragmentOp) and call_counter(op) == call_counter(fragment)]
    return result


def _on_host(type: Type) -> bool:
    return isinstance(type, MeshTensorType) and type.memory_kind is not None
