"""`mpmd-uniquify-function-inputs-outputs`."""

from __future__ import annotations

from util import check, diagnostics


def test_a_function_that_needs_nothing_is_unchanged() -> None:
    text = """
    func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
      %0 = mpmd.transfer %p : (!A) -> !A
      return %0 : !A
    }
    """
    check(text, "mpmd-uniquify-function-inputs-outputs", text)


def test_one_fragment_a_mesh_in_order_of_appearance_with_results_grouped_by_value() -> None:
    check(
        """
        func.func private @f(%p: !A, %q: !A, %r: !B) -> (!B, !A, !A, !B, !A) attributes {topology = #topo} {
          return %r, %q, %p, %r, %q : !B, !A, !A, !B, !A
        }
        """,
        "mpmd-uniquify-function-inputs-outputs",
        """
        func.func private @f(%p: !A, %q: !A, %r: !B) -> (!B, !A, !A, !B, !A) attributes {topology = #topo} {
          %0:2 = mpmd.fragment<mesh="beta", origin=[]> (%r) {mpmd.inferred_by = ["uniquify"]} (%x: tensor<4xf32>) {
            mpmd.return %x, %x : tensor<4xf32>, tensor<4xf32>
          } : (!B) -> (!B, !B)
          %1:3 = mpmd.fragment<mesh="alpha", origin=[]> (%q, %p) {mpmd.inferred_by = ["uniquify"]}
              (%x: tensor<4xf32>, %y: tensor<4xf32>) {
            mpmd.return %x, %x, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
          } : (!A, !A) -> (!A, !A, !A)
          return %0#0, %1#0, %1#2, %0#1, %1#1 : !B, !A, !A, !B, !A
        }
        """,
    )


def test_local_tensors_are_an_error() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%p: tensor<f32>, %q: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {topology = #topo} {
          return %p, %q : tensor<f32>, tensor<f32>
        }
        """,
        "mpmd-uniquify-function-inputs-outputs",
    )
    assert not ok
    assert ["result 0 of @main" in found[0].message, "result 1" in found[1].message] == [True, True]
