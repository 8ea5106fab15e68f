"""mpmd-infer-mesh-finalize"""

import pytest
from infer_mesh_programs import check, diagnostics, run

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
    ok, found = diagnostics(text, PASS)
    assert not ok
    assert "input 0 of @main is used by 'func.return'" in found[0].message


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("mpmd.broadcast %a : !T", "on which mesh the operand of 'mpmd.broadcast'"),
        ("mpmd.reduce<add> %b, %a : (!T, !T) -> !T", "on which mesh operand 1 of 'mpmd.reduce'"),
    ],
)
def test_operands_that_are_on_no_mesh(op: str, message: str) -> None:
    ok, found = diagnostics(
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
    assert not ok
    assert message in found[0].message


def test_meshless_user_of_a_reduce() -> None:
    ok, found = diagnostics(
        """
        func.func private @f(%p: !P0) -> !T attributes {topology = #topo} {
          %0 = mpmd.unassign %p : (!P0) -> !T
          %1 = mpmd.reduce<add> %0, %0 : (!T, !T) -> !T
          return %1 : !T
        }
        """,
        PASS,
    )
    assert not ok
    assert "the reduction 'mpmd.reduce'" in found[0].message


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


def test_same_mesh_pairs_vanish_and_sets_are_cleared() -> None:
    """Also in fragments, and dead code everywhere."""
    check(
        """
        func.func @main(%a: !P0 {use=<"p0">}) -> (!P0 {use=<"p0">}) attributes {topology = #topo} {
          %f = mpmd.fragment<mesh="p0", origin=["s"]> (%a) (%xf: !T) {
            %yf = stablehlo.abs %xf : !T
            %df = stablehlo.sine %xf {use=<"p0">} : !T
            %ef = stablehlo.tanh %xf {use=<"p0">, src=<"p0">} : !T
            mpmd.return %ef : !T
          } : (!P0) -> !P0
          %0 = mpmd.unassign {src=<"p0">, origin = "s"} %f : (!P0) -> !T
          %1 = mpmd.assign {use=<"p0">, origin = "t"} %0 : (!T) -> !P0
          %g = mpmd.fragment<mesh="p0", origin=["t"]> (%1) {use=<"p0">} (%x: !T) {
            mpmd.return %x : !T
          } : (!P0) -> !P0
          %h = mpmd.fragment<mesh="p0", origin=["s"]> (%g) (%xh: !T) {
            %yh = stablehlo.abs %xh : !T
            %dh = stablehlo.sine %xh {use=<"p0">} : !T
            %eh = stablehlo.tanh %xh {use=<"p0">, src=<"p0">} : !T
            mpmd.return %eh : !T
          } : (!P0) -> !P0
          return %g : !P0
        }
        """,
        "mpmd-infer-mesh-finalize{infer-transfers=false}",
        """
        func.func @main(%arg0: !P0) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg0) (%arg1: !T) {
            %2 = stablehlo.tanh %arg1 : !T
            mpmd.return %2 : !T
          } : (!P0) -> !P0
          %1 = mpmd.fragment<mesh="p0", origin=["t"]> (%0) {use=<"p0">} (%arg1: !T) {
            mpmd.return %arg1 : !T
          } : (!P0) -> !P0
          return %1 : !P0
        }
        """,
    )


def test_inputs_go_to_the_smallest_mesh_by_name() -> None:
    """Not in pipeline order: m10 is before m2."""
    aliases = """
        !m2 = !mpmd.mesh_tensor<"m2", tensor<4xf32>>
        !m10 = !mpmd.mesh_tensor<"m10", tensor<4xf32>>
        !host = !mpmd.mesh_tensor<"m2", tensor<4xf32>, memory_kind="pinned_host">
        #meshes = #mpmd.topology<<"m2" : <["d"=4]>>, <"m10" : <["d"=4]>>>
    """
    check(
        aliases
        + """
        func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (!m2, !m10, !host)
            attributes {topology = #meshes} {
          %0 = mpmd.assign %a : (tensor<4xf32>) -> !m2
          %1 = mpmd.assign %a : (tensor<4xf32>) -> !m10
          %2 = mpmd.assign %b : (tensor<4xf32>) -> !host
          return %0, %1, %2 : !m2, !m10, !host
        }
        """,
        PASS,
        aliases
        + """
        func.func @main(%a: !m10, %b: !host) -> (!m2, !m10, !host) attributes {topology = #meshes} {
          %0 = mpmd.transfer %a : (!m10) -> !m2
          return %0, %a, %b : !m2, !m10, !host
        }
        """,
    )


def test_new_transfers_when_allowed() -> None:
    check(
        """
        func.func @main(%a: !P0) -> (!P1, !P0, !P2) attributes {topology = #topo} {
          %f = mpmd.fragment<mesh="p0", origin=["s"]> (%a) (%xf: !T) {
            %yf = stablehlo.abs %xf : !T
            %df = stablehlo.sine %xf {use=<"p0">} : !T
            %ef = stablehlo.tanh %xf {use=<"p0">, src=<"p0">} : !T
            mpmd.return %ef : !T
          } : (!P0) -> !P0
          %0 = mpmd.unassign %f : (!P0) -> !T
          %1 = mpmd.assign %0 : (!T) -> !P2
          %2 = mpmd.assign %0 : (!T) -> !P0
          %3 = mpmd.assign %0 : (!T) -> !P1
          return %3, %2, %1 : !P1, !P0, !P2
        }
        """,
        "mpmd-infer-mesh-finalize{infer-transfers=true}",
        """
        func.func @main(%arg0: !P0) -> (!P1, !P0, !P2) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=["s"]> (%arg0) (%arg1: !T) {
            %3 = stablehlo.tanh %arg1 : !T
            mpmd.return %3 : !T
          } : (!P0) -> !P0
          %1 = mpmd.transfer %0 : (!P0) -> !P1
          %2 = mpmd.transfer %1 : (!P1) -> !P2
          return %1, %0, %2 : !P1, !P0, !P2
        }
        """,
    )


def test_broadcast() -> None:
    """A chain through all meshes, also back to the one where it starts."""
    check(
        """
        func.func @main(%a: !P2) -> (!P0, !P1, !P2) attributes {topology = #topo} {
          %0 = mpmd.unassign %a : (!P2) -> !T
          %1 = mpmd.broadcast %0 : !T
          %2 = mpmd.assign %1 : (!T) -> !P2
          %3 = mpmd.assign %1 : (!T) -> !P0
          %4 = mpmd.assign %1 : (!T) -> !P1
          return %3, %4, %2 : !P0, !P1, !P2
        }
        """,
        "mpmd-infer-mesh-finalize{infer-transfers=false}",
        """
        func.func @main(%arg0: !P2) -> (!P0, !P1, !P2) attributes {topology = #topo} {
          %0 = mpmd.transfer %arg0 : (!P2) -> !P0
          %1 = mpmd.transfer %0 : (!P0) -> !P1
          %2 = mpmd.transfer %1 : (!P1) -> !P2
          return %0, %1, %2 : !P0, !P1, !P2
        }
        """,
    )


def test_reduce_on_two_meshes() -> None:
    check(
        """
        func.func @main(%a: !P0, %b: !P1) -> (!P1, !P0, !P1) attributes {topology = #topo} {
          %0 = mpmd.unassign %a : (!P0) -> !T
          %1 = mpmd.unassign %b : (!P1) -> !T
          %2 = mpmd.reduce<min> {use=<"p1", "p0">} %1, %0, %0, %0 : (!T, !T, !T, !T) -> !T
          %3 = mpmd.assign %2 : (!T) -> !P1
          %4 = mpmd.assign %2 : (!T) -> !P0
          %5 = mpmd.assign %2 : (!T) -> !P1
          return %3, %4, %5 : !P1, !P0, !P1
        }
        """,
        "mpmd-infer-mesh-finalize{infer-transfers=false}",
        """
        func.func @main(%arg0: !P0, %arg1: !P1) -> (!P1, !P0, !P1) attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=[]> (%arg0, %arg0, %arg0)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T, %arg4: !T) {
            %5 = stablehlo.minimum %arg2, %arg3 : !T
            %6 = stablehlo.minimum %5, %arg4 : !T
            mpmd.return %6 : !T
          } : (!P0, !P0, !P0) -> !P0
          %1 = mpmd.transfer %0 : (!P0) -> !P1
          %2 = mpmd.fragment<mesh="p1", origin=[]> (%1, %arg1)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T) {
            %5 = stablehlo.minimum %arg2, %arg3 : !T
            mpmd.return %5 : !T
          } : (!P1, !P1) -> !P1
          %3 = mpmd.transfer %arg1 : (!P1) -> !P0
          %4 = mpmd.fragment<mesh="p0", origin=[]> (%0, %3)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg2: !T, %arg3: !T) {
            %5 = stablehlo.minimum %arg2, %arg3 : !T
            mpmd.return %5 : !T
          } : (!P0, !P0) -> !P0
          return %2, %4, %2 : !P1, !P0, !P1
        }
        """,
    )


def test_reduce_of_one_value() -> None:
    """An identity fragment."""
    check(
        """
        func.func @main(%a: !P0) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.unassign %a : (!P0) -> !T
          %1 = mpmd.reduce<none> {use=<"p0">} %0 : (!T) -> !T
          %2 = mpmd.assign %1 : (!T) -> !P0
          return %2 : !P0
        }
        """,
        "mpmd-infer-mesh-finalize{infer-transfers=false}",
        """
        func.func @main(%arg0: !P0) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.fragment<mesh="p0", origin=[]> (%arg0)
              {mpmd.inferred_by = ["infer_mesh_convert_reduce_ops"]} (%arg1: !T) {
            mpmd.return %arg1 : !T
          } : (!P0) -> !P0
          return %0 : !P0
        }
        """,
    )
