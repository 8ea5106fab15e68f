"""`mpmd-convert-sdy-constants`: constants are StableHLO's again."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Block, Op, Region, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import FunctionPass

__all__ = ["ConvertSdyConstants"]


@dataclasses.dataclass(frozen=True)
class ConvertSdyConstants(FunctionPass):
    """No `sdy.constant` is left: each is a `stablehlo.constant` with all its attributes.

    Propagation made them so that uses of a constant can differ in sharding.

    Before:

        %0 = sdy.constant dense<1.0> : !t
        return %0 : !t

    After:

        %cst = stablehlo.constant dense<1.000000e+00> : !t
        return %cst : !t
    """

    name: ClassVar[str] = "mpmd-convert-sdy-constants"
    summary: ClassVar[str] = "turn sdy.constant into stablehlo.constant"
    distributed_only: ClassVar[bool] = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return any(_convert_region(region) for region in function.regions)


def _convert_block(block: Block) -> bool:
    changed = False
    for op in block:
        if _is_constant(op):
            _replace(op)
            changed = True
            continue
        for i, region in enumerate(op.regions):
            if region.frozen:
                body = map_ops(region, "sdy.constant to stablehlo", _convert_region, only=_is_constant)
                changed = changed or body is not region
                op.regions[i] = body
            else:
                changed = _convert_region(region) or changed
    return changed


def _is_constant(op: Op) -> bool:
    return op.name == "sdy.constant"


def _convert_region(region: Region) -> bool:
    changed = [_convert_block(block) for block in region.blocks]
    return any(changed)


def _replace(op: Op) -> None:
    new = op_like(op, (), name="stablehlo.constant")
    new.move_before(op)
    op.replace_all_uses_with(new.results)
    op.erase()
