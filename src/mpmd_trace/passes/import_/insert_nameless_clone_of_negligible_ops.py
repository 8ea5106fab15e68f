"""`mpmd-insert-nameless-clone-of-negligible-ops`."""

from __future__ import annotations

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Region
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, NamedComputationOp
from mpmd_trace.ir.semantics import is_negligible
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.import_.building_blocks import holds_computations


class InsertNamelessCloneOfNegligibleOps(FunctionPass):
    """Clone constants that a named computation returns, and use the clones outside.

    So they do not bind their users to a mesh. This applies to each result that an op without operands and with one
    result computes in the body; only the function's return keeps the result. The computation does not change.

    Before:

        %0 = mpmd.named_computation<"f"> (%x) (%u: !t) {
          %c = stablehlo.constant dense<1.0> : !t
          mpmd.return %c : !t
        } : (!t) -> !t
        %1 = stablehlo.add %0, %x : !t
        return %0, %1 : !t, !t

    After:

        %0 = mpmd.named_computation<"f"> (%x) (%u: !t) {
          %cst_0 = stablehlo.constant dense<1.000000e+00> : !t
          mpmd.return %cst_0 : !t
        } : (!t) -> !t
        %cst = stablehlo.constant dense<1.000000e+00> : !t
        %1 = stablehlo.add %cst, %x : !t
        return %0, %1 : !t, !t
    """

    name = "mpmd-insert-nameless-clone-of-negligible-ops"
    summary = "repeat constants that named computations return outside of them"

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
