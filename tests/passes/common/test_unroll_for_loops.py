"""`mpmd-unroll-for-loops`."""

from __future__ import annotations

import pytest

from util import diagnostics, distinct_bodies, run


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


LOOP = """
func.func @main(%p: tensor<ui32>) -> tensor<ui32> attributes {{topology = #topo}} {{
  %0 = mpmd.for (%p) {{iterations = 4 : ui32{outer}}} (%x: tensor<ui32>, %i: tensor<ui32>) {{
    {inner}
    mpmd.return %x : tensor<ui32>
  }} : tensor<ui32>
  return %0 : tensor<ui32>
}}
"""
INNER = """
    %1 = mpmd.for (%x) {iterations = 2 : ui32, unroll_factor = 2 : ui32} (%y: tensor<ui32>, %j: tensor<ui32>) {
      mpmd.return %y : tensor<ui32>
    } : tensor<ui32>
"""


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        ("", "", "it has no unroll factor"),
        (", unroll_factor = 2 : ui32", "", "its factor is 2"),
        (", unroll_factor = 4 : ui32", INNER, "nested loops cannot be unrolled"),
        ("", INNER + INNER.replace("%1", "%2"), "nested loops cannot be unrolled"),
    ],
)
def test_errors(outer: str, inner: str, message: str) -> None:
    ok, found = diagnostics(LOOP.format(outer=outer, inner=inner), "mpmd-unroll-for-loops")
    assert not ok
    assert [message in d.message for d in found] == [True], "one error, about the first loop that is nested"
    assert not found[0].notes
