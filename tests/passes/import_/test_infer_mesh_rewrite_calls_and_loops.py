"""mpmd-infer-mesh-rewrite-using-analysis: callees, calls, loops, errors"""

from import_programs import run

from mpmd_trace.ir.ops import FragmentOp

PASS = "mpmd-infer-mesh-rewrite-using-analysis"


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
