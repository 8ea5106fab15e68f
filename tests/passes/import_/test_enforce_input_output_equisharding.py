"""mpmd-enforce-input-output-equisharding"""

from import_programs import check, refusal

PASS = "builtin.module(func.func(mpmd-enforce-input-output-equisharding{%s}))"

SWAP = """
        func.func @main(%a: !P0, %b: !P1) -> (!P0, !P2) attributes {topology = #topo} {
          %0 = mpmd.transfer %b : (!P1) -> !P2
          return %a, %0 : !P0, !P2
        }
        """


def test_violated_constraints() -> None:
    check(
        SWAP,
        PASS % "constraints=0:1,1:0",
        """
        func.func @main(%a: !P0, %b: !P1) -> (!P1, !P0) attributes {topology = #topo} {
          %0 = mpmd.transfer %b : (!P1) -> !P2
          %1 = mpmd.transfer %0 : (!P2) -> !P0
          %2 = mpmd.transfer %a : (!P0) -> !P1
          return %2, %1 : !P1, !P0
        }
        """,
    )


def test_no_constraints() -> None:
    check(SWAP, PASS.replace("{%s}", ""), SWAP)


def test_satisfied_constraints() -> None:
    check(SWAP, PASS % "constraints=0:0", SWAP)


def test_types_are_compared_as_they_were_on_entry() -> None:
    check(
        """
        func.func @main(%a: !P0, %b: !P1) -> !P2 attributes {topology = #topo} {
          %0 = mpmd.transfer %b : (!P1) -> !P2
          return %0 : !P2
        }
        """,
        PASS % "constraints=0:0,1:0",
        """
        func.func @main(%a: !P0, %b: !P1) -> !P1 attributes {topology = #topo} {
          %0 = mpmd.transfer %b : (!P1) -> !P2
          %1 = mpmd.transfer %0 : (!P2) -> !P0
          %2 = mpmd.transfer %1 : (!P0) -> !P1
          return %2 : !P1
        }
        """,
    )


def test_memory_kind_counts() -> None:
    check(
        """
        func.func @main(%a: !P1, %b: !H1) -> !P1 attributes {topology = #topo} {
          return %a : !P1
        }
        """,
        PASS % "constraints=1:0",
        """
        func.func @main(%a: !P1, %b: !H1) -> !H1 attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P1) -> !H1
          return %0 : !H1
        }
        """,
    )


def test_private_functions_are_left_alone() -> None:
    text = """
        func.func private @f(%a: !P0) -> !P1 attributes {topology = #topo} {
          %0 = mpmd.transfer %a : (!P0) -> !P1
          return %0 : !P1
        }
        """
    check(text, PASS % "constraints=0:0", text)


def test_indices_out_of_range() -> None:
    assert "0:2 (input:output) is out of range" in refusal(SWAP, PASS % "constraints=0:2")
