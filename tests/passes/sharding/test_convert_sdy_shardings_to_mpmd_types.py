"""`mpmd-convert-sdy-shardings-to-mpmd-types`."""

from __future__ import annotations

from util import diagnostics

PASS = "mpmd-convert-sdy-shardings-to-mpmd-types"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
!sd = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{"d"}, {}]>>
sdy.mesh @mesh = <["d"=2]>
"""


def test_a_transfer_that_would_reshard_is_an_error_but_no_failure() -> None:
    text = """
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !s {sdy.sharding = #sdy.sharding<@m2, [{"d"}, {}]>}) -> (!s, !s)
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %t = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{}, {"d"}]>]>} %p : (!s) -> !s
    %u = mpmd.transfer {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{}, {"d"}]>]>} %p : (!s) -> !s
    return %t, %u : !s, !s
  }
}
"""
    succeeded, found = diagnostics(text, PASS, PRELUDE.replace('sdy.mesh @mesh = <["d"=2]>', ""))
    assert succeeded
    assert [d.severity for d in found] == ["error"]
    assert '[{"d"}, {}]' in found[0].message
