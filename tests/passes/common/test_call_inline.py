"""`mpmd-call-inline`."""

from __future__ import annotations

import pytest

from util import diagnostics, distinct_bodies, run

AFTER = """
func.func @main(%arg0: !A) -> !B attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {call_counter = 0 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  %2 = mpmd.transfer %1 : (!A) -> !A
  %3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%2) {call_counter = 7 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  %4 = mpmd.transfer %3 : (!A) -> !B
  return %4 : !B
}
func.func private @step(%arg0: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.transfer %arg0 : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {call_counter = 7 : ui32} (%arg1: tensor<4xf32>) {
    mpmd.return %arg1 : tensor<4xf32>
  } : (!A) -> !A
  return %1 : !A
}
"""


def test_attributes_of_the_call_are_copied_to_fragments_and_fragment_calls() -> None:
    module = run(
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.for (%p) {iterations = 1 : ui32} (%x: !A, %i: tensor<ui32>) {
            %1 = mpmd.call @step(%x) {call_counter = 3 : ui32, note = "n"} : (!A) -> !A
            mpmd.return %1 : !A
          } : !A
          return %0 : !A
        }
        func.func private @step(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.transfer %p : (!A) -> !A
          %1 = mpmd.fragment<mesh="alpha", origin=["f"]> (%0) {call_counter = 7 : ui32, keep} (%x: tensor<4xf32>) {
            mpmd.return %x : tensor<4xf32>
          } : (!A) -> !A
          %2 = mpmd.fragment_call<mesh="alpha", origin=["g"]> @g(%1) : (!A) -> !A
          return %2 : !A
        }
        func.func @g(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
          return %x : tensor<4xf32>
        }
        """,
        "mpmd-call-inline",
    )
    (loop, _) = module.main.body
    transfer, fragment, call, _ = loop.regions[0].block
    assert not transfer.attrs
    assert {k: v.text for k, v in fragment.attrs.items()} == {"call_counter": "3 : ui32", "keep": "unit", "note": '"n"'}
    assert set(call.attrs) == {"call_counter", "note"}


def test_copies_share_the_bodies_of_the_callee() -> None:
    calls = "\n".join(f"%{i + 1} = mpmd.call @step(%{i}) {{call_counter = {i} : ui32}} : (!A) -> !A" for i in range(9))
    step = AFTER[AFTER.index("func.func private") :]
    module = run(
        f"func.func @main(%0: !A) -> !A attributes {{topology = #topo}} {{ {calls}\n return %9 : !A }} {step}",
        "mpmd-call-inline",
    )
    assert distinct_bodies(module) == 1
    assert [f.call_counter for f in module.main.body if f.name == "mpmd.fragment"] == list(range(9))


@pytest.mark.parametrize(
    ("callee", "problem"),
    [
        ("func.func private @f(tensor<f32>) -> tensor<f32>", "declared"),
        (
            "func.func private @f(%p: tensor<f32>) -> tensor<f32> { cf.br ^bb1 ^bb1: return %p : tensor<f32> }",
            "one block",
        ),
    ],
)
def test_errors_name_the_callee(callee: str, problem: str) -> None:
    text = """
    func.func @main(%p: tensor<f32>) -> tensor<f32> {
      %0 = mpmd.call @f(%p) : (tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    if "cf." in callee:
        pytest.importorskip("jaxlib.mlir.dialects.cf")
    ok, found = diagnostics(text + callee, "mpmd-call-inline")
    assert not ok
    (error,) = found
    assert "@f" in error.message and problem in error.message
    assert "defined here" in error.notes[0].message
