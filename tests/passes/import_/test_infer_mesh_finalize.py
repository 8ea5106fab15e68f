"""mpmd-infer-mesh-finalize"""

from import_programs import diagnostics

PASS = "mpmd-infer-mesh-finalize"


def test_everything_without_a_mesh_is_reported() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !P0, %b: !T) -> (!T, !P1) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=["f"]> (%a) (%x: !T) {
            mpmd.return %x : !T
          } : (!P0) -> !P0
          %1 = mpmd.unassign %0 : (!P0) -> !T
          %2 = mpmd.assign %1 : (!T) -> !P1
          %3 = mpmd.fragment<mesh="p1", origin=["g"]> (%2) (%x: !T) {
            mpmd.return %x : !T
          } : (!P1) -> !P1
          %4 = stablehlo.abs %1 : !T
          %5 = mpmd.assign %b : (!T) -> !P0
          return %4, %3 : !T, !P1
        }
        func.func private @f(%a: !T) attributes {topology = #topo} {
          return
        }
        """,
        PASS,
    )
    assert not ok
    assert [d.severity for d in found] == ["error"] * 5
    messages = [d.message for d in found]
    assert messages[0].startswith("output 0 of @main has the type tensor<6x2xf32>")
    assert messages[1].startswith('a value on mesh "p0" is used on another mesh')
    assert "used by 'stablehlo.abs'" in messages[1]
    assert "mpmd.assign" not in messages[1]
    assert messages[2].startswith('a value is needed on mesh "p1", but it is not there')
    assert 'used by named computation "g"' in messages[2]
    assert "mpmd_infer_transfers" in messages[2]
    assert "is in no fragment" in messages[3]
    assert messages[4].startswith("input 0 of @f has the type")
