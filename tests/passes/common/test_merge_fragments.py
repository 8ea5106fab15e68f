"""Merging two fragments, and the sharing of the merged bodies."""

from __future__ import annotations

from fragment_texts import frag, function
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.common.fragment_groups import merge_fragments
from mpmd_trace.passes.greedy import walk_mutable
from util import run


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


def test_pairwise_merging_shares_bodies_too() -> None:
    """`merge_fragments` gives equal pairs the same body."""
    module = run(pipeline(3), "mpmd-call-inline")
    bodies = set()
    for fragment in list(walk_mutable(module.main.regions[0])):
        if isinstance(fragment, FragmentOp) and fragment.block is not None and fragment.is_user:
            user = next(u for u in fragment.users if isinstance(u, FragmentOp))
            bodies.add(merge_fragments(fragment, user).body)
    assert len(bodies) == 2


def test_uses_are_in_the_order_of_uses_that_are_redirected_one_by_one() -> None:
    """Passes that look at users in order see those of the results turned around."""
    lines = ["  %0 = " + frag("alpha", '"f"', "%p"), "  %1 = " + frag("alpha", "", "%0", "abs")]
    lines += [f"  %{n} = mpmd.transfer %{of} : (!A) -> !B" for n, of in ((2, 0), (3, 1), (4, 0), (5, 1), (6, 1))]
    text = function("\n".join(lines), ", ".join(f"%{n}" for n in range(2, 7)), ", ".join(["!B"] * 5))
    module = run(text, "mpmd-call-inline")
    first, second = (op for op in module.main.body.ops if isinstance(op, FragmentOp))
    merged = merge_fragments(first, second)
    number = {op: i for i, op in enumerate(module.main.body)}
    uses = [[number[user] for user in value.users] for value in (*merged.results, module.main.args[0])]
    assert uses == [[1, 3], [2, 4, 5], [0]]


def test_long_chains_become_one_fragment() -> None:
    """A chain of a thousand fragments is merged in one go."""
    lines = ["  %v0 = " + frag("alpha", "", "%p")]
    lines += [f"  %v{i} = " + frag("alpha", "", f"%v{i - 1}") for i in range(1, 1000)]
    module = run(function("\n".join(lines), "%v999", "!A"), "mpmd-merge-inferred-fragments")
    (fragment,) = [op for op in module.main.body if isinstance(op, FragmentOp)]
    assert len(fragment.body.block.ops) == 1001
