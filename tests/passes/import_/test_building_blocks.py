"""What several import passes do."""

import pytest
from import_programs import PRELUDE, run

from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics, PassFailed
from mpmd_trace.ir.ops import AssignOp, FuncOp, Module, UnassignOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.import_.building_blocks import (
    calls_of,
    chain_of_transfers,
    cross_mesh_assigns,
    result_location,
    wrap_in_fragment,
)

NOTHING = "mpmd-validate-named-ops-in-mpmd-func"


def module(text: str) -> Module:
    return parse(PRELUDE + text)


def find(function: FuncOp, name: str) -> Op:
    return next(op for op in function.body if op.name == name)


def same(found: Module, wanted: str) -> None:
    assert str(found) == str(module(wanted))


def test_wrapping_takes_operands_and_free_values_once_and_passes_tokens() -> None:
    before = module(
        """
        func.func @main(%a: !T, %b: !T, %i: tensor<i32>, %t: !stablehlo.token)
            -> (!T, !stablehlo.token) attributes {topology = #topo} {
          %0 = "stablehlo.case"(%i) ({
            %9 = stablehlo.add %b, %a : !T
            stablehlo.return %9 : !T
          }, {
            stablehlo.return %b : !T
          }) : (tensor<i32>) -> !T
          %1 = stablehlo.after_all %t, %t : !stablehlo.token
          return %0, %1 : !T, !stablehlo.token
        }
        """
    )
    for name in ("stablehlo.case", "stablehlo.after_all"):
        op = find(before.main, name)
        wrap_in_fragment(op, "p1", "label", Diagnostics())
        op.erase()
    same(
        before,
        """
        !I = !mpmd.mesh_tensor<"p1", tensor<i32>>
        func.func @main(%a: !T, %b: !T, %i: tensor<i32>, %t: !stablehlo.token)
            -> (!T, !stablehlo.token) attributes {topology = #topo} {
          %i1 = mpmd.assign %i : (tensor<i32>) -> !I
          %b1 = mpmd.assign %b : (!T) -> !P1
          %a1 = mpmd.assign %a : (!T) -> !P1
          %f = mpmd.fragment<mesh="p1", origin=[]> (%i1, %b1, %a1) {mpmd.inferred_by = ["label"]}
              (%j: tensor<i32>, %x: !T, %y: !T) {
            %0 = "stablehlo.case"(%j) ({
              %9 = stablehlo.add %x, %y : !T
              stablehlo.return %9 : !T
            }, {
              stablehlo.return %x : !T
            }) : (tensor<i32>) -> !T
            mpmd.return %0 : !T
          } : (!I, !P1, !P1) -> !P1
          %u = mpmd.unassign %f : (!P1) -> !T
          %g = mpmd.fragment<mesh="p1", origin=[]> (%t) {mpmd.inferred_by = ["label"]}
              (%s: !stablehlo.token) {
            %1 = stablehlo.after_all %s, %s : !stablehlo.token
            mpmd.return %1 : !stablehlo.token
          } : (!stablehlo.token) -> !stablehlo.token
          return %u, %g : !T, !stablehlo.token
        }
        """,
    )


def test_wrapping_redirects_the_accepted_users_only_and_shares_equal_bodies() -> None:
    before = module(
        """
        func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
          %0 = stablehlo.abs %a : !T
          %1 = stablehlo.abs %0 : !T
          return %0, %1 : !T, !T
        }
        """
    )
    first, second = (op for op in before.main.body if op.name == "stablehlo.abs")
    returning = before.main.body.terminator
    one = wrap_in_fragment(first, "p0", "x", Diagnostics(), accept=lambda user: user is returning)
    two = wrap_in_fragment(second, "p2", "x", Diagnostics())
    assert one.body is two.body
    assert second.operand(0) is first.result
    assert isinstance(returning.operand(0).defining_op, UnassignOp)


def test_wrapping_on_an_unknown_mesh_is_an_error() -> None:
    before = module(
        """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %a : !T
          return %0 : !T
        }
        """
    )
    diagnostics = Diagnostics()
    with pytest.raises(PassFailed):
        wrap_in_fragment(find(before.main, "stablehlo.abs"), "p9", "x", diagnostics)
    assert 'needs the mesh "p9"' in diagnostics.errors[0].message


def test_a_chain_follows_the_mesh_order_and_may_come_back() -> None:
    before = module(
        """
        func.func @main(%a: !P1) -> (!P2, !P1, !P0, !P2) attributes {topology = #topo} {
          %u = mpmd.unassign %a : (!P1) -> !T
          %f = mpmd.fragment<mesh="p0", origin=[]> () () { mpmd.return  } : () -> ()
          %0 = mpmd.assign %u : (!T) -> !P2
          %1 = mpmd.assign %u : (!T) -> !P1
          %2 = mpmd.assign %u : (!T) -> !P0
          %3 = mpmd.assign %u : (!T) -> !P2
          return %0, %1, %2, %3 : !P2, !P1, !P0, !P2
        }
        """.replace("%f = ", "")
    )
    unassign = find(before.main, "mpmd.unassign")
    assert isinstance(unassign, UnassignOp)
    crossing = cross_mesh_assigns(unassign)
    assert [a.mesh_type.mesh for a in crossing] == ["p2", "p0", "p2"]  # newest first
    assigns = [op for op in before.main.body if isinstance(op, AssignOp)]
    chain_of_transfers(assigns, unassign.operand(0))
    unassign.erase()
    same(
        before,
        """
        func.func @main(%a: !P1) -> (!P2, !P1, !P0, !P2) attributes {topology = #topo} {
          mpmd.fragment<mesh="p0", origin=[]> () () { mpmd.return  } : () -> ()
          %0 = mpmd.transfer %a : (!P1) -> !P0
          %1 = mpmd.transfer %0 : (!P0) -> !P1
          %2 = mpmd.transfer %1 : (!P1) -> !P2
          return %2, %1, %0, %2 : !P2, !P1, !P0, !P2
        }
        """,
    )


CALLS = """
        func.func @main(%a: !T, %b: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.call @f(%b) : (!T) -> !T
          %1 = mpmd.for (%a) {iterations = 2 : ui32} (%x: !T, %i: tensor<ui32>) {
            %2 = mpmd.call @f(%x) : (!T) -> !T
            mpmd.return %2 : !T
          } : !T
          %3 = mpmd.call @f(%1) : (!T) -> !T
          return %3 : !T
        }
        func.func private @f(%x: !T) -> !T attributes {topology = #topo} {
          %0 = stablehlo.abs %x : !T
          return %0 : !T
        }
        func.func private @g(%x: !T) -> !T attributes {topology = #topo} {
          return %x : !T
        }
        """


def test_calls_of_which_a_result_is_used() -> None:
    program = module(CALLS)
    calls = calls_of(program, "f")
    assert [call.parent_op and call.parent_op.name for call in calls] == ["mpmd.for", "func.func"]
    assert calls_of(program, "g") == []


def test_result_locations() -> None:
    program = run(
        """
        func.func @main(%a: !T) -> (!T {jax.result_info = "loss"}, !T) attributes {topology = #topo} {
          return %a, %a : !T, !T
        }
        """,
        NOTHING,
    )
    assert result_location(program.main, 0).name == "loss"
    assert result_location(program.main, 1) is program.main.args[0].location
