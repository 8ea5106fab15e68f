"""`mpmd-delay-transfers-from-cpu`."""

from __future__ import annotations

import pytest

from util import check

PASS = "mpmd-delay-transfers-from-cpu"


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


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_transfer_lands_before_its_first_reader(comes_back: bool) -> None:
    """One that brings back what was sent away stays."""
    text = """
func.func public @main(%p: !d, %q: !d) -> (!d, !d, !d) attributes {topology = #topo} {
  %h = mpmd.transfer ATTR %p : (!d) -> !h
  ORDER
  return %e, %g, %t : !d, !d, !d
}
""".replace("ATTR", "{mpmd.offloaded}" if comes_back else "")
    e, g = (
        f'%{name} = mpmd.fragment<mesh="s0", origin=["f"]> (%{operand}) (%x: tensor<4xf32>) '
        "{ mpmd.return %x : tensor<4xf32> } : (!d) -> !d\n"
        for name, operand in (("e", "q"), ("g", "t"))
    )
    t = "%t = mpmd.transfer %h : (!h) -> !d\n"
    check(text.replace("ORDER", t + e + g), PASS, text.replace("ORDER", t + e + g if comes_back else e + t + g), MORE)
