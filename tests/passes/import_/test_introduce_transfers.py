"""mpmd-introduce-transfers"""

import pytest
from import_programs import check

PASS = "builtin.module(mpmd-introduce-transfers)"


def test_assigns_sums_and_callees() -> None:
    check(
        """
        func.func @main(%a: !P0, %b: !P1) -> (!P2, !P1, !P0) attributes {topology = #topo} {
          %ua = mpmd.unassign %a : (!P0) -> !T
          %ub = mpmd.unassign %b : (!P1) -> !T
          %0 = stablehlo.add %ua, %ub : !T
          %1 = mpmd.assign %0 : (!T) -> !P2
          %2 = mpmd.assign %ua : (!T) -> !P1
          %3 = mpmd.call @f(%ua) : (!T) -> !P0
          return %1, %2, %3 : !P2, !P1, !P0
        }
        func.func private @f(%x: !T) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.assign %x : (!T) -> !P0
          %1 = mpmd.assign %x : (!T) -> !P1
          %2 = mpmd.unassign %1 : (!P1) -> !T
          %3 = mpmd.assign %2 : (!T) -> !P0
          return %3 : !P0
        }
        """,
        PASS,
        """
        func.func @main(%a: !P0, %b: !P1) -> (!P2, !P1, !P0) attributes {topology = #topo} {
          %ua = mpmd.unassign %a : (!P0) -> !T
          %0 = mpmd.transfer %a : (!P0) -> !P2
          %1 = mpmd.transfer %b : (!P1) -> !P2
          %2 = mpmd.fragment<mesh="p2", origin=[]> (%0, %1) {mpmd.inferred_by = ["introduce_transfers"]}
              (%x: !T, %y: !T) {
            %9 = stablehlo.add %x, %y : !T
            mpmd.return %9 : !T
          } : (!P2, !P2) -> !P2
          %3 = mpmd.transfer %a : (!P0) -> !P1
          %4 = mpmd.call @f(%ua) : (!T) -> !P0
          return %2, %3, %4 : !P2, !P1, !P0
        }
        func.func private @f(%x: !T) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.assign %x : (!T) -> !P0
          %1 = mpmd.transfer %0 : (!P0) -> !P1
          %2 = mpmd.transfer %1 : (!P1) -> !P0
          return %2 : !P0
        }
        """,
    )


def test_several_meshes_are_chained_in_mesh_order() -> None:
    check(
        """
        func.func @main(%a: !P0) -> (!P2, !P0, !P1) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P0) -> !T
          %0 = mpmd.assign %u : (!T) -> !P2
          %1 = mpmd.assign %u : (!T) -> !P0
          %2 = mpmd.assign %u : (!T) -> !P1
          return %0, %1, %2 : !P2, !P0, !P1
        }
        """,
        PASS,
        """
        func.func @main(%a: !P0) -> (!P2, !P0, !P1) attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P0) -> !P1
          %1 = mpmd.transfer %0 : (!P1) -> !P2
          return %1, %a, %0 : !P2, !P0, !P1
        }
        """,
    )


def test_unassigns_of_one_value_share_a_transfer() -> None:
    check(
        """
        func.func @main(%a: !P0) -> (!P1, !P1, !P1) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P0) -> !T
          %v = mpmd.unassign %a : (!P0) -> !T
          %w = mpmd.unassign %a : (!P0) -> !T
          %0 = mpmd.assign %u : (!T) -> !P1
          %1 = mpmd.assign %v : (!T) -> !P1
          %2 = mpmd.assign %w : (!T) -> !P1
          return %0, %1, %2 : !P1, !P1, !P1
        }
        """,
        PASS,
        """
        func.func @main(%a: !P0) -> (!P1, !P1, !P1) attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P0) -> !P1
          return %0, %0, %0 : !P1, !P1, !P1
        }
        """,
    )


def test_a_later_transfer_is_moved_up() -> None:
    check(
        """
        func.func @main(%a: !P0) -> (!P1, !P1) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P0) -> !T
          %0 = mpmd.assign %u : (!T) -> !P1
          %f = mpmd.fragment<mesh="p1", origin=["f"]> (%0) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          %1 = mpmd.transfer %a : (!P0) -> !P1
          return %f, %1 : !P1, !P1
        }
        """,
        PASS,
        """
        func.func @main(%a: !P0) -> (!P1, !P1) attributes {topology = #topo} {
          %1 = mpmd.transfer %a : (!P0) -> !P1
          %f = mpmd.fragment<mesh="p1", origin=["f"]> (%1) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!P1) -> !P1
          return %f, %1 : !P1, !P1
        }
        """,
    )


