"""What the cut need not be asked about: sums of values of one mesh."""

from __future__ import annotations

from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.placement.hypergraph import DataflowHypergraph
from mpmd_trace.passes.placement.place import Place

MODULE = """
!t = tensor<8xf32>
!a = !mpmd.mesh_tensor<"a", !t>
!b = !mpmd.mesh_tensor<"b", !t>
func.func public @main(%p: !a, %p1: !a, %p2: !a, %q: !b) -> (!t, !t) attributes {
    topology = #mpmd.topology<<"a": <["x"=2]>>, <"b": <["x"=2]>>>} {
  %u = mpmd.unassign %p : (!a) -> !t
  %u1 = mpmd.unassign %p1 : (!a) -> !t
  %u2 = mpmd.unassign %p2 : (!a) -> !t
  %v = mpmd.unassign %q : (!b) -> !t
  %0 = stablehlo.add %u, %u1 : !t
  %1 = stablehlo.add %0, %u2 : !t
  %2 = stablehlo.multiply %1, %1 : !t
  %3 = stablehlo.add %1, %v : !t
  return %2, %3 : !t, !t
}
"""


def test_sums_on_one_mesh_have_no_node_and_no_edge() -> None:
    module = parse(MODULE)
    first, second, twice, both = (op for op in module.main.body if op.name.startswith("stablehlo"))
    flow = DataflowHypergraph(module, {})
    assert (flow.node_of[first], flow.node_of[second]) == (0, 0)
    assert (flow.node_of[twice], flow.node_of[both]) == (2, 3)  # these the cut decides about
    assert flow.settled == {first}  # who reads the second one may be elsewhere
    assert first.results[0] not in flow.readers
    values = [{*edge.nodes} for edge in flow.edges()]
    assert values == [{1, 3}, {0, 2, 3}]


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
