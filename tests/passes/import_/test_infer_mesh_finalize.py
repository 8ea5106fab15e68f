"""mpmd-infer-mesh-finalize"""

import pytest
from import_programs import diagnostics, refusal, run

PASS = "mpmd-infer-mesh-finalize"
INPUT = """
    func.func @main(%a: !T) -> (FIRST, SECOND) attributes {topology = #topo} {
      %0 = mpmd.assign %a : (!T) -> FIRST
      %1 = mpmd.assign %a : (!T) -> SECOND
      return %0, %1 : FIRST, SECOND
    }
"""


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [("!H1", "!D2", "'device' and 'pinned_host'"), ("!H1", "!P1", "'pinned_host' and no memory kind")],
)
def test_memory_kinds_that_differ(first: str, second: str, kinds: str) -> None:
    text = INPUT.replace("FIRST", first).replace("SECOND", second)
    ok, found = diagnostics(text, PASS)
    assert not ok
    assert len(found) == 1
    assert f"input 0 of @main is assigned to different memory kinds: {kinds}" in found[0].message


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


def test_inputs_that_are_used_otherwise() -> None:
    text = "func.func @main(%a: !T) -> !T attributes {topology = #topo} { return %a : !T }"
    assert "input 0 of @main is used by 'func.return'" in refusal(text, PASS)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("mpmd.broadcast %a : !T", "on which mesh the operand of 'mpmd.broadcast'"),
        ("mpmd.reduce<add> %b, %a : (!T, !T) -> !T", "on which mesh operand 1 of 'mpmd.reduce'"),
    ],
)
def test_operands_that_are_on_no_mesh(op: str, message: str) -> None:
    said = refusal(
        f"""
        func.func private @f(%a: !T, %p: !P0) -> !P0 attributes {{topology = #topo}} {{
          %b = mpmd.unassign %p : (!P0) -> !T
          %0 = {op}
          %1 = mpmd.assign %0 : (!T) -> !P0
          return %1 : !P0
        }}
        """,
        PASS,
    )
    assert message in said


def test_reductions_that_are_no_longer_needed_somewhere() -> None:
    """The reference aborts when dead code was the only reason to need the reduction on a mesh."""
    module = run(
        """
        func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.unassign %a : (!P0) -> !T
          %1 = mpmd.unassign %b : (!P1) -> !T
          %2 = mpmd.reduce<add> {use=<"p2", "p0">} %0, %1 : (!T, !T) -> !T
          %3 = mpmd.assign %2 : (!T) -> !P0
          %4 = mpmd.assign %2 : (!T) -> !P2
          %5 = mpmd.fragment<mesh="p2", origin=[]> (%4) (%x: !T) {
            mpmd.return %x : !T
          } : (!P2) -> !P2
          return %3 : !P0
        }
        """,
        PASS,
    )
    assert [op.name for op in module.main.body] == ["mpmd.transfer", "mpmd.fragment", "func.return"]
