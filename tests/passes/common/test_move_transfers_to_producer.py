"""`mpmd-move-transfers-to-producer`."""

from __future__ import annotations

from util import check

BEFORE = """
func.func @mv(%p: !A, %q: !B) -> (!A, !B, !A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    mpmd.return %x : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %p : (!A) -> !B
  %2 = mpmd.transfer %q : (!B) -> !A
  %3 = mpmd.transfer %0 : (!A) -> !B
  %4 = mpmd.transfer %0 : (!A) -> !B
  return %2, %3, %0, %4 : !A, !B, !A, !B
}
"""
AFTER = """
func.func @mv(%arg0: !A, %arg1: !B) -> (!A, !B, !A, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1 = mpmd.transfer %arg0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0) (%arg2: tensor<4xf32>) {
    mpmd.return %arg2 : tensor<4xf32>
  } : (!A) -> !A
  %3 = mpmd.transfer %2 : (!A) -> !B
  %4 = mpmd.transfer %2 : (!A) -> !B
  return %0, %4, %2, %3 : !A, !B, !A, !B
}
"""


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
