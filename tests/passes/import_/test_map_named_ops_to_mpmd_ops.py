"""mpmd-map-named-ops-to-mpmd-ops"""

import pytest
from import_programs import check, diagnostics, refusal


def spec(assignment: str) -> str:
    return f"builtin.module(func.func(mpmd-map-named-ops-to-mpmd-ops{{assignment={assignment}}}))"


def test_one_unassign_per_result_in_order() -> None:
    check(
        """
        func.func @main() -> (!T, !T) attributes {topology = #topo} {
          %0:2 = mpmd.named_computation<"f"> () () {
            %1 = stablehlo.constant dense<1.0> : !T
            mpmd.return %1, %1 : !T, !T
          } : () -> (!T, !T)
          return %0#1, %0#0 : !T, !T
        }
        """,
        spec("f@p1"),
        """
        func.func @main() -> (!T, !T) attributes {topology = #topo} {
          %0:2 = mpmd.fragment<mesh="p1", origin=["f"]> () () {
            %1 = stablehlo.constant dense<1.0> : !T
            mpmd.return %1, %1 : !T, !T
          } : () -> (!P1, !P1)
          %2 = mpmd.unassign {origin = "f"} %0#0 : (!P1) -> !T
          %3 = mpmd.unassign {origin = "f"} %0#1 : (!P1) -> !T
          return %3, %2 : !T, !T
        }
        """,
    )


F = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            mpmd.return %x : !T
          } : (!T) -> !T
          %1 = mpmd.named_computation<"g"> (%0) (%x: !T) {
            mpmd.return %x : !T
          } : (!T) -> !T
          return %1 : !T
        }
        """


def test_every_unassigned_computation_is_reported() -> None:
    ok, found = diagnostics(F, "func.func(mpmd-map-named-ops-to-mpmd-ops)")
    assert not ok
    assert [d.message.split("'")[1] for d in found] == ["f", "g"]
    assert "add 'f@MESH' to the name-to-mesh assignment" in found[0].message


def test_a_memory_kind_of_a_computation_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert diagnostics(F, spec("f@p0#device,g@p0")) == (True, [])
    assert "named computation 'f' is assigned to \"p0#device\"" in caplog.text


def test_unknown_meshes() -> None:
    assert "named computation 'f' needs the mesh \"p9\"" in refusal(F, spec("f@p9,g@p0"))


def test_what_is_nested_must_have_been_inlined() -> None:
    message = refusal(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            %1 = mpmd.named_tensor %x name="t" : !T
            mpmd.return %1 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """,
        spec("f@p0"),
    )
    assert "still holds named tensor 't'" in message


def test_tokens_are_an_error() -> None:
    message = refusal(
        """
        func.func @main(%a: !stablehlo.token) -> !stablehlo.token attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !stablehlo.token) {
            mpmd.return %x : !stablehlo.token
          } : (!stablehlo.token) -> !stablehlo.token
          return %0 : !stablehlo.token
        }
        """,
        spec("f@p0"),
    )
    assert "takes or returns a token" in message


def test_assigned_names_inside_of_other_ops_are_an_error() -> None:
    message = refusal(
        """
        func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
          %0 = "stablehlo.case"(%i) ({
            %1 = mpmd.named_tensor %a name="t" : !T
            stablehlo.return %1 : !T
          }) : (tensor<i32>) -> !T
          return %0 : !T
        }
        """,
        spec("t@p0"),
    )
    assert "inside of a 'stablehlo.case'" in message
