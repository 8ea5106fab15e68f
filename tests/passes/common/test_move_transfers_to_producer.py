"""`mpmd-move-transfers-to-producer`."""

from __future__ import annotations

from util import check


def test_chains_stay_behind_their_source() -> None:
    check(
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="alpha", origin=["f"]> () () {
            %c = stablehlo.constant dense<1.0> : tensor<4xf32>
            mpmd.return %c : tensor<4xf32>
          } : () -> !A
          %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
            mpmd.return %x : tensor<4xf32>
          } : (!A) -> !A
          %2 = mpmd.transfer %0 : (!A) -> !B
          %3 = mpmd.transfer %2 : (!B) -> !A
          %4 = mpmd.transfer %p : (!A) -> !B
          return %3 : !A
        }
        """,
        "mpmd-move-transfers-to-producer",
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %4 = mpmd.transfer %p : (!A) -> !B
          %0 = mpmd.fragment<mesh="alpha", origin=["f"]> () () {
            %c = stablehlo.constant dense<1.0> : tensor<4xf32>
            mpmd.return %c : tensor<4xf32>
          } : () -> !A
          %2 = mpmd.transfer %0 : (!A) -> !B
          %3 = mpmd.transfer %2 : (!B) -> !A
          %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%0) (%x: tensor<4xf32>) {
            mpmd.return %x : tensor<4xf32>
          } : (!A) -> !A
          return %3 : !A
        }
        """,
    )
