"""`mpmd-convert-sdy-shardings-to-mpmd-types`."""

from __future__ import annotations

from util import diagnostics, run

PASS = "mpmd-convert-sdy-shardings-to-mpmd-types"
PRELUDE = """
!s = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>>
!sd = !mpmd.mesh_tensor<"s0", tensor<8x6xf32>, sharding=<@mesh, [{"d"}, {}]>>
sdy.mesh @mesh = <["d"=2]>
"""


def test_loops_carry_the_sharding_of_their_operands() -> None:
    text = """
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !a {sdy.sharding = #sdy.sharding<@m2, [{"d"}]>}) -> !a
      attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %r = mpmd.for (%p) {iterations = 3 : ui32, sdy.sharding = #sdy.sharding_per_value<[<@m2, [{"d"}]>]>}
        (%x: !a, %i: tensor<ui32>) {
      %f = mpmd.fragment<mesh="s0", origin=["f"], in_shardings=[<@m2, [{"d"}]>],
          out_shardings=[<@m2, [{"d"}]>]> (%x) (%y: tensor<8xf32>) {
        mpmd.return %y : tensor<8xf32> } : (!a) -> !a
      mpmd.return %f : !a
    } : !a
    return %r : !a
  }
}
"""
    module = run(text, PASS, "")
    plain = '!mpmd.mesh_tensor<"s0", tensor<8xf32>>'
    assert plain not in str(module)
    assert "sdy.sharding" not in str(module).replace("#sdy.sharding", "")


def test_send_and_recv_and_inherent_shardings_stay() -> None:
    text = """
!a = !mpmd.mesh_tensor<"s0", tensor<8xf32>>
module {
  sdy.mesh @m2 = <["d"=2]>
  func.func public @main(%p: !a) -> !a attributes {topology = #mpmd.topology<<"s0" : <["d"=2]>>>} {
    %f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<8xf32>) {
      %k = stablehlo.create_token : !stablehlo.token
      %t = "stablehlo.send"(%x, %k) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
          is_host_transfer = true, sdy.sharding = #sdy.sharding_per_value<[<@m2, []>]>}
          : (tensor<8xf32>, !stablehlo.token) -> !stablehlo.token
      %c = sdy.sharding_constraint %x <@m2, [{"d"}]> : tensor<8xf32>
      %s = stablehlo.sine %c {sdy.sharding = #sdy.sharding_per_value<[<@m2, [{"d"}]>]>} : tensor<8xf32>
      mpmd.return %s : tensor<8xf32>
    } : (!a) -> !a
    return %f : !a
  }
}
"""
    after = str(run(text, PASS, ""))
    assert after.count("sdy.sharding_per_value") == 1
    assert "sdy.sharding_constraint" in after


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
