"""`mpmd-unroll-for-loops`: loops are replaced by their iterations."""

from __future__ import annotations

from mpmd_trace.ir.attributes import IntegerAttr, parse_attribute
from mpmd_trace.ir.bodies import copied_ops
from mpmd_trace.ir.core import Value, make_op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import ForOp, FuncOp, Module
from mpmd_trace.ir.types import tensor
from mpmd_trace.passes.base import FunctionPass
from mpmd_trace.passes.common.walks import function_ops


class UnrollForLoops(FunctionPass):
    """Replace each `mpmd.for` by copies of its body, one per iteration.

    Every op of a copy gets an `unroll_counter`, which counts iterations over the whole function; the loop index becomes
    a constant, which starts at 0 in each loop. Nested loops are an error, and so is an `unroll_factor` that differs
    from the number of iterations.

    Before:

        func.func public @main(%x: tensor<ui32>) -> tensor<ui32> attributes {topology = #meshes} {
          %0 = mpmd.for (%x) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%u: tensor<ui32>, %i: tensor<ui32>) {
            %v = stablehlo.add %u, %i : tensor<ui32>
            mpmd.return %v : tensor<ui32>
          } : tensor<ui32>
          return %0 : tensor<ui32>
        }

    After:

        func.func public @main(%arg0: tensor<ui32>) -> tensor<ui32> attributes {topology = #meshes} {
          %c = stablehlo.constant {unroll_counter = 0 : ui32} dense<0> : tensor<ui32>
          %0 = stablehlo.add %arg0, %c {unroll_counter = 0 : ui32} : tensor<ui32>
          %c_0 = stablehlo.constant {unroll_counter = 1 : ui32} dense<1> : tensor<ui32>
          %1 = stablehlo.add %0, %c_0 {unroll_counter = 1 : ui32} : tensor<ui32>
          return %1 : tensor<ui32>
        }
    """

    name = "mpmd-unroll-for-loops"
    summary = "replace every mpmd.for by its iterations"
    only_with = ("mpmd.for",)

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        loops = [op for op in function_ops(function) if isinstance(op, ForOp)]
        nested_first = sorted(loops, key=lambda loop: not isinstance(loop.parent_op, ForOp))
        if not all(self._check(loop, diagnostics) for loop in nested_first):
            return False
        done = 0
        for loop in loops:
            _unroll(loop, done)
            done += loop.iterations
        return bool(loops)

    def _check(self, loop: ForOp, diagnostics: Diagnostics) -> bool:
        outer = loop.parent_op
        factor = loop.unroll_factor
        if isinstance(outer, ForOp):
            diagnostics.refuse(
                loop,
                f"this loop of {loop.iterations} iterations is inside of another one of {outer.iterations}; nested "
                "loops cannot be unrolled: write the inner one as a Python loop or as one loop over both",
            )
        elif factor != loop.iterations:
            written = "it has no unroll factor" if factor is None else f"its factor is {factor}"
            diagnostics.refuse(
                loop,
                f"a loop of {loop.iterations} iterations can only be unrolled completely, but "
                f"{written}: set unroll_factor to {loop.iterations}",
            )
        else:
            return True
        return False


def _unroll(loop: ForOp, done: int) -> None:
    block = loop.block
    assert block is not None
    carried: list[Value] = loop.operands
    for iteration in range(loop.iterations):
        counter = IntegerAttr.get(done + iteration, "ui32")
        index = make_op(
            "stablehlo.constant",
            (),
            [tensor((), "ui32")],
            props={"value": parse_attribute(f"dense<{iteration}> : tensor<ui32>")},
            attrs={"unroll_counter": counter},
            loc=loop.loc,
        )
        block.insert_before(loop, index)
        copies, carried = copied_ops(loop.body.block, [*carried, index.result])
        for copy in copies:
            copy.attrs["unroll_counter"] = counter
        block.insert_all_before(loop, copies)
    loop.replace_all_uses_with(carried)
    loop.erase()
