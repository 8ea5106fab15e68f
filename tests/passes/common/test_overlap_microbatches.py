"""`mpmd-overlap-microbatches`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fragment_texts import frag, function
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.fragment_info import is_backward, merged_parts
from mpmd_trace.passes.programs.blocks import Work, hidden, ordered_with_groups
from mpmd_trace.passes.programs.overlap_microbatches import OverlapMicrobatches
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, max_examples


def counted(i: int) -> str:
    return f"{{call_counter = {i} : ui32}}"


def overlapped(text: str, work: Callable[[FragmentOp, Module], Work] | None = None, always: bool = True) -> Module:
    before = parse(PRELUDE + text)
    after = before.clone()
    OverlapMicrobatches(always=always, work=work).run(after, Diagnostics())
    parse(after.to_generic())
    assert_same_meaning(before, after)
    return after


def merged(module: Module) -> list[tuple[str, list[str]]]:
    """The mesh of each fragment, and the kinds and microbatches that it was merged from."""
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    return [(op.mesh, [f"{part.kind}{part.microbatch}" for part in merged_parts(op)]) for op in fragments]


def lines(*ops: str) -> str:
    return "\n".join(f"  %{i} = {op}" for i, op in enumerate(ops))


def chunk(microbatch: int, stage: int, backward: bool, operand: str) -> str:
    origin = '"f"(1)' if backward else '"f"'
    return frag("alpha", origin, operand, attrs=counted(microbatch), stage=f", stage={stage}")


def test_a_forward_and_a_backward_of_other_stages_in_either_order() -> None:
    """As in the blocks of DualPipe; each says of which stages its parts are."""
    ops = [chunk(4, 0, False, "%p"), chunk(1, 3, True, "%p"), chunk(5, 3, False, "%p"), chunk(2, 0, True, "%p")]
    module = overlapped(function(lines(*ops), "%0, %1, %2, %3", "!A, !A, !A, !A"))
    assert merged(module) == [("alpha", ["F4", "B1"]), ("alpha", ["F5", "B2"])]
    stages = [[part.stage for part in merged_parts(op)] for op in module.main.body if isinstance(op, FragmentOp)]
    assert stages == [[0, 3], [3, 0]]


def test_what_follows_from_the_first_moves_behind_the_pair_and_what_the_second_needs_in_front_of_it() -> None:
    ops = [
        chunk(0, 0, True, "%p"),
        "mpmd.transfer %0 : (!A) -> !B",
        "mpmd.transfer %q : (!B) -> !A",
        chunk(3, 0, False, "%2"),
    ]
    module = overlapped(function(lines(*ops), "%1, %3", "!B, !A"))
    assert merged(module) == [("alpha", ["B0", "F3"])]
    assert [op.name for op in module.main.body] == ["mpmd.transfer", "mpmd.fragment", "mpmd.transfer", "func.return"]


@pytest.mark.parametrize(
    "ops",
    [
        # The forward needs what the backward gives, by way of another mesh.
        [
            chunk(0, 0, True, "%p"),
            "mpmd.transfer %0 : (!A) -> !B",
            "mpmd.transfer %1 : (!B) -> !A",
            chunk(1, 0, False, "%2"),
        ],
        # The same microbatch: there is nothing to hide behind.
        [chunk(0, 0, False, "%p"), chunk(0, 0, True, "%p")],
        # Two forwards.
        [chunk(0, 0, False, "%p"), chunk(1, 0, False, "%p")],
    ],
)
def test_no_pair(ops: list[str]) -> None:
    module = overlapped(function(lines(*ops), f"%{len(ops) - 1}", "!A"))
    assert [pair for _, pair in merged(module)] == [[], []]


def steady(meshes: int, warm_up: int, microbatches: int) -> str:
    """1F1B on two meshes, whose first one runs `warm_up` forwards ahead."""
    ops: list[str] = []
    forwards: dict[int, int] = {}
    backwards: dict[int, int] = {}

    def add(op: str) -> int:
        ops.append(op)
        return len(ops) - 1

    def forward(m: int) -> None:
        forwards[m] = add(frag("alpha", '"f"', "%p", attrs=counted(m)))

    for m in range(min(warm_up, microbatches)):
        forward(m)
    for m in range(microbatches):
        there = add(f"mpmd.transfer %{forwards[m]} : (!A) -> !B")
        ahead = add(frag("beta", '"g"', f"%{there}", attrs=counted(m)))
        back = add(frag("beta", '"g"(1)', f"%{ahead}", attrs=counted(m)))
        home = add(f"mpmd.transfer %{back} : (!B) -> !A")
        backwards[m] = add(frag("alpha", '"f"(1)', f"%{home}", attrs=counted(m)))
        if m + warm_up < microbatches:
            forward(m + warm_up)
    return function(lines(*ops), ", ".join(f"%{i}" for i in backwards.values()), ", ".join(["!A"] * microbatches))


def costs(collectives: float, exposed: float = 0.0) -> Callable[[FragmentOp, Module], Work]:
    return lambda op, module: Work(2.0 if is_backward(op) else 1.0, collectives, exposed)


def test_pairs_only_where_more_is_hidden_than_other_meshes_wait() -> None:
    """With two forwards ahead a pair delays the other mesh; with four it does not, and its collectives are hidden."""
    many = 12
    pairs = {
        (ahead, collectives): sum(
            bool(pair) for _, pair in merged(overlapped(steady(2, ahead, many), costs(collectives), False))
        )
        for ahead, collectives in itertools.product((2, 4), (0.0, 0.8))
    }
    assert pairs[2, 0.0] == pairs[4, 0.0] == 0
    assert pairs[2, 0.8] == 0
    assert pairs[4, 0.8] > many
    unhidden = overlapped(steady(2, 4, many), costs(0.0, 0.8), False)
    assert not any(pair for _, pair in merged(unhidden))


def test_hidden_is_bounded_by_the_work_of_the_other() -> None:
    assert hidden(Work(1.0, 0.5), Work(2.0, 3.0)) == 0.5 + 1.0
    assert hidden(Work(1.0, 0.0, 0.5), Work(2.0, 0.0, 3.0)) == 0.0


@max_examples(100)
@given(st.data())
def test_groups_stay_together_and_everything_waits_for_what_it_needs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    waits = [
        data.draw(st.lists(st.integers(0, node - 1), max_size=3, unique=True)) if node else [] for node in range(count)
    ]
    free = data.draw(st.permutations(range(count)))
    groups = [sorted(free[i : i + 2]) for i in range(0, data.draw(st.integers(0, count // 2)) * 2, 2)]
    order, kept, cycles = ordered_with_groups(waits, groups)
    place = {node: i for i, node in enumerate(order)}
    assert sorted(order) == list(range(count))
    assert all(place[one] < place[node] for node in range(count) for one in waits[node])
    assert all(place[groups[k][1]] == place[groups[k][0]] + 1 for k in kept)
    if not groups:
        assert order == list(range(count))
    # Each group that is given up would wait for itself: a way leads from it back to it, by groups and what they need.
    assert sorted([*kept, *cycles]) == list(range(len(groups)))
    group_of = {node: group for group in groups for node in group}
    for given_up, cycle in cycles.items():
        assert cycle[0][0] in groups[given_up]
        assert cycle[-1][1] in groups[given_up]
        assert all(before in waits[node] for node, before in cycle)
        assert all(node in group_of.get(there, (there,)) for (_, there), (node, _) in itertools.pairwise(cycle))
    # One group by itself is given up only if something has to run between.
    if len(groups) == 1 and not kept:
        first, second = groups[0]
        reached = {first}
        for node in range(first + 1, second):
            if reached.intersection(waits[node]):
                reached.add(node)
        assert any(one in reached and one != first for one in waits[second])
