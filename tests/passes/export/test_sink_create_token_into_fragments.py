"""`mpmd-sink-create-token-into-fragments`."""

from __future__ import annotations

from util import refusal

PASS = "mpmd-sink-create-token-into-fragments"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>>
"""


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
    assert "func.return" in refusal(text, PASS, PRELUDE)
