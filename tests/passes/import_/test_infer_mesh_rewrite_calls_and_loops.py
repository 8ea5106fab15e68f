"""mpmd-infer-mesh-rewrite-using-analysis: callees, calls, loops, errors"""

from import_programs import refusal, run

from mpmd_trace.ir.ops import FragmentOp

PASS = "mpmd-infer-mesh-rewrite-using-analysis"


def test_ops_that_still_have_other_users() -> None:
    message = refusal(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a : !T
          return %0 : !T
        }
        """,
        PASS,
    )
    assert "the result of 'stablehlo.abs'" in message
    assert "is used by 'func.return'" in message


def test_value_of_a_loop_on_two_meshes() -> None:
    message = refusal(
        """
        func.func @main(%a: !T) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.for (%a) {iterations = 4 : ui32} (%p: !T, %i: tensor<ui32>) {
            %1 = stablehlo.abs %p {use=<"p0", "p1">} : !T
            mpmd.return %1 : !T
          } : !T
          %r = mpmd.assign %0 : (!T) -> !P0
          return %r : !P0
        }
        """,
        PASS,
    )
    assert 'meshes "p0" and "p1"' in message
    assert "unroll the loop" in message


def test_token_between_effects() -> None:
    """The reference aborts on a token that goes from op to op."""
    module = run(
        """
        func.func @main(%a: !T) -> !P0 attributes {topology = #topo} {
          %0:2 = stablehlo.custom_call @f(%a) {has_side_effect = true} : (!T) -> (!T, !stablehlo.token)
          %1 = stablehlo.custom_call @g(%a, %0#1) {has_side_effect = true} : (!T, !stablehlo.token) -> !T
          %2 = mpmd.assign %1 : (!T) -> !P0
          %3 = mpmd.assign %0#0 : (!T) -> !P0
          return %2 : !P0
        }
        """,
        PASS,
    )
    first, second = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert second.operand(1) is first.results[1]