def test_memory_kinds() -> None:
    check(
        """
        func.func @main(%a: !P1, %b: !P0) -> (!H1, !H1) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P1) -> !T
          %v = mpmd.unassign %b : (!P0) -> !T
          %0 = mpmd.assign %u : (!T) -> !H1
          %1 = mpmd.assign %v : (!T) -> !H1
          return %0, %1 : !H1, !H1
        }
        """,
        PASS,
        """
        func.func @main(%a: !P1, %b: !P0) -> (!H1, !H1) attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P1) -> !H1
          %1 = mpmd.transfer %b : (!P0) -> !H1
          return %0, %1 : !H1, !H1
        }
        """,
    )


def test_a_tree_of_sums_gives_one_fragment_per_sum() -> None:
    check(
        """
        func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P0) -> !T
          %v = mpmd.unassign %b : (!P1) -> !T
          %0 = stablehlo.add %u, %v : !T
          %1 = stablehlo.add %0, %u : !T
          %2 = mpmd.assign %1 : (!T) -> !P0
          return %2 : !P0
        }
        """,
        PASS,
        """
        func.func @main(%a: !P0, %b: !P1) -> !P0 attributes {topology = #topo} {
          %0 = mpmd.transfer %b : (!P1) -> !P0
          %1 = mpmd.fragment<mesh="p0", origin=[]> (%a, %0) {mpmd.inferred_by = ["introduce_transfers"]}
              (%x: !T, %y: !T) {
            %9 = stablehlo.add %x, %y : !T
            mpmd.return %9 : !T
          } : (!P0, !P0) -> !P0
          %2 = mpmd.fragment<mesh="p0", origin=[]> (%1, %a) {mpmd.inferred_by = ["introduce_transfers"]}
              (%x: !T, %y: !T) {
            %9 = stablehlo.add %x, %y : !T
            mpmd.return %9 : !T
          } : (!P0, !P0) -> !P0
          return %2 : !P0
        }
        """,
    )


CALLEE = """
        func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
          %0 = mpmd.assign %x : (!T) -> !P1
          %1 = mpmd.unassign %0 : (!P1) -> !T
          %2 = mpmd.assign %y : (!T) -> !P1
          %3 = mpmd.unassign %2 : (!P1) -> !T
          return %1, %3 : !T, !T
        }
        """


def test_chained_calls_agree_through_the_results_of_the_callee() -> None:
    check(
        """
        func.func @main(%a: !P1, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P1) -> !T
          %v = mpmd.unassign %b : (!P1) -> !T
          %0:2 = mpmd.call @f(%u, %v) : (!T, !T) -> (!T, !T)
          %1:2 = mpmd.call @f(%0#1, %0#0) : (!T, !T) -> (!T, !T)
          return %1#0, %1#1 : !T, !T
        }
        """
        + CALLEE,
        PASS,
        """
        func.func @main(%a: !P1, %b: !P1) -> (!T, !T) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P1) -> !T
          %v = mpmd.unassign %b : (!P1) -> !T
          %0:2 = mpmd.call @f(%u, %v) : (!T, !T) -> (!T, !T)
          %1:2 = mpmd.call @f(%0#1, %0#0) : (!T, !T) -> (!T, !T)
          return %1#0, %1#1 : !T, !T
        }
        func.func private @f(%x: !T, %y: !T) -> (!T, !T) attributes {topology = #topo} {
          %2 = mpmd.assign %y : (!T) -> !P1
          %0 = mpmd.assign %x : (!T) -> !P1
          %1 = mpmd.unassign %0 : (!P1) -> !T
          %3 = mpmd.unassign %2 : (!P1) -> !T
          return %1, %3 : !T, !T
        }
        """,
    )


@pytest.mark.parametrize(
    "calls",
    [
        # different meshes
        """
          %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
          %1:2 = mpmd.call @f(%v, %v) : (!T, !T) -> (!T, !T)
          return %0#0, %1#1 : !T, !T
        """,
        # a source that is no unassign
        """
          %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
          %1:2 = mpmd.call @f(%c, %c) : (!T, !T) -> (!T, !T)
          return %0#0, %1#1 : !T, !T
        """,
        # no used call
        """
          %0:2 = mpmd.call @f(%u, %u) : (!T, !T) -> (!T, !T)
          return %c, %c : !T, !T
        """,
    ],
)
def test_callers_that_disagree_leave_the_callee_alone(calls: str) -> None:
    used = "%v, %v" in calls
    text = f"""
        func.func @main(%a: !P0, %b: !P1, %c: !T) -> (!T, !T) attributes {{topology = #topo}} {{
          %u = mpmd.unassign %a : (!P0) -> !T
          {"%v = mpmd.unassign %b : (!P1) -> !T" if used else ""}
          {calls}
        }}
        {CALLEE}
        """
    check(text, PASS, text)
