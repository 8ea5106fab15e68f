"""`mpmd-erase-unused-callee-block-arguments`."""

from __future__ import annotations

from mpmd_trace.passes.variants import EraseUnusedArgumentsOfAllCalls
from util import check, run

PASS = "mpmd-erase-unused-callee-block-arguments"
STEP = """
func.func private @step(%a: tensor<f32> {jax.buffer_donor = true}, %b: tensor<f32> {mhlo.layout_mode = "b"})
    -> (tensor<f32> {jax.result_info = "r0"}, tensor<f32> {jax.result_info = "r1"}) attributes {topology = #topo} {
  %0 = stablehlo.negate %b : tensor<f32>
  return %a, %0 : tensor<f32>, tensor<f32>
}
"""


def test_attributes_of_arguments_and_results_go_with_them() -> None:
    module = run(
        """
        func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %0:2 = mpmd.call @step(%p, %p) {x} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
          return %0#1 : tensor<f32>
        }
        """
        + STEP,
        PASS,
    )
    step = module.lookup("step")
    assert [d.text for d in step.arg_attrs] == ['{mhlo.layout_mode = "b"}']
    assert [d.text for d in step.res_attrs] == ['{jax.result_info = "r1"}']


def test_unused_calls_are_kept_in_step() -> None:
    # The reference forgets calls without used results, which then do not fit the function any more.
    module = run(
        """
        func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %0:2 = mpmd.call @step(%p, %p) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
          %1:2 = mpmd.call @step(%0#0, %0#1) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
          return %0#1 : tensor<f32>
        }
        """
        + STEP,
        PASS,
    )
    assert [op.num_operands for op in module.main.body if op.name == "mpmd.call"] == [1, 1]


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
