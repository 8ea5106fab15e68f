"""mpmd-infer-mesh-validate-src-set-not-empty"""

from import_programs import diagnostics

PASS = "mpmd-infer-mesh-validate-src-set-not-empty"
SETS = "mpmd-infer-mesh-populate-use-set,mpmd-infer-mesh-populate-src-set"

CONFLICTS = """
    func.func @main(%a: !P0, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
      %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
        mpmd.return %x : !T
      } : (!P0) -> !P0
      %g = mpmd.fragment<mesh="p1", origin=["right"]> (%b) (%x: !T) {
        mpmd.return %x : !T
      } : (!P1) -> !P1
      %u = mpmd.unassign {origin = "left"} %f : (!P0) -> !T
      %v = mpmd.unassign {origin = "right"} %g : (!P1) -> !T
      %0 = stablehlo.OP %u, %v : !T
      %1 = stablehlo.OP %0, %u : !T
      %2 = stablehlo.OP %u, %v : !T
      %3 = mpmd.assign {origin = "after"} %1 : (!T) -> !P1
      return %0, %2 : !T, !T
    }
"""


def test_the_first_op_of_a_chain_of_conflicts_is_reported() -> None:
    ok, found = diagnostics(CONFLICTS.replace("OP", "divide"), f"{SETS},{PASS}")
    assert not ok
    assert len(found) == 2
    message = found[0].message
    assert message.startswith("no mesh has all operands of this op")
    assert 'operand 0 is available on mesh "p0"; it comes from' in message
    assert 'the result of named computation "left" on "p0"' in message
    assert 'operand 1 is available on mesh "p1"; it comes from' in message
    assert 'needed on "p1" because of named computation or tensor "after"' in message
    assert "set mpmd_infer_transfers in the partitioning options" in message
    assert "mpmd_infer_cross_mesh_reductions" not in message
    assert found[0].location.file is not None
