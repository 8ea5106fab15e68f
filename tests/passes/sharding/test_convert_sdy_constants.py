"""`mpmd-convert-sdy-constants`."""

from __future__ import annotations

from util import check

PRELUDE = '!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>\n#topo = #mpmd.topology<<"s0" : <["d"=2]>>>\n'
TEXT = """
func.func public @main(%p: !s) -> !s attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %c = sdy.constant {foo} dense<1.0> : tensor<4xf32>
    %w = stablehlo.while(%i = %x) : tensor<4xf32> cond {
      %t = sdy.constant dense<true> : tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do { stablehlo.return %c : tensor<4xf32> }
    mpmd.return %w : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
func.func private @plain() -> tensor<f32> {
  %c = sdy.constant dense<2.0> : tensor<f32>
  return %c : tensor<f32>
}
"""


def test_constants_everywhere_are_converted_in_place() -> None:
    check(TEXT, "mpmd-convert-sdy-constants", TEXT.replace("sdy.constant", "stablehlo.constant"), PRELUDE)


def test_equal_constants_stay_one() -> None:
    """Shardy merges equal constants of a body; they are not told apart again, in a body of nothing else either."""
    template = """
func.func public @main(%p: !s) -> (!s, !s) attributes {{topology = #topo}} {{
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {{
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    {0}
  }} : (!s) -> (!s, !s)
  return %f#0, %f#1 : !s, !s
}}
"""
    one = "mpmd.return %c, %c : tensor<4xf32>, tensor<4xf32>"
    two = f"%d = stablehlo.constant dense<1.0> : tensor<4xf32>\n    {one.replace(', %c', ', %d')}"
    passes = "mpmd-shardy-propagation,mpmd-convert-sdy-constants"
    for body in one, two:
        check(template.format(body), passes, template.format(one), PRELUDE)
