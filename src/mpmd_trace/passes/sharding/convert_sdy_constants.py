"""`mpmd-convert-sdy-constants`: constants are StableHLO's again."""

from __future__ import annotations

from mpmd_trace.ir.bodies import map_ops, replace_bodies
from mpmd_trace.ir.core import Op, Region, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.greedy import walk_mutable

#: The key under which a body remembers the one that this pass makes of it.
TO_STABLEHLO = "sdy.constant to stablehlo"


class ConvertSdyConstants(FunctionPass):
    """Replace each `sdy.constant` by a `stablehlo.constant` with the same attributes.

    Propagation creates `sdy.constant`s so that uses of a constant can have different shardings.

    Before:

        %0 = sdy.constant dense<1.0> : !t
        return %0 : !t

    After:

        %cst = stablehlo.constant dense<1.000000e+00> : !t
        return %cst : !t
    """

    name = "mpmd-convert-sdy-constants"
    summary = "turn sdy.constant into stablehlo.constant"
    distributed_only = False

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        return any(map(_convert, function.regions))


def _is_constant(op: Op) -> bool:
    return op.name == "sdy.constant"


def _convert(region: Region) -> bool:
    constants = [op for op in walk_mutable(region) if _is_constant(op)]
    for op in constants:
        new = op_like(op, (), name="stablehlo.constant")
        new.move_before(op)
        op.replace_all_uses_with(new.results)
        op.erase()
    return replace_bodies(region, _converted) or bool(constants)


def _converted(body: Region) -> Region:
    return map_ops(body, TO_STABLEHLO, _convert, only=_is_constant)
