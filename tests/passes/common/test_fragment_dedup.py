"""`mpmd-fragment-dedup`."""

from __future__ import annotations

from util import run


def test_different_values_stay_different_results() -> None:
    module = run(
        """
        func.func @main(%p: !A, %q: !A) -> (!A, !A, !A) attributes {topology = #topo} {
          %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
            mpmd.return %x, %y, %x : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
          } : (!A, !A) -> (!A, !A, !A)
          return %0#0, %0#1, %0#2 : !A, !A, !A
        }
        """,
        "mpmd-fragment-dedup",
    )
    first, second, third = module.main.returned
    assert first is third and first is not second
