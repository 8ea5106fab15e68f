"""What the cut need not be asked about: sums of values of one mesh."""

from __future__ import annotations

from mpmd_trace.ir.text import parse
from mpmd_trace.passes.placement.flow import Flow

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
    flow = Flow(module, {})
    assert (flow.node_of[first], flow.node_of[second]) == (0, 0)
    assert (flow.node_of[twice], flow.node_of[both]) == (2, 3)  # these the cut decides about
    assert flow.settled == {first}  # who reads the second one may be elsewhere
    assert first.results[0] not in flow.readers
    values = [{*edge.nodes} for edge in flow.edges()]
    assert values == [{1, 3}, {0, 2, 3}]
