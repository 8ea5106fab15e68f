# ruff: noqa: E501
"""`mpmd-absorb-inferred-fragments`."""

from __future__ import annotations

import pytest
from fragment_texts import frag, function
from random_programs import Program, Shape

from mpmd_trace.passes.manager import run_passes
from mpmd_trace.text import parse
from oracle import assert_same_meaning
from util import check, run


def test_producers_and_consumers_are_absorbed() -> None:
    """The root takes the inferred fragments on both sides; transfers make room."""
    check(
        """
func.func private @callee(%p: !A, %q: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<2.0> : tensor<4xf32>
    %s = stablehlo.add %n, %c : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.transfer %0 : (!A) -> !B
  %2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p, %0) {call_counter = 1 : ui32} (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.multiply %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  %3 = mpmd.transfer %q : (!B) -> !A
  %4 = mpmd.fragment<mesh="alpha", origin=[]> (%2, %3) (%x: tensor<4xf32>, %y: tensor<4xf32>) {
    %s = stablehlo.subtract %x, %y : tensor<4xf32>
    mpmd.return %s : tensor<4xf32>
  } : (!A, !A) -> !A
  return %4, %1 : !A, !B
}
""",
        "mpmd-absorb-inferred-fragments",
        """
func.func private @callee(%arg0: !A, %arg1: !B) -> (!A, !B) attributes {topology = #topo} {
  %0 = mpmd.transfer %arg1 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> (%arg0, %0) {call_counter = 1 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<4xf32>
    %3 = stablehlo.negate %arg2 : tensor<4xf32>
    %4 = stablehlo.add %3, %cst : tensor<4xf32>
    %5 = stablehlo.multiply %arg2, %4 : tensor<4xf32>
    %6 = stablehlo.subtract %5, %arg3 : tensor<4xf32>
    mpmd.return %4, %6 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %2 = mpmd.transfer %1#0 : (!A) -> !B
  return %1#1, %2 : !A, !B
}
""",
    )


def test_entry_points_only_with_the_option() -> None:
    """A public function is left alone unless the option says otherwise."""
    body = "  %0 = " + frag("alpha", "", "%p") + "\n  %1 = " + frag("alpha", '"f"', "%0", "abs")
    text = function(body, "%1", "!A")
    check(text, "mpmd-absorb-inferred-fragments", text)
    module = run(text, "mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}")
    assert str(module).count("mpmd.fragment") == 1


def test_inferred_chain_keeps_all_reasons() -> None:
    """Of two inferred fragments the later is the root: its entries come first."""
    body = (
        "  %0 = "
        + frag("alpha", "", "%p", attrs='{mpmd.inferred_by = ["a", "b"]}')
        + "\n  %1 = "
        + frag("alpha", "", "%0", "abs", attrs='{call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c"]}')
    )
    module = run(function(body, "%1", "!A", visibility="private"), "mpmd-absorb-inferred-fragments")
    text = str(module)
    assert '{call_counter = 1 : ui32, mpmd.inferred_by = ["b", "c", "a"]}' in text


def test_unused_transfers_and_constants_are_tidied() -> None:
    """Also without anything to absorb: dead ops go, constants are unified and come first."""
    check(
        """
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %t = mpmd.transfer %p : (!A) -> !B
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %a = stablehlo.negate %x : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %g = stablehlo.constant dense<1.0> : tensor<4xf32>
    %h = stablehlo.add %d, %g : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
""",
        "mpmd-absorb-inferred-fragments",
        """
func.func private @f(%p: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {
    %e = stablehlo.constant dense<2.0> : tensor<4xf32>
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    %a = stablehlo.negate %x : tensor<4xf32>
    %d = stablehlo.add %a, %c : tensor<4xf32>
    %h = stablehlo.add %d, %c : tensor<4xf32>
    %i = stablehlo.add %h, %e : tensor<4xf32>
    mpmd.return %i : tensor<4xf32>
  } : (!A) -> !A
  return %0 : !A
}
""",
    )


def test_constants_leave_nested_regions() -> None:
    """The home of a constant is the body of the fragment, not the region of an op in it."""
    loop = """
    {hoisted}%w = stablehlo.while(%i = %x) : tensor<4xf32> cond {{
      {nested}stablehlo.return %c : tensor<i1>
    }} do {{
      stablehlo.return %i : tensor<4xf32>
    }}
    mpmd.return %w : tensor<4xf32>
  }} : (!A) -> !A"""
    constant = "%c = stablehlo.constant dense<false> : tensor<i1>\n    "
    head = '  %0 = mpmd.fragment<mesh="alpha", origin=["f"]> (%p) (%x: tensor<4xf32>) {'
    before = function(head + loop.format(hoisted="", nested=constant), "%0", "!A", visibility="private")
    after = function(head + loop.format(hoisted=constant, nested=""), "%0", "!A", visibility="private")
    check(before, "mpmd-absorb-inferred-fragments", after)


@pytest.mark.parametrize("seed", range(12))
def test_meaning_is_kept(seed: int) -> None:
    """Random programs compute what they computed."""
    before = parse(Program(seed, Shape(fragments=10)).text())
    after = before.clone()
    run_passes(after, "mpmd-absorb-inferred-fragments{absorb-on-entry-point-function=true}")
    assert_same_meaning(before, after)
