"""`mpmd-merge-blocks`."""

from __future__ import annotations

from fragment_texts import frag, function
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.fragment_info import BLOCK, is_backward, merged_parts
from mpmd_trace.passes.programs.blocks import Work
from mpmd_trace.passes.programs.merge_blocks import APART, MergeBlocks
from mpmd_trace.passes.programs.overlap_microbatches import OverlapMicrobatches
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE


def part(mesh: str, block: int, kind: str, microbatch: int, operand: str, stage: int = 0) -> str:
    """A fragment that is marked as of a block; of no block if this is negative."""
    mark = f', mpmd.block = [{block} : ui32, "{kind}"]' if block >= 0 else ""
    origin = '"f"' if kind == "F" else '"f"(1)'
    return frag(mesh, origin, operand, attrs=f"{{call_counter = {microbatch} : ui32{mark}}}", stage=f", stage={stage}")


def there(value: str) -> str:
    return f"mpmd.transfer {value} : (!A) -> !B"


def back(value: str) -> str:
    return f"mpmd.transfer {value} : (!B) -> !A"


def merged(ops: list[str], results: str, types: str, pass_: MergeBlocks | None = None) -> tuple[Module, list[str]]:
    """The module, of which no pairs are made besides, and what is warned of."""
    body = "\n".join(f"  %{i} = {op}" for i, op in enumerate(ops))
    before = parse(PRELUDE + function(body, results, types))
    after, diagnostics = before.clone(), Diagnostics()
    (pass_ or MergeBlocks()).run(after, diagnostics)
    parse(after.to_generic())
    assert_same_meaning(before, after)
    OverlapMicrobatches().run(after, diagnostics)
    assert not any(BLOCK in op.attrs for op in after.main.body)
    return after, [one.message for one in diagnostics]


def parts(module: Module) -> list[str]:
    """What each fragment was merged from."""
    fragments = [op for op in module.main.body if isinstance(op, FragmentOp)]
    return [" ".join(f"{p.stage}{p.kind}{p.microbatch}" for p in merged_parts(op)) for op in fragments]


def test_three_parts_of_several_stages() -> None:
    """What they need moves in front of them, what needs them behind them; a neighbor that is of no block stays."""
    ops = [
        part("alpha", -1, "F", 3, "%p"),
        part("alpha", 5, "F", 4, "%p"),
        there("%1"),
        back("%q"),
        part("alpha", 5, "I", 1, "%3", stage=1),
        part("alpha", 5, "W", 0, "%p"),
        part("alpha", -1, "B", 2, "%p"),
    ]
    module, warned = merged(ops, "%0, %2, %4, %5, %6", "!A, !B, !A, !A, !A")
    assert parts(module) == ["", "0F4 1I1 0W0", ""]
    names = [op.name.split(".")[1] for op in module.main.body]
    assert names == ["fragment", "transfer", "fragment", "transfer", "fragment", "return"]
    assert not warned


def test_a_part_that_waits_for_another_one_by_way_of_another_mesh() -> None:
    ops = [
        part("alpha", 0, "F", 4, "%p"),
        there("%0"),
        part("beta", -1, "F", 4, "%1", stage=1),
        back("%2"),
        part("alpha", 0, "B", 1, "%3"),
    ]
    module, warned = merged(ops, "%4", "!A")
    assert parts(module) == ["", "", ""]
    assert warned == [
        f"{APART}: (0F4;0B1)OVERLAP_F_B on mesh 'alpha', since 0B1 waits for fragment [\"f\"] on mesh 'beta', stage 1, "
        "call_counter 4, which waits for 0F4"
    ]
    _, warned = merged([*ops[:2], back("%1"), part("alpha", 0, "B", 1, "%2")], "%3", "!A")
    assert warned == [
        f"{APART}: (0F4;0B1)OVERLAP_F_B on mesh 'alpha', since 0B1 waits for a transfer to another mesh and back, "
        "which waits for 0F4"
    ]


def test_one_warning_says_which_blocks_wait_for_themselves() -> None:
    ops = []
    for m in (1, 2):
        ops += [part("alpha", m, "F", m + 3, "%p"), there(f"%{5 * m - 5}")]
        ops += [part("beta", -1, "F", m + 3, f"%{5 * m - 4}", stage=1), back(f"%{5 * m - 3}")]
        ops += [part("alpha", m, "B", m, f"%{5 * m - 2}")]
    module, warned = merged(ops, "%4, %9", "!A, !A")
    assert not any(parts(module)) and len(warned) == 1
    assert warned[0].startswith(f"{APART}: (0F4;0B1)OVERLAP_F_B on mesh 'alpha', since 0B1 waits for fragment")
    assert warned[0].endswith("which waits for 0F4; nor are these: (0F5;0B2)OVERLAP_F_B on mesh 'alpha'")


def test_blocks_that_wait_for_each_other() -> None:
    """The first is given up, and the second kept; a third block, behind both, is kept, too."""
    ops = [
        part("alpha", 0, "F", 1, "%p"),
        there("%0"),
        part("beta", 1, "B", 2, "%q", stage=1),
        part("beta", 1, "F", 1, "%1", stage=1),
        back("%2"),
        part("alpha", 0, "B", 2, "%4"),
        there("%5"),
        part("beta", 2, "F", 3, "%6", stage=1),
        part("beta", 2, "B", 3, "%3", stage=1),
    ]
    module, warned = merged(ops, "%7, %8", "!B, !B")
    assert sorted(filter(None, parts(module))) == ["1B2 1F1", "1F3 1B3"]
    assert warned == [
        f"{APART}: (0F1;0B2)OVERLAP_F_B on mesh 'alpha', since it and (1B2;1F1)OVERLAP_B_F on mesh 'beta' would wait "
        "for each other"
    ]


def test_a_block_behind_others_that_wait_for_each_other_is_kept() -> None:
    """Although its first part comes before them."""
    ops = [
        part("alpha", 0, "F", 9, "%p"),
        part("beta", 1, "F", 1, "%q", stage=1),
        back("%1"),
        there("%2"),
        part("beta", 1, "B", 2, "%3", stage=1),
        back("%4"),
        part("alpha", 0, "B", 2, "%5"),
    ]
    module, warned = merged(ops, "%0, %6", "!A, !A")
    assert sorted(filter(None, parts(module))) == ["0F9 0B2"]
    assert [text.split(",")[0] for text in warned] == [f"{APART}: (1F1;1B2)OVERLAP_F_B on mesh 'beta'"]


def test_only_if_the_step_becomes_shorter() -> None:
    ops = [part("alpha", 0, "F", 1, "%p"), part("alpha", 0, "B", 0, "%p")]
    for collectives, count in ((0.0, 2), (0.01, 2), (0.5, 1)):  # less than a hundredth is not worth it

        def work(op: FragmentOp, module: Module, sent: float = collectives) -> Work:
            return Work(2.0 if is_backward(op) else 1.0, sent)

        module, warned = merged(ops, "%0, %1", "!A, !A", MergeBlocks(always=False, work=work))
        assert len(parts(module)) == count
        assert not warned


def test_a_part_whose_others_are_gone_is_no_block() -> None:
    module, warned = merged([part("alpha", 0, "F", 1, "%p")], "%0", "!A")
    assert parts(module) == [""]
    assert not warned
