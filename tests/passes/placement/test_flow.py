"""What goes together in the flow of values."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.placement.place import Place


def test_results_that_belong_together_share_a_mesh() -> None:
    """A count that nothing ties goes where the total is, and not to the first mesh."""
    before = """
!t = tensor<f32>
!b = !mpmd.mesh_tensor<"b", !t>
func.func public @main(%total: !t, %count: !t, %loss: !b) -> (!t ATTRIBUTE, !t ATTRIBUTE) attributes {
    topology = #mpmd.topology<<"a": <["x"=2]>>, <"b": <["x"=2]>>>} {
  %one = stablehlo.constant dense<1.0> : !t
  %u = mpmd.unassign %loss : (!b) -> !t
  %0 = stablehlo.add %total, %u : !t
  %1 = stablehlo.add %count, %one : !t
  return %0, %1 : !t, !t
}
"""
    meshes = []
    for attribute in ("", "{mpmd.together = 0 : i64}"):
        module = parse(before.replace("ATTRIBUTE", attribute))
        Place().run(module, Diagnostics())
        assert "together" not in str(module)
        meshes.append([value.type.mesh for value in module.main.returned if isinstance(value.type, MeshTensorType)])
    assert meshes == [["b", "a"], ["b", "b"]]
