"""`mpmd-sink-negligible-ops-into-call-op`."""

from __future__ import annotations

from util import check

PASS = "mpmd-sink-negligible-ops-into-call-op"
F = """
func.func private @f(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
  %0 = stablehlo.add %a, %b : tensor<f32>
  return %0 : tensor<f32>
}
"""


def test_a_different_operand_in_one_call_keeps_the_argument() -> None:
    text = (
        """
        func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %d = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = mpmd.call @f(%p, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          %1 = mpmd.call @f(%0, %d) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          return %1 : tensor<f32>
        }
        """
        + F
    )
    check(text, PASS, text)


def test_an_op_with_other_uses_stays_and_dead_code_goes() -> None:
    check(
        """
        func.func @main(%p: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %dead = stablehlo.negate %p : tensor<f32>
          %0 = mpmd.call @f(%c, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          return %0, %c : tensor<f32>, tensor<f32>
        }
        """
        + F,
        PASS,
        """
        func.func @main(%p: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = mpmd.call @f() : () -> tensor<f32>
          return %0, %c : tensor<f32>, tensor<f32>
        }
        func.func private @f() -> tensor<f32> attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %d = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = stablehlo.add %c, %d : tensor<f32>
          return %0 : tensor<f32>
        }
        """,
    )


def test_unused_calls_have_no_say_but_follow() -> None:
    # The reference forgets calls without used results, which then do not fit the function any more.
    check(
        """
        func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = mpmd.call @f(%p, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          %1 = mpmd.call @f(%p, %0) : (tensor<f32>, tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }
        """
        + F,
        PASS,
        """
        func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
          %1 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
          return %0 : tensor<f32>
        }
        func.func private @f(%a: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
          %c = stablehlo.constant dense<1.0> : tensor<f32>
          %0 = stablehlo.add %a, %c : tensor<f32>
          return %0 : tensor<f32>
        }
        """,
    )


def test_calls_are_no_operand_free_ops() -> None:
    # The reference sinks them, too, and nothing inlines a call inside of what is called.
    text = """
    func.func @main(%p: tensor<f32>) -> tensor<f32> attributes {topology = #topo} {
      %0 = mpmd.call @one() : () -> tensor<f32>
      %1 = mpmd.call @f(%p, %0) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      return %1 : tensor<f32>
    }
    func.func private @one() -> tensor<f32> attributes {topology = #topo} {
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      return %0 : tensor<f32>
    }
    """
    check(text + F, PASS, text + F)
