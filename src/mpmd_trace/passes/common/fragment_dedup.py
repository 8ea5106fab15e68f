"""`mpmd-fragment-dedup`: equal operands and equal results of a fragment are one."""

from __future__ import annotations

from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.types import Type
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.body_rewrites import alias_arguments
from mpmd_trace.passes.common.walks import function_fragments


class FragmentDedup(FunctionPass):
    """Replace uses of repeated operands and results of a fragment by the first one.

    Operands come first, so that two returned arguments of the same operand are equal results. Results of different
    types (shardings) are not equal. `mpmd-fragment-dce` removes the repetitions.

    Before:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %p) (%u: !t, %v: !t) {
          %w = stablehlo.add %u, %v : !t
          mpmd.return %w, %w : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %0#0, %0#1 : !a, !a

    After:

        %0:2 = mpmd.fragment<mesh="a", origin=["f"]> (%p, %p) (%u: !t, %v: !t) {
          %1 = stablehlo.add %u, %u : !t
          mpmd.return %1, %1 : !t, !t
        } : (!a, !a) -> (!a, !a)
        return %0#0, %0#0 : !a, !a
    """

    name = "mpmd-fragment-dedup"
    summary = "use the first of equal operands and of equal results of each fragment"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for fragment in function_fragments(function):
            values = [use.value for use in fragment.operand_uses]
            repeats = len(set(values)) < len(values) or _returns_twice(fragment.body)
            if repeats and _dedup(fragment):
                changed = True
        return changed


@remembers
def _returns_twice(body: Region) -> bool:
    """Return whether the body returns one value several times."""
    return len(set(body.returned)) < len(body.returned)


def _dedup(fragment: FragmentOp) -> bool:
    position: dict[Value, int] = {}
    args = fragment.body.block.args  # control operands have no argument
    first = [position.setdefault(value, i) for i, value in zip(range(len(args)), fragment.operands, strict=False)]
    body = alias_arguments(fragment.body, first)
    changed = body is not fragment.body
    fragment.body = body
    seen: dict[tuple[Value, Type], Value] = {}
    for result, value in zip(fragment.results, body.returned, strict=True):
        earlier = seen.setdefault((value, result.type), result)
        if earlier is not result and result.has_uses:
            result.replace_all_uses_with(earlier)
            changed = True
    return changed
