"""`mpmd-unroll-for-loops`."""

from __future__ import annotations

from util import distinct_bodies, run


def test_only_the_clone_itself_is_marked_and_bodies_are_shared() -> None:
    module = run(
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.for (%p) {iterations = 3 : ui32, unroll_factor = 3 : ui32} (%x: !A, %i: tensor<ui32>) {
            %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%x) (%a: tensor<4xf32>) {
              %b = stablehlo.negate %a : tensor<4xf32>
              mpmd.return %b : tensor<4xf32>
            } : (!A) -> !A
            mpmd.return %1 : !A
          } : !A
          return %0 : !A
        }
        """,
        "mpmd-unroll-for-loops",
    )
    made = [op for op in module.main.body if op.name == "mpmd.fragment"]
    assert [f.attrs["unroll_counter"].text for f in made] == ["0 : ui32", "1 : ui32", "2 : ui32"]
    assert distinct_bodies(module) == 1
    assert not made[0].body.block.first.attrs
