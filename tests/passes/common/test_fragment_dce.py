"""`mpmd-fragment-dce`."""

# ruff: noqa: E501 (MLIR text)
from __future__ import annotations

from util import run

BEFORE = """
func.func @main(%p: !A, %q: !B) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %q : (!B) -> !A
  %1:3 = mpmd.fragment<mesh="alpha", origin=["f"], stage=0> (%p, %0) {call_counter = 0 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.negate %x : tensor<4xf32>
    %t = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.custom_call @effect(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %t, %s, %u : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A, !A)
  return %1#1 : !A
}
"""


def test_equal_changes_give_one_body() -> None:
    step = BEFORE.replace("@main", "private @step")
    calls = "\n".join(f"%{i} = mpmd.call @step(%p, %q) : (!A, !B) -> !A" for i in range(5))
    module = run(
        f"func.func @main(%p: !A, %q: !B) -> !A attributes {{topology = #topo}} {{ {calls}\n return %4 : !A }} {step}",
        "mpmd-call-inline,mpmd-fragment-dce",
    )
    assert len({id(f.body) for f in module.main.body if f.name == "mpmd.fragment"}) == 2  # with and without result
