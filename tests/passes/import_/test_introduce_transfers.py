"""mpmd-introduce-transfers"""

import pytest
from import_programs import check

PASS = "builtin.module(mpmd-introduce-transfers)"


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
