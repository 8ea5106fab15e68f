"""`mpmd-insert-nameless-clone-of-negligible-ops`.  Source: section 3 of the import specification."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, NamedComputationOp
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.import_.building_blocks import holds_computations

__all__ = ["InsertNamelessCloneOfNegligibleOps"]


@dataclasses.dataclass(frozen=True)
class InsertNamelessCloneOfNegligibleOps(FunctionPass):
    """Constants that a named computation returns exist behind it once more, and are used from there.

        %0 = mpmd.named_computation<"k"> (%a) (..) { %c = constant ; return %c }
        use(%0)
    =>
        %0 = mpmd.named_computation<"k"> (%a) (..) { %c = constant ; return %c }
        %c = constant
        use(%c)

    Only the function's own return keeps the result.  So the constant does not tie its users to a mesh.
    """

    name: ClassVar[str] = "mpmd-insert-nameless-clone-of-negligible-ops"
    summary: ClassVar[str] = "repeat constants that named computations return outside of them"

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return _insert_clones(function.regions[0])


def _insert_clones(region: Region) -> bool:
    changed = False
    for block in region.blocks:
        for op in block:
            for i, nested in enumerate(op.regions) if op.regions else ():
                if nested.frozen:
                    if holds_computations(nested):  # few do, and the others need no copy
                        op.regions[i] = map_ops(nested, "insert-nameless-clone", _insert_clones)
                        changed = changed or op.regions[i] is not nested
                else:
                    changed = _insert_clones(nested) or changed
            if isinstance(op, NamedComputationOp):
                changed = _clone_results(op) or changed
    return changed


def _clone_results(computation: NamedComputationOp) -> bool:
    block = computation.block
    assert block is not None
    last = None
    for result, returned in zip(computation.results, computation.body.returned, strict=True):
        producer = returned.defining_op
        if producer is None or not is_negligible(producer):
            continue
        clone = producer.clone()
        block.insert_after(last or computation, clone)
        last = clone
        result.replace_uses_if(clone.result, lambda use: use.owner.name != "func.return")
    return last is not None
