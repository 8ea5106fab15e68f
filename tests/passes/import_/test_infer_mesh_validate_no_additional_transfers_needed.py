"""mpmd-infer-mesh-validate-no-additional-transfers-needed"""

import pytest
from import_programs import diagnostics

PASS = "mpmd-infer-mesh-validate-no-additional-transfers-needed"


def test_the_last_op_of_a_chain_is_reported() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !P0) -> !P1 attributes {topology = #topo} {
          %f = mpmd.fragment<mesh="p0", origin=["left"]> (%a) (%x: !T) {
            mpmd.return %x : !T
          } : (!P0) -> !P0
          %u = mpmd.unassign {origin = "left", src=<"p0"["left"]>, use=<"p1"["s"]>} %f : (!P0) -> !T
          %0 = stablehlo.abs %u {src=<"p0"["left"]>, use=<"p1"["s"], "p2">} : !T
          %1 = stablehlo.negate %0 {src=<"p0"["left"]>, use=<"p1"["s"], "p2">} : !T
          %2 = mpmd.assign {origin = "s", src=<"p1">, use=<"p1"["s"]>} %1 : (!T) -> !P1
          return %2 : !P1
        }
        """,
        PASS,
    )
    assert not ok
    assert len(found) == 1
    message = found[0].message
    assert message.startswith(
        'the result of this op is needed on meshes "p1" and "p2", but the op can only run on mesh "p0"; '
        'a transfer to meshes "p1" and "p2" is missing'
    )
    assert "'stablehlo.negate'" in message
    assert 'the result of named computation "left" on "p0"' in message
    assert 'needed on "p1" because of named computation or tensor "s"' in message
    assert "ways out" in message


def test_assigns_are_reported_and_do_not_silence() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T {src=<"p0">, use=<"p2">}) -> !P2 attributes {topology = #topo} {
          %0 = mpmd.assign {src=<"p0">, use=<"p2">} %a : (!T) -> !P2
          return %0 : !P2
        }
        """,
        PASS,
    )
    assert not ok
    assert [d.message.split(";")[0] for d in found] == [
        'mesh "p2" asks for a value that is only available on mesh "p0"',
        'argument 0 of @main is needed on mesh "p2", but what is passed is only available on mesh "p0"',
    ]


def test_chained_calls() -> None:
    ok, found = diagnostics(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0:2 = mpmd.call @f(%a, %a) : (!T, !T) -> (!T, !T)
          %1:2 = mpmd.call @f(%0#0, %0#1) : (!T, !T) -> (!T, !T)
          return %1#0 : !T
        }
        func.func private @f(%x: !T {use=<"p1"["b"], "p0">}, %y: !T {use=<"p1">})
            -> (!T {use=<"p0", "p1"["a"]>}, !T {use=<"p2">}) attributes {topology = #topo} {
          return %x, %y : !T, !T
        }
        """,
        PASS,
    )
    assert not ok
    assert len(found) == 1
    assert 'result 1 is needed on mesh "p2"' in found[0].message
    assert 'argument 1, to which it is passed, on mesh "p1"' in found[0].message


@pytest.mark.parametrize(("limit", "lines"), [(1, [4]), (2, [4, 3]), (-1, [4, 3, 2])])
def test_limit(limit: int, lines: list[int]) -> None:
    """Users come before producers, functions after their ops."""
    text = """func.func @main(%a: !T {src=<"p0">, use=<"p2">}, %k: !T) attributes {topology = #topo} {
          %0 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
          %1 = stablehlo.abs %k {src=<"p0">, use=<"p2">} : !T
          return
        }"""
    ok, found = diagnostics("\n" + text, f"{PASS}{{error-limit={limit}}}")
    assert not ok
    positions = [d.location.file[1] for d in found if d.location.file is not None]
    first = positions[0] - lines[0]
    assert [p - first for p in positions] == lines
