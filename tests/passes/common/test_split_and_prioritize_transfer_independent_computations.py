"""`mpmd-split-and-prioritize-transfer-independent-computations`."""

from __future__ import annotations

from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, run

PASS = "mpmd-split-and-prioritize-transfer-independent-computations"
CLEAN = "canonicalize,mpmd-fragment-dedup,mpmd-fragment-dce"


def program(body: str, operands: str = "%0, %p", returned: str = "%1#0, %1#1") -> str:
    return f"""
func.func @main(%p: !A, %q: !B) -> (!A, !A) attributes {{topology = #topo}} {{
  %0 = mpmd.transfer %q : (!B) -> !A
  %8 = mpmd.transfer %p : (!A) -> !B
  %9 = mpmd.transfer %8 : (!B) -> !A
  %1:2 = mpmd.fragment<mesh="alpha", origin=["f"]> ({operands}) (%x: tensor<4xf32>, %y: tensor<4xf32>) {{
{body}
  }} : (!A, !A) -> (!A, !A)
  return {returned} : !A, !A
}}
"""


PLAIN = """
    %s = stablehlo.negate %y : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
"""


def split(text: str) -> list[FragmentOp]:
    before = parse(PRELUDE + text)
    after = before.clone()
    run_passes(after, PASS)
    assert_same_meaning(before, after)
    return [op for op in after.main.body if isinstance(op, FragmentOp)]


def test_when_there_is_something_to_split() -> None:
    assert len(split(program(PLAIN))) == 2
    assert len(split(program(PLAIN, "%p, %p"))) == 1
    assert len(split(program(PLAIN, "%0, %9"))) == 1
    marked = program(PLAIN).replace("(%0, %p)", "(%0, %p) {split_drop_transferred}")
    assert len(split(marked)) == 1


def test_no_split_when_everything_needs_the_transfer() -> None:
    body = """
    %s = stablehlo.add %y, %x : tensor<4xf32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    mpmd.return %u, %s : tensor<4xf32>, tensor<4xf32>
    """
    assert len(split(program(body))) == 1


def test_an_unused_transferred_argument_leaves_an_empty_second_part() -> None:
    first, second = split(program(PLAIN.replace("%s, %x", "%s, %y")))
    assert [op.name for op in first.body.block] == ["stablehlo.negate", "stablehlo.multiply", "mpmd.return"]
    assert [op.name for op in second.body.block] == ["mpmd.return"]
    assert not second.results


WHILE = """
    %d = stablehlo.negate {operand} : tensor<4xf32>
    %w = stablehlo.while(%i = %y) : tensor<4xf32> cond {{
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %n = stablehlo.add %i, {captured} : tensor<4xf32>
      stablehlo.return %n : tensor<4xf32>
    }}
    %u = stablehlo.multiply %d, %x : tensor<4xf32>
    mpmd.return %u, %w : tensor<4xf32>, tensor<4xf32>
"""


def test_capturing_a_transferred_argument_does_not_count() -> None:
    first, _ = split(program(WHILE.format(operand="%y", captured="%x")))
    assert "stablehlo.while" in [op.name for op in first.body.block]


def test_capturing_what_is_computed_from_it_does() -> None:
    # In the reference the while would stay in the first part, which does not have the captured value.
    text = program(
        WHILE.format(operand="%x", captured="%d").replace("%u = stablehlo.multiply %d, %x", "%u = stablehlo.abs %y")
    )
    _, second = split(text)
    assert [op.name for op in second.body.block] == ["stablehlo.negate", "stablehlo.while", "mpmd.return"]


def test_cleaning_up_leaves_no_transferred_operand_on_the_first_part() -> None:
    module = run(program(PLAIN), f"{PASS},{CLEAN}")
    first, second = (op for op in module.main.body if isinstance(op, FragmentOp))
    assert first.operands == [module.main.args[0]]
    assert any(v.defining_op.name == "mpmd.transfer" for v in second.operands if v.defining_op)
