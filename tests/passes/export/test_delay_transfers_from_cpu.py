"""`mpmd-delay-transfers-from-cpu`."""

from __future__ import annotations

from util import check

PASS = "mpmd-delay-transfers-from-cpu"
PRELUDE = """
!d = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!c = !mpmd.mesh_tensor<"s0/cpu", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>>
"""


MORE = """
!d = !mpmd.mesh_tensor<"s0", tensor<4xf32>>
!h = !mpmd.mesh_tensor<"s0", tensor<4xf32>, memory_kind="pinned_host">
!c = !mpmd.mesh_tensor<"s0/cpu", tensor<4xf32>>
!n = !mpmd.mesh_tensor<"s/cpu0", tensor<4xf32>>
#topo = #mpmd.topology<<"s0" : <["d"=2]>>, <"s0/cpu" : <["d"=2]>>, <"s/cpu0" : <["d"=2]>>>
"""


def test_which_transfers_wait() -> None:
    """Those from host meshes and host memory; not a mesh that has /cpu inside its name, nor unused ones."""
    text = """
func.func public @main(%a: !c, %b: !h, %n: !n, %p: !d) -> (!d, !d, !d, !d) attributes {topology = #topo} {
  ORDER
  return %f, %t, %u, %v : !d, !d, !d, !d
}
"""
    fragment = (
        '%f = mpmd.fragment<mesh="s0", origin=["f"]> (%p) (%x: tensor<4xf32>) '
        "{ mpmd.return %x : tensor<4xf32> } : (!d) -> !d\n"
    )
    t, u = "%t = mpmd.transfer %a : (!c) -> !d\n", "%u = mpmd.transfer %b : (!h) -> !d\n"
    v, w = "%v = mpmd.transfer %n : (!n) -> !d\n", "%w = mpmd.transfer %a : (!c) -> !d\n"
    check(text.replace("ORDER", t + u + v + w + fragment), PASS, text.replace("ORDER", v + w + fragment + t + u), MORE)
