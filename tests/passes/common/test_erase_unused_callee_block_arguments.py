"""`mpmd-erase-unused-callee-block-arguments`."""

from __future__ import annotations

from mpmd_trace.passes.variants import EraseUnusedArgumentsOfAllCalls
from util import check

PASS = "mpmd-erase-unused-callee-block-arguments"


def test_functions_that_are_called_for_nothing() -> None:
    text = """
    func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
      %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
      return %p : tensor<f32>
    }
    func.func private @f(ARGUMENT) -> tensor<f32> attributes {topology = #topo} {
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      return %0 : tensor<f32>
    }
    """
    before = text.replace("ARGUMENT", "%a: tensor<f32>")
    check(before, PASS, before)
    after = text.replace("ARGUMENT", "").replace("@f(%p) : (tensor<f32>)", "@f() : ()")
    check(before, [EraseUnusedArgumentsOfAllCalls()], after)
