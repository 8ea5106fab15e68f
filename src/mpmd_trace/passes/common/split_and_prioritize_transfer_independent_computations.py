"""`mpmd-split-and-prioritize-transfer-independent-computations`: what needs no transfer need not wait."""

from __future__ import annotations

from mpmd_trace.ir.bodies import free_values, remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.splitting import BlockSizes, split_fragment
from mpmd_trace.passes.common.walks import function_fragments
from mpmd_trace.passes.fragment_info import split_type


class SplitAndPrioritizeTransferIndependentComputations(FunctionPass):
    """Split off the computations of a fragment that need none of its transferred operands.

    They become the first fragment, which can run during the transfers. A fragment is split (docs/rewriting.md) if some,
    but not all, of its operands are results of transfers: the first part has the ops, and returns the values, that do
    not depend on these. A value that is read only inside a loop or a reduction does not count as a dependence.

    Before:

        %0 = mpmd.transfer %q : (!b) -> !a
        %1:2 = mpmd.fragment<mesh="a", origin=["f"]> (%0, %p) (%u: !t, %v: !t) {
          %w = stablehlo.sine %v : !t
          %y = stablehlo.add %u, %w : !t
          mpmd.return %w, %y : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %1#0, %1#1 : !a, !a

    After:

        %0 = mpmd.transfer %q : (!b) -> !a
        %1:3 = mpmd.fragment<mesh="a", origin=["f"]> (%0, %p) {split_keep_transferred} (%u: !t, %v: !t) {
          %3 = stablehlo.sine %v : !t
          mpmd.return %3, %3, %u : !t, !t, !t
        } : (!a, !a) -> (!a, !a, !a)
        %2 = mpmd.fragment<mesh="a", origin=["f"]> (%0, %p, %1#1, %1#2) {split_drop_transferred}
            (%u: !t, %v: !t, %w: !t, %y: !t) {
          %3 = stablehlo.add %y, %w : !t
          mpmd.return %3 : !t
        } : (!a, !a, !a, !a) -> !a
        return %1#0, %2 : !a, !a
    """

    name = "mpmd-split-and-prioritize-transfer-independent-computations"
    summary = "split off, in front, the work of fragments that needs no transferred operand"
    distributed_only = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        sizes = BlockSizes()
        changed = False
        for fragment in function_fragments(function):
            if split_type(fragment) is not None:
                continue
            block = fragment.block
            assert block is not None
            count = len(fragment.body.block.args)
            transferred = tuple(isinstance(v.defining_op, TransferOp) for v in fragment.operands[:count])
            if all(transferred) or not any(transferred):
                continue
            pulled, stay = _independent(fragment.body, transferred)
            if all(pulled) and not stay:
                continue
            if len(stay) + 1 == sizes.of(block):
                continue  # the reference compares with the size of the wrong block here
            if split_fragment(fragment, pulled, stay, diagnostics):
                sizes.grow(block)
                changed = True
        return changed


@remembers
def _independent(body: Region, transferred: tuple[bool, ...]) -> tuple[tuple[bool, ...], tuple[Op, ...]]:
    """Return which results depend on the transferred arguments, and the ops that do not.

    The terminator is among the latter if no result depends on them.  An op whose regions capture a
    transferred argument itself counts as independent, as in the reference; one whose regions capture a
    value computed from it does not.
    """
    arguments: set[Value] = {a for a, t in zip(body.block.args, transferred, strict=True) if t}
    reached = set(arguments)
    stay: list[Op] = []
    terminator = body.block.terminator
    for op in body.block:
        if any(v in reached for v in op.operands) or any(v in reached and v not in arguments for v in free_values(op)):
            reached.update(op.results)
        elif op is not terminator:
            stay.append(op)
    pulled = tuple(v in reached for v in terminator.operands)
    if not any(pulled):
        stay.append(terminator)
    return pulled, tuple(stay)
