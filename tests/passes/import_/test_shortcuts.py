"""Shortcuts of the import passes: without them the result is the same, use lists included."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import import_programs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from infer_mesh_programs import program, run, sequence

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir import core
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes import greedy
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.import_ import absorb_meshless
from mpmd_trace.passes.import_ import insert_nameless_clone_of_negligible_ops as clones
from mpmd_trace.passes.import_.infer_mesh_finalize import InferMeshFinalize
from mpmd_trace.passes.import_.infer_mesh_rewrite_using_analysis import InferMeshRewriteUsingAnalysis
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.variants import FinalizeKeepingMemories, RewriteDirectly
from oracle import assert_same_meaning

#: What to put in the place of each shortcut, so that the long way is taken.
SHORTCUTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "finalize": (InferMeshFinalize, "drop_pairs", lambda *_: None),
    "absorb": (absorb_meshless.Absorber, "absorb_again", lambda absorber, op: False),
    "clones": (clones, "holds_computations", lambda body: True),
}


def state(module: Module) -> list[object]:
    """The text, and for every value outside of frozen bodies who uses it, newest first, and room for operands."""
    numbers: dict[object, int] = {}
    ops: list[core.Op] = []

    def visit(region: core.Region) -> None:
        for block in region.blocks:
            for op in block:
                numbers[op] = len(numbers)
                ops.append(op)
                for nested in op.regions:
                    if not nested.frozen:
                        visit(nested)

    visit(module.op.regions[0])
    found: list[object] = [module.to_generic()]
    for op in ops:
        values: list[core.Value] = [*op.results]
        for region in op.regions:
            if not region.frozen:
                values += [arg for block in region.blocks for arg in block.args]
        found.append((op.operand_capacity, [[(numbers[u.owner], u.index) for u in v.uses] for v in values]))
    return found


def outcome(text: str, passes: Sequence[str | Pass]) -> list[object]:
    module = parse(text)
    try:
        return state(run_passes(module, passes))
    except MpmdError as error:
        return [str(error)]


@pytest.mark.parametrize("shortcut", ["finalize", "absorb"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    steps=st.sampled_from([5, 15, 40]),
    transfers=st.booleans(),
    max_clones=st.integers(1, 3),
)
def test_mesh_inference(shortcut: str, seed: int, steps: int, transfers: bool, max_clones: int) -> None:
    text = program(seed, steps)
    passes = ["mpmd-introduce-transfers", *sequence(infer_transfers=transfers, max_clones=max_clones)]
    expected = outcome(text, passes)
    with mock.patch.object(*SHORTCUTS[shortcut]):
        assert outcome(text, passes) == expected


@pytest.mark.parametrize("shortcut", ["clones"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), depth=st.integers(0, 2))
def test_named_computations(shortcut: str, seed: int, depth: int) -> None:
    text = import_programs.Named(seed, depth=depth).module()
    passes = ["mpmd-insert-nameless-clone-of-negligible-ops", "mpmd-simplify-named-computations"]
    for times in (1, 2):  # the second time there is little to do
        expected = outcome(text, passes * times)
        with mock.patch.object(*SHORTCUTS[shortcut]):
            assert outcome(text, passes * times) == expected


def sums(count: int) -> str:
    """One update that adds up `count` values, as the gradients of microbatches."""
    adds = "".join(f"%s{i + 1} = stablehlo.add %s{i}, %a : !T\n" for i in range(count))
    return f"""
        func.func @main(%a: !T, %s0: !T) -> !P0 attributes {{topology = #topo}} {{
          {adds}
          %0 = mpmd.assign %s{count} : (!T) -> !P0
          return %0 : !P0
        }}
        """


def test_assigns_are_made_once() -> None:
    """An op that is taken in costs no assign of what it reads when that is taken in, too."""
    with mock.patch.object(absorb_meshless, "make_assign", side_effect=absorb_meshless.make_assign) as made:
        module = run(sums(50), "mpmd-infer-mesh-rewrite-using-analysis")
    (fragment,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert fragment.num_operands == 51
    assert made.call_count == 50  # the other one is of the last add, which is wrapped in the fragment


def long_ways(text: str) -> int:
    """How many ops of the program are absorbed without the help of a step that is known."""
    long_way = mock.Mock(side_effect=absorb_meshless.Absorber.absorb)
    with mock.patch.object(absorb_meshless.Absorber, "absorb", lambda *args: long_way(*args)):
        run(text, "mpmd-infer-mesh-rewrite-using-analysis")
    return long_way.call_count


def test_equal_sums_take_the_short_way() -> None:
    once = sums(60)
    lines = [line for line in once.splitlines() if "stablehlo.add" in line or "mpmd.assign" in line]
    again = re.sub(r"%(s[1-9]\d*|0)\b", r"%again_\1", "\n".join(lines))
    twice = once.replace("return %0 : !P0", f"{again}\nreturn %0, %again_0 : !P0, !P0")
    twice = twice.replace("-> !P0 attributes", "-> (!P0, !P0) attributes")
    assert twice.count("stablehlo.add") == 120
    assert long_ways(twice) <= long_ways(once) + 1


def pairs(first: str, mesh: str) -> str:
    """Forty times from a mesh and back to it."""
    return "".join(
        f"""
          %u{i} = mpmd.unassign %{first if i == 0 else f"v{i}"} : ({mesh}) -> !T
          %v{i + 1} = mpmd.assign %u{i} : (!T) -> {mesh}"""
        for i in range(40)
    )


def test_pairs_on_one_mesh_do_not_go_through_the_driver() -> None:
    text = f"""
        func.func @main(%v: !P0) -> !P0 attributes {{topology = #topo}} {{
          {pairs("v", "!P0")}
          return %v40 : !P0
        }}
        """
    with mock.patch.object(greedy.Rewriter, "erase") as erase:
        module = run(text, "mpmd-infer-mesh-finalize")
    assert not erase.called
    assert len(module.main.body.ops) == 1


def test_pairs_in_front_of_a_transfer_do_not_go_through_it_either_where_orders_are_free() -> None:
    text = f"""
        func.func @main(%v: !P0) -> !P1 attributes {{topology = #topo}} {{
          {pairs("v", "!P0")}
          %0 = mpmd.unassign %v40 : (!P0) -> !T
          %1 = mpmd.assign %0 : (!T) -> !P1
          return %1 : !P1
        }}
        """
    texts = []
    for last, most in (
        (FinalizeKeepingMemories(True), 2),
        (InferMeshFinalize(True), 82),
    ):  # the transfer takes an assign and an unassign
        with mock.patch.object(greedy.Rewriter, "erase", autospec=True, side_effect=greedy.Rewriter.erase) as erase:
            texts.append(run(text, [last]).to_generic())
        assert erase.call_count == most
    assert texts[0] == texts[1] and texts[0].count("mpmd.transfer") == 1


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), steps=st.sampled_from([5, 15, 40]), max_clones=st.integers(1, 3))
@example(seed=52572, steps=15, max_clones=1)
def test_what_goes_in_one_walk_where_orders_are_free(seed: int, steps: int, max_clones: int) -> None:
    """The text is the same, or the walk lets fragments share a transfer that the driver makes twice."""
    text = program(seed, steps)
    *steps_before, _ = sequence(infer_transfers=True, max_clones=max_clones)
    passes = ["mpmd-introduce-transfers", *steps_before, FinalizeKeepingMemories(True)]
    expected = outcome(text, passes)
    with mock.patch.object(FinalizeKeepingMemories, "drop_pairs", lambda *_: None):
        found, walked = outcome(text, passes)[0], expected[0]
    if found != walked:
        assert isinstance(found, str) and isinstance(walked, str)
        assert walked.count('"mpmd.transfer"') < found.count('"mpmd.transfer"')
        assert_same_meaning(parse(found), parse(walked))


def test_bodies_without_computations_are_not_copied() -> None:
    text = """
        func.func @main(%a: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"f"> (%a) (%x: !T) {
            %9 = stablehlo.abs %x : !T
            mpmd.return %9 : !T
          } : (!T) -> !T
          return %0 : !T
        }
        """
    with mock.patch.object(core.Region, "clone") as clone:
        run(text, "mpmd-insert-nameless-clone-of-negligible-ops")
    assert not clone.called


def test_calls_take_and_give_what_is_on_their_mesh() -> None:
    """With `direct`, without a pair of assign and unassign for each value that a call hands to the next one."""
    text = """
        func.func @main(%p: !P0) -> !P0 attributes {topology = #topo} {
          %u = mpmd.unassign %p : (!P0) -> !T
          %0 = mpmd.call @f(%u) : (!T) -> !T
          %1 = mpmd.call @f(%0) : (!T) -> !T
          %2 = mpmd.assign %1 : (!T) -> !P0
          return %2 : !P0
        }
        func.func private @f(%x: !T) -> !T attributes {topology = #topo} {
          %0 = mpmd.assign %x : (!T) -> !P0
          %1 = mpmd.fragment<mesh="p0", origin=["f"]> (%0) (%y: !T) {
            %9 = stablehlo.abs %y : !T
            mpmd.return %9 : !T
          } : (!P0) -> !P0
          %2 = mpmd.unassign %1 : (!P0) -> !T
          return %2 : !T
        }
        """
    found = {}
    for direct in (False, True):
        rewrite = RewriteDirectly() if direct else InferMeshRewriteUsingAnalysis()
        first = run(text, ["mpmd-infer-mesh-populate-use-set", rewrite])
        pairs = sum(op.name in ("mpmd.assign", "mpmd.unassign") for op in first.main.body)
        found[direct] = pairs, str(run_passes(first, ["mpmd-infer-mesh-finalize"]))
    assert found[True][1] == found[False][1]
    assert found[True][0] == 1 < found[False][0]
