"""`mpmd-sink-create-token-into-fragments`."""

from __future__ import annotations

from util import check, diagnostics

PASS = "mpmd-sink-create-token-into-fragments"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


def test_several_tokens_come_in_operand_order_and_lists_are_filtered() -> None:
    text = """
func.func public @main(%p: !s, %k: !stablehlo.token, %l: !stablehlo.token) -> !s
    attributes {topology = #topo} {
  %f:2 = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m, [{"d"}]>, <@m, []>, <@m, []>],
      out_shardings=[<@m, []>, <@m, [{"d"}]>]> (%p, %k, %l)
      {arg_attrs = [{a}, {b}, {c}], res_attrs = [{t}, {r}]}
      (%x: tensor<4xf32>, %m: !stablehlo.token, %n: !stablehlo.token) {
    %o = stablehlo.after_all %n, %m : !stablehlo.token
    mpmd.return %o, %x : !stablehlo.token, tensor<4xf32>
  } : (!s, !stablehlo.token, !stablehlo.token) -> (!stablehlo.token, !s)
  return %f#1 : !s
}
"""
    after = """
func.func public @main(%p: !s, %k: !stablehlo.token, %l: !stablehlo.token) -> !s
    attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m, [{"d"}]>], out_shardings=[<@m, [{"d"}]>]>
      (%p) {arg_attrs = [{a}], res_attrs = [{r}]} (%x: tensor<4xf32>) {
    %m = stablehlo.create_token : !stablehlo.token
    %n = stablehlo.create_token : !stablehlo.token
    %o = stablehlo.after_all %n, %m : !stablehlo.token
    mpmd.return %x : tensor<4xf32>
  } : (!s) -> !s
  return %f : !s
}
"""
    start = 'module { sdy.mesh @m = <["d"=2]>'
    check(start + text + "}", PASS, start + after + "}", PRELUDE)


def test_a_token_that_something_else_uses_is_an_error() -> None:
    text = """
func.func public @main(%p: !s) -> !stablehlo.token attributes {topology = #topo} {
  %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %k = stablehlo.create_token : !stablehlo.token
    mpmd.return %k : !stablehlo.token
  } : (!s) -> !stablehlo.token
  return %f : !stablehlo.token
}
"""
    succeeded, found = diagnostics(text, PASS, PRELUDE)
    assert not succeeded
    assert "func.return" in found[0].message
