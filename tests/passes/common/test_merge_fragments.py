# ruff: noqa: E501
"""Merging two fragments, and the sharing of the merged bodies."""

from __future__ import annotations

import pytest
from fragment_texts import frag, function

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.common.merge import merge_fragments
from mpmd_trace.passes.greedy import walk_mutable
from util import check, diagnostics, distinct_bodies, run


def test_general_case() -> None:
    """Operands are unified, results that only the consumer used go, the user keeps its counter."""
    check(
        """
func.func @general(%p: !A, %q: !A) -> (!A, !B) attributes {topology = #topo} {
  %e:2 = mpmd.fragment<mesh="alpha", origin=["enc"], stage=1> (%p, %q, %p) {call_counter = 2 : ui32, remat} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %x, %z : tensor<4xf32>
    %t = stablehlo.multiply %s, %y : tensor<4xf32>
    mpmd.return %s, %t : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A, !A) -> (!A, !A)
  %t = mpmd.transfer %e#1 : (!A) -> !B
  %i = mpmd.fragment<mesh="alpha", origin=[]> (%q, %e#0, %e#1) {call_counter = 5 : ui32, mpmd.inferred_by = ["p"]} (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.subtract %x, %y : tensor<4xf32>
    %u = stablehlo.maximum %s, %z : tensor<4xf32>
    mpmd.return %u : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %i, %t : !A, !B
}
""",
        "mpmd-merge-inferred-fragments",
        """
func.func @general(%arg0: !A, %arg1: !A) -> (!A, !B) attributes {topology = #topo} {
  %0:2 = mpmd.fragment<mesh="alpha", origin=["enc"], stage=1> (%arg0, %arg1) {call_counter = 2 : ui32} (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>) {
    %2 = stablehlo.add %arg2, %arg2 : tensor<4xf32>
    %3 = stablehlo.multiply %2, %arg3 : tensor<4xf32>
    %4 = stablehlo.subtract %arg3, %2 : tensor<4xf32>
    %5 = stablehlo.maximum %4, %3 : tensor<4xf32>
    mpmd.return %3, %5 : tensor<4xf32>, tensor<4xf32>
  } : (!A, !A) -> (!A, !A)
  %1 = mpmd.transfer %0#0 : (!A) -> !B
  return %0#1, %1 : !A, !B
}
""",
    )


def test_single_use_keeps_the_operand_order_of_the_consumer() -> None:
    """The operand of the producer stands where its result stood, even if it is there twice."""
    check(
        """
func.func @fast(%p: !A, %q: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=[]> (%p) {mpmd.inferred_by = ["a"]} (%x: tensor<4xf32>) {
    %n = stablehlo.negate %x : tensor<4xf32>
    mpmd.return %n : tensor<4xf32>
  } : (!A) -> !A
  %1 = mpmd.fragment<mesh="alpha", origin=["g"]> (%q, %0, %p) (%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) {
    %s = stablehlo.add %x, %y : tensor<4xf32>
    %t = stablehlo.add %s, %z : tensor<4xf32>
    mpmd.return %t : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %1 : !A
}
""",
        "mpmd-merge-inferred-fragments",
        """
func.func @fast(%arg0: !A, %arg1: !A) -> !A attributes {topology = #topo} {
  %0 = mpmd.fragment<mesh="alpha", origin=["g"]> (%arg1, %arg0, %arg0) (%arg2: tensor<4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>) {
    %1 = stablehlo.negate %arg3 : tensor<4xf32>
    %2 = stablehlo.add %arg2, %1 : tensor<4xf32>
    %3 = stablehlo.add %2, %arg4 : tensor<4xf32>
    mpmd.return %3 : tensor<4xf32>
  } : (!A, !A, !A) -> !A
  return %0 : !A
}
""",
    )


def pipeline(microbatches: int) -> str:
    """A forward and an inferred fragment on each of two meshes, called once per microbatch."""
    body = [
        "  %0 = " + frag("alpha", '"f"', "%p"),
        "  %1 = " + frag("alpha", "", "%0", "abs"),
        "  %2 = mpmd.transfer %1 : (!A) -> !B",
        "  %3 = " + frag("beta", '"g"', "%2", "sine"),
        "  %4 = " + frag("beta", "", "%3", "cosine"),
    ]
    callee = function("\n".join(body), "%4", "!B", "%p: !A", "private").replace("@main", "@step")
    calls = [f"  %c{i} = mpmd.call @step(%p) {{call_counter = {i} : ui32}} : (!A) -> !B" for i in range(microbatches)]
    names = ", ".join(f"%c{i}" for i in range(microbatches))
    return callee + "\n" + function("\n".join(calls), names, ", ".join(["!B"] * microbatches))


@pytest.mark.parametrize("microbatches", [2, 7])
def test_bodies_do_not_depend_on_the_number_of_microbatches(microbatches: int) -> None:
    """Inlining and merging make one body per stage, however often it runs."""
    module = run(
        pipeline(microbatches),
        "mpmd-call-inline,mpmd-symbol-dce,mpmd-merge-inferred-fragments,mpmd-cse,mpmd-canonicalize",
    )
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert len(fragments) == 2 * microbatches
    assert len(module.functions) == 1
    assert distinct_bodies(module) == 2


def test_pairwise_merging_shares_bodies_too() -> None:
    """`merge_fragments` gives equal pairs the same body."""
    module = run(pipeline(3), "mpmd-call-inline")
    bodies = set()
    for fragment in list(walk_mutable(module.main.regions[0])):
        if isinstance(fragment, FragmentOp) and fragment.block is not None and fragment.is_user:
            user = next(u for u in fragment.users if isinstance(u, FragmentOp))
            bodies.add(merge_fragments(fragment, user).body)
    assert len(bodies) == 2


def test_long_chains_become_one_fragment() -> None:
    """A chain of a thousand fragments is merged in one go."""
    lines = ["  %v0 = " + frag("alpha", "", "%p")]
    lines += [f"  %v{i} = " + frag("alpha", "", f"%v{i - 1}") for i in range(1, 1000)]
    module = run(function("\n".join(lines), "%v999", "!A"), "mpmd-merge-inferred-fragments")
    (fragment,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert len(fragment.body.block.ops) == 1001


def test_different_stages_are_refused() -> None:
    """The message names both fragments and their stages."""
    body = [
        "  %0 = " + frag("alpha", '"f"', "%p", stage=", stage=1"),
        "  %1 = " + frag("alpha", "", "%0", stage=", stage=2"),
    ]
    ok, found = diagnostics(function("\n".join(body), "%1", "!A"), "mpmd-merge-inferred-fragments")
    assert not ok
    (error,) = found
    assert "stage 1" in error.message and "stage 2" in error.message
    assert "stages differ" in error.message


def test_loops_are_refused() -> None:
    """Fragments in a loop have no place among the ops of the function."""
    inner = "    %0 = " + frag("alpha", "", "%l") + "\n    %1 = " + frag("alpha", "", "%0")
    loop = f"""  %r = mpmd.for (%p) {{iterations = 2 : ui32, unroll_factor = 2 : ui32}} (%l: !A, %i: tensor<ui32>) {{
{inner}
    mpmd.return %1 : !A
  }} : !A"""
    ok, found = diagnostics(function(loop, "%r", "!A"), "mpmd-merge-inferred-fragments")
    assert not ok
    assert "unroll loops" in found[0].message
