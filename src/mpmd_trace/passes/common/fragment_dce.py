"""`mpmd-fragment-dce`: what no one uses is removed, from fragments and with dead transfers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module, TransferOp
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.body_rewrites import prune, rebuilt_fragment
from mpmd_trace.passes.common.walks import function_ops

__all__ = ["FragmentDce"]


@dataclasses.dataclass(frozen=True)
class FragmentDce(FunctionPass):
    """Every result of a fragment, every argument and every transfer has a use; bodies hold no dead op.

    Fragments that are left with nothing at all are erased.  Effects survive.

        %0:2 = mpmd.fragment<mesh="m", origin=["f"]> (%p, %q) (%x, %y) {   // %0#1 is not used
          %s = stablehlo.negate %x
          mpmd.return %s, %y }
    becomes
        %0 = mpmd.fragment<mesh="m", origin=["f"]> (%p) (%x) {
          %s = stablehlo.negate %x
          mpmd.return %s }
    """

    name: ClassVar[str] = "mpmd-fragment-dce"
    summary: ClassVar[str] = "remove unused results, arguments and ops of fragments, and dead transfers"

    def run_on_function(
        self, function: FuncOp, module: Module, diagnostics: Diagnostics
    ) -> bool:
        changed = False
        clean: set[Region] = set()  # bodies of which nothing goes while all results are used
        for op in function_ops(function, reverse=True):  # users before producers
            if isinstance(op, FragmentOp):
                keep = [result._first is not None for result in op.results]
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
    body, used = prune(fragment.body, keep)
    changed = body is not fragment.body
    if not all(keep):
        kept = [r for r in fragment.results if r.has_uses]
        # Attributes that list something per operand or result are not shortened, as in the reference.
        new = rebuilt_fragment(fragment, body, [r.type for r in kept])
        for old_result, result in zip(kept, new.results, strict=True):
            old_result.replace_all_uses_with(result)
        fragment.erase()
        fragment, changed = new, True
    elif changed:
        fragment.body = body
    fragment.erase_operands([i for i, u in enumerate(used) if not u])
    if not fragment.num_operands and not fragment.results and body.block.first is body.block.last:
        fragment.erase()
        changed = True
    return changed
