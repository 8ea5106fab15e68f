"""mpmd-infer-mesh-validate-src-set-not-empty"""

import pytest
from import_programs import diagnostics, refusal

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


def test_reductions_have_another_way_out() -> None:
    ok, found = diagnostics(CONFLICTS.replace("OP", "add"), f"{SETS},{PASS}")
    assert not ok
    assert len(found) == 2
    assert found[0].message.startswith("this reduction combines values of different meshes")
    assert "mpmd_infer_cross_mesh_reductions" in found[0].message


def test_converted_reductions_are_fine() -> None:
    convert = "mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true}"
    ok, found = diagnostics(CONFLICTS.replace("OP", "add"), f"{SETS},{convert},{PASS}")
    assert ok
    assert not found


def test_arguments_of_callees() -> None:
    """Reported unless a caller's operand is itself without a mesh."""
    ok, found = diagnostics(
        """
        func.func @main(%a: !T {src=<"p0">}, %b: !T {src=<"p1">}, %c: !T) -> (!T, !T)
            attributes {topology = #topo} {
          %0 = mpmd.call @shardy_mpmdlayer(%a, %c) : (!T, !T) -> !T
          %1 = stablehlo.divide %a, %b {src=<>} : !T
          %2 = mpmd.call @shardy_mpmdlayer(%b, %1) : (!T, !T) -> !T
          return %0, %2 : !T, !T
        }
        func.func private @shardy_mpmdlayer(%x: !T {src=<>, use=<"p2"["s"]>}, %y: !T {src=<>}) -> !T
            attributes {topology = #topo} {
          %0 = mpmd.assign {origin = "s", use=<"p2"["s"]>} %x : (!T) -> !P2
          return %y : !T
        }
        """,
        PASS,
    )
    assert not ok
    assert len(found) == 2
    message = found[1].message
    assert message.startswith("argument 0 of @layer can be on no mesh: its 2 calls")
    assert 'call of @layer: available on mesh "p0"; from' in message
    assert "input 1 of @main" in message
    assert 'the argument is needed on mesh "p2" by' in message


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (-1, 3)])
def test_limit(limit: int, count: int) -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T, %b: !T {src=<>}) attributes {topology = #topo} {
          %0 = stablehlo.abs %a {src=<>} : !T
          %1 = stablehlo.abs %a {src=<>} : !T
          return
        }
        """,
        f"{PASS}{{error-limit={limit}}}",
    )
    assert not ok
    assert len(found) == count


def test_limit_zero() -> None:
    assert "error-limit" in refusal("func.func @main() { return }", f"{PASS}{{error-limit=0}}")
