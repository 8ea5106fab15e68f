"""`mpmd-from-unroll-to-call-counter`."""

from __future__ import annotations

from util import check


def test_the_counter_moves_on_calls_only() -> None:
    check(
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.transfer {unroll_counter = 1 : ui32} %p : (!A) -> !A
          %1 = mpmd.call @g(%0) {unroll_counter = 3 : ui32} : (!A) -> !A
          %2 = mpmd.call @g(%1) {call_counter = 1 : ui32, unroll_counter = 4 : ui32} : (!A) -> !A
          %3 = mpmd.call @g(%2) {unroll_counter = "x"} : (!A) -> !A
          %4 = mpmd.call @g(%3) {call_counter = 2 : ui32} : (!A) -> !A
          return %4 : !A
        }
        func.func private @g(%p: !A) -> !A attributes {topology = #topo} {
          return %p : !A
        }
        """,
        "mpmd-from-unroll-to-call-counter",
        """
        func.func @main(%p: !A) -> !A attributes {topology = #topo} {
          %0 = mpmd.transfer {unroll_counter = 1 : ui32} %p : (!A) -> !A
          %1 = mpmd.call @g(%0) {call_counter = 3 : ui32} : (!A) -> !A
          %2 = mpmd.call @g(%1) {call_counter = 4 : ui32} : (!A) -> !A
          %3 = mpmd.call @g(%2) {unroll_counter = "x"} : (!A) -> !A
          %4 = mpmd.call @g(%3) {call_counter = 2 : ui32} : (!A) -> !A
          return %4 : !A
        }
        func.func private @g(%p: !A) -> !A attributes {topology = #topo} {
          return %p : !A
        }
        """,
    )
