"""Places in the user's program: those of this program, whatever went through the passes before."""

from __future__ import annotations

import gc

from mpmd_trace.ir.ops import Module
from mpmd_trace.passes.partition import partition

STEP = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = mpmd.named_computation<"f"> (%a) (%x: tensor<4xf32>) {
    %4 = stablehlo.sine %x : tensor<4xf32> loc("FILE":1:1)
    mpmd.return %4 : tensor<4xf32> loc("FILE":2:1)
  } : (tensor<4xf32>) -> tensor<4xf32> loc("FILE":3:1)
  %1 = stablehlo.add %0, %0 : tensor<4xf32> loc("FILE":4:1)
  %2 = stablehlo.cosine %1 : tensor<4xf32> loc("FILE":5:1)
  return %2 : tensor<4xf32> loc("FILE":6:1)
} loc("FILE":7:1)
"""


def imported(file: str) -> Module:
    return partition(
        STEP.replace("FILE", file), "step", [("m", [("x", 2)])], {"f": "m"}, [None], [None], phases="import"
    ).module


def places(module: Module) -> set[str]:
    found = {op.loc.resolved for op in module.walk() if op.name.startswith("stablehlo.")}
    return {file for file in ("first.py", "second.py") if any(file in place for place in found)}


def test_an_equal_op_of_another_program_lends_no_place() -> None:
    gc.disable()  # whether the first program is still in memory must not matter
    try:
        first, second = imported("first.py"), imported("second.py")
    finally:
        gc.enable()
    assert places(first) == {"first.py"} and places(second) == {"second.py"}
