"""mpmd-inline-nested-user-exposed-ops"""

import pytest
from import_programs import check, diagnostics, refusal


def spec(assignment: str) -> str:
    return f"func.func(mpmd-inline-nested-user-exposed-ops{{assignment={assignment}}})"


NESTED = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
            %1 = mpmd.named_computation<"inner"> (%x) (%y: !T) {
              %2 = stablehlo.sine %y : !T
              mpmd.return %2 : !T
            } : (!T) -> !T
            %3 = mpmd.broadcast %1 : !T
            %4 = stablehlo.abs %3 : !T
            mpmd.return %4 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """
FLAT = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"outer"> (%a) (%x: !T) {
            %1 = stablehlo.sine %x : !T
            %2 = stablehlo.abs %1 : !T
            mpmd.return %2 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """


@pytest.mark.parametrize("assignment", ["outer@p0,inner@p0", "outer@p0", "outer@p0/1,inner@p0/1"])
def test_nested_ops_are_inlined(assignment: str) -> None:
    check(NESTED, spec(assignment), FLAT)


@pytest.mark.parametrize("assignment", ["outer@p0,inner@p1", "outer@p0/1,inner@p0/2", "outer@p0/1,inner@p0"])
def test_different_meshes_or_stages_are_an_error(assignment: str) -> None:
    ok, found = diagnostics(NESTED, spec(assignment))
    assert not ok
    (error,) = found
    assert error.severity == "error"
    assert "named computation 'inner' is assigned to" in error.message
    assert "nested in 'outer'" in error.message


def test_an_unassigned_parent_is_an_error() -> None:
    ok, found = diagnostics(NESTED, spec("inner@p0"))
    assert not ok
    (error,) = found
    assert "'outer', which holds the named computation 'inner', is not assigned" in error.message


TENSOR = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            %1 = mpmd.named_tensor %x name="t" : !T
            %2 = stablehlo.abs %1 : !T
            mpmd.return %2 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """
NO_TENSOR = TENSOR.replace('%1 = mpmd.named_tensor %x name="t" : !T', "").replace("abs %1", "abs %x")


@pytest.mark.parametrize("assignment", ["f@p0", "f@p0,t@p0", "f@p0/3,t@p0"])
def test_nested_tensors_vanish(assignment: str) -> None:
    check(TENSOR, spec(assignment), NO_TENSOR)


def test_a_memory_kind_of_a_nested_tensor_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert diagnostics(TENSOR, spec("f@p0,t@p0#pinned_host")) == (True, [])
    assert "named tensor 't' is assigned to memory kind \"pinned_host\"" in caplog.text


@pytest.mark.parametrize("assignment", ["f@p0,t@p1", "f@p0#device,t@p0#device", "f@p0#device,t@p0"])
def test_a_nested_tensor_on_another_mesh_is_an_error(assignment: str) -> None:
    assert "named tensor 't' is assigned to mesh" in refusal(TENSOR, spec(assignment))


def test_a_nested_tensor_needs_an_assigned_parent() -> None:
    assert "'f', which holds the named tensor 't'" in refusal(TENSOR, spec("t@p0"))


def test_a_nested_reduce_is_its_first_operand() -> None:
    check(
        """
        func.func @main(%a: !T, %b: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a, %b) (%x: !T, %y: !T) {
            %1 = mpmd.reduce<add> %y, %x : (!T, !T) -> !T
            mpmd.return %1 : !T
          } : (!T, !T) -> !T
          return %0 : !T
        }
        """,
        spec(""),
        """
        func.func @main(%a: !T, %b: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a, %b) (%x: !T, %y: !T) {
            mpmd.return %y : !T
          } : (!T, !T) -> !T
          return %0 : !T
        }
        """,
    )


def test_ops_in_regions_of_other_ops() -> None:
    check(
        """
        func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a, %i) (%x: !T, %j: tensor<i32>) {
            %1 = "stablehlo.case"(%j) ({
              %2 = mpmd.named_computation<"g"> (%x) (%y: !T) {
                %3 = stablehlo.abs %y : !T
                mpmd.return %3 : !T
              } : (!T) -> !T
              stablehlo.return %2 : !T
            }) : (tensor<i32>) -> !T
            mpmd.return %1 : !T
          } : (!T, tensor<i32>) -> !T
          return %0 : !T
        }
        """,
        spec("f@p0"),
        """
        func.func @main(%a: !T, %i: tensor<i32>) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a, %i) (%x: !T, %j: tensor<i32>) {
            %1 = "stablehlo.case"(%j) ({
              %3 = stablehlo.abs %x : !T
              stablehlo.return %3 : !T
            }) : (tensor<i32>) -> !T
            mpmd.return %1 : !T
          } : (!T, tensor<i32>) -> !T
          return %0 : !T
        }
        """,
    )


def test_every_function_is_looked_at() -> None:
    ok, found = diagnostics(
        NESTED + NESTED.replace("@main", "private @other"), "func.func(mpmd-inline-nested-user-exposed-ops)"
    )
    assert not ok
    assert len(found) == 2
