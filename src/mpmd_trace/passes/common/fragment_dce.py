"""`mpmd-fragment-dce`: what no one uses is removed, from fragments and with dead transfers."""

from __future__ import annotations

from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.body_rewrites import prune, replace_op
from mpmd_trace.passes.common.walks import function_ops


class FragmentDce(FunctionPass):
    """Remove unused results and arguments of fragments, dead ops of their bodies, and unused transfers.

    Ops are visited from the last to the first, including those in loops. In a fragment, unused results are removed
    first, then dead ops of the body, then unused arguments with their operands; an empty fragment is removed.
    Attributes with an entry for each operand or result keep their length. Ops with side effects are kept.

    Before:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %p) (%u: !t, %v: !t) {
          %w = stablehlo.negate %u : !t
          mpmd.return %w, %v : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %0#0 : !a

    After:

        %0 = mpmd.fragment<mesh="a", origin=["f"]> (%p) (%u: !t) {
          %1 = stablehlo.negate %u : !t
          mpmd.return %1 : !t
        } : (!a) -> !a
        return %0 : !a
    """

    name = "mpmd-fragment-dce"
    summary = "remove unused results, arguments and ops of fragments, and dead transfers"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        clean: set[Region] = set()  # bodies of which nothing goes while all results are used
        for op in function_ops(function, reverse=True):  # users before producers
            if isinstance(op, FragmentOp):
                keep = [result.first_use is not None for result in op.results]
                body = op.body
                if body in clean and False not in keep:
                    continue
                if _clean(op, keep):
                    changed = True
                elif keep:
                    clean.add(body)
            elif isinstance(op, TransferOp) and not op.results[0].has_uses:
                op.erase()
                changed = True
        return changed


def _clean(fragment: FragmentOp, keep: list[bool]) -> bool:
    body, used = prune(fragment.body, tuple(keep))
    changed = body is not fragment.body
    if not all(keep):
        # Attributes that list something per operand or result are not shortened, as in the reference.
        used_results = [r for r in fragment.results if r.has_uses]
        fragment, changed = replace_op(fragment, fragment.operands, used_results, regions=[body]), True
    elif changed:
        fragment.body = body
    fragment.erase_operands([i for i, u in enumerate(used) if not u])
    if not fragment.num_operands and not fragment.results and body.block.first is body.block.last:
        fragment.erase()
        changed = True
    return changed
