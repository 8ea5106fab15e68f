"""`mpmd-uniquify-function-inputs-outputs`."""

from __future__ import annotations

from util import diagnostics


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
