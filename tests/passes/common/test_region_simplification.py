"""The helper that simplifies ops with a one-block body."""

# ruff: noqa: E501 (MLIR text)
from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.common.region_simplification import simplify_region
from mpmd_trace.passes.greedy import Rewriter
from util import PRELUDE

SIMPLIFY = simplify_region("mpmd.fragment", keep_attributes=True)


def simplified(before: str) -> tuple[bool, str]:
    module = parse(PRELUDE + before)
    op = next(o for o in module.main.body if isinstance(o, FragmentOp))
    return SIMPLIFY.match_and_rewrite(op, Rewriter()), str(module)


def check(before: str, changed: bool, after: str) -> None:
    assert simplified(before) == (changed, str(parse(PRELUDE + after)))


def program(fragment: str, returned: str, types: str = "!A, !A") -> str:
    return (
        f"func.func @main(%p: !A, %q: !A) -> ({types}) attributes {{topology = #topo}} {{\n{fragment}\n"
        f"  return {returned} : {types}\n}}"
    )


def test_equal_results_and_equal_operands() -> None:
    before = """
      %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q, %p) {keep} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
        %s = stablehlo.add %y, %z : tensor<4xf32>
        mpmd.return %s, %s : tensor<4xf32>, tensor<4xf32>
      } : (!A, !A, !A) -> (!A, !A)"""
    after = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%q, %p) {keep} (%y: tensor<4xf32>, %z: tensor<4xf32>) {
        %s = stablehlo.add %y, %z : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!A, !A) -> !A"""
    changed, text = simplified(program(before, "%0#0, %0#1"))
    # The first of the equal operands stays.
    after = after.replace("(%q, %p)", "(%p, %q)").replace(
        "(%y: tensor<4xf32>, %z: tensor<4xf32>)", "(%z: tensor<4xf32>, %y: tensor<4xf32>)"
    )
    assert changed
    assert text == str(parse(PRELUDE + program(after, "%0, %0")))


def test_equal_operands_alone() -> None:
    before = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
        %s = stablehlo.add %x, %y : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!A, !A) -> !A"""
    after = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        %s = stablehlo.add %x, %x : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!A) -> !A"""
    check(program(before, "%0", "!A"), True, program(after, "%0", "!A"))


def test_forwarded_arguments_and_unused_results() -> None:
    before = """
      %0:3 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %q) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
        %s = stablehlo.negate %x : tensor<4xf32>
        %t = stablehlo.abs %s : tensor<4xf32>
        mpmd.return %y, %s, %t : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
      } : (!A, !A) -> (!A, !A, !A)"""
    after = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        %s = stablehlo.negate %x : tensor<4xf32>
        mpmd.return %s : tensor<4xf32>
      } : (!A) -> !A"""
    check(program(before, "%0#0, %0#1"), True, program(after, "%q, %0"))


def test_an_op_whose_results_all_go_is_erased_when_it_is_pure() -> None:
    before = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        mpmd.return %x : tensor<4xf32>
      } : (!A) -> !A"""
    check(program(before, "%0, %q"), True, program("", "%p, %q"))


def test_an_op_with_effects_stays_although_uses_are_redirected() -> None:
    before = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        %s = stablehlo.custom_call @e(%x) {has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
        mpmd.return %x : tensor<4xf32>
      } : (!A) -> !A"""
    check(program(before, "%0, %q"), False, program(before, "%p, %q"))


def test_unused_results_of_impure_ops_stay() -> None:
    before = """
      %0:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        %s = stablehlo.custom_call @e(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %t = stablehlo.negate %x : tensor<4xf32>
        mpmd.return %s, %t : tensor<4xf32>, tensor<4xf32>
      } : (!A) -> (!A, !A)"""
    check(program(before, "%q, %0#1"), False, program(before, "%q, %0#1"))


def test_different_types_are_not_forwarded() -> None:
    before = """
      %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
        mpmd.return %x : tensor<4xf32>
      } : (!A) -> !mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">"""
    types = '!mpmd.mesh_tensor<"alpha", tensor<4xf32>, memory_kind="device">'
    check(program(before, "%0", types), False, program(before, "%0", types))
