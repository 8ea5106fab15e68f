"""mpmd-infer-mesh-assign-using-input-output-constraints"""

import pytest
from infer_mesh_programs import check, diagnostics

PASS = "mpmd-infer-mesh-assign-using-input-output-constraints"


@pytest.mark.parametrize("constraint", ["1:0", "0:1"])
def test_index_that_does_not_exist(constraint: str) -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          return %a : !T
        }
        """,
        f"{PASS}{{constraints={constraint}}}",
    )
    assert not ok
    assert [d.severity for d in found] == ["error"]
    assert f"the constraint {constraint} names" in found[0].message
    assert "@main has 1" in found[0].message


def test_both_ends_are_placed_apart() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !P0, %b: !P1) -> !P1 attributes {topology = #topo} {
          return %b : !P1
        }
        """,
        f"{PASS}{{constraints=0:0}}",
    )
    assert not ok
    assert "input 0 of @main is on mesh p0 and output 0 on p1" in found[0].message


def test_the_use_set_of_the_output_wins() -> None:
    check(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a {use=<"p2", "p1">, src=<"p0">} : !T
          return %0 : !T
        }
        """,
        "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0}",
        """
        func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
          %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P1) -> !T
          %1 = stablehlo.abs %0 {src=<"p0">, use=<"p2", "p1">} : !T
          %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P1
          return %2 : !P1
        }
        """,
    )


def test_use_set_of_the_input_and_source_set_of_the_output() -> None:
    check(
        """
        func.func @main(%a: !T {use=<"p2", "p1">}) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a {use=<"p0">, src=<"p2">} : !T
          return %0 : !T
        }
        """,
        "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0}",
        """
        func.func @main(%arg0: !P2 {use=<"p2", "p1">}) -> !P2 attributes {topology = #topo} {
          %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P2) -> !T
          %1 = stablehlo.abs %0 {src=<"p2">, use=<"p0">} : !T
          %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P2
          return %2 : !P2
        }
        """,
    )


def test_no_common_mesh() -> None:
    """Nothing happens; a transfer repairs it later."""
    check(
        """
        func.func @main(%a: !T {use=<"p2">}) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a {src=<"p0">} : !T
          return %0 : !T
        }
        """,
        "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0}",
        """
        func.func @main(%arg0: !T {use=<"p2">}) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %arg0 {src=<"p0">} : !T
          return %0 : !T
        }
        """,
    )


def test_one_end_is_placed() -> None:
    check(
        """
        func.func @main(%a: !P0,
            %b: !T,
            %c: !P1,
            %d: !P1) -> (!T, !P1, !T, !P1) attributes {topology = #topo} {
          %0 = mpmd.unassign %a : (!P0) -> !T
          %1 = stablehlo.abs %0 {src=<"p0", "p1">} : !T
          %2 = mpmd.assign %b : (!T) -> !P1
          %3 = stablehlo.abs %0 {src=<"p0">} : !T
          return %1, %2, %3, %d : !T, !P1, !T, !P1
        }
        """,
        "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0,1:1,2:2,3:3}",
        """
        func.func @main(%arg0: !P0,
            %arg1: !P1,
            %arg2: !P1,
            %arg3: !P1) -> (!P0, !P1, !T, !P1) attributes {topology = #topo} {
          %0 = mpmd.unassign {origin = "io_constraint_in"} %arg1 : (!P1) -> !T
          %1 = mpmd.unassign %arg0 : (!P0) -> !T
          %2 = stablehlo.abs %1 {src=<"p0", "p1">} : !T
          %3 = mpmd.assign %0 : (!T) -> !P1
          %4 = stablehlo.abs %1 {src=<"p0">} : !T
          %5 = mpmd.assign {origin = "io_constraint_out"} %2 : (!T) -> !P0
          return %5, %3, %4, %arg3 : !P0, !P1, !T, !P1
        }
        """,
    )


def test_result_of_a_call() -> None:
    """Its sources are those of the value that the callee returns."""
    check(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.call @f(%a) : (!T) -> !T
          return %0 : !T
        }
        func.func private @f(%a: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a {src=<"p2", "p1">} : !T
          return %0 : !T
        }
        """,
        "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:0}",
        """
        func.func @main(%arg0: !P1) -> !P1 attributes {topology = #topo} {
          %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!P1) -> !T
          %1 = mpmd.call @f(%0) : (!T) -> !T
          %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!T) -> !P1
          return %2 : !P1
        }
        func.func private @f(%arg0: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %arg0 {src=<"p2", "p1">} : !T
          return %0 : !T
        }
        """,
    )
