"""`mpmd-split-bwd-fragments`."""

from __future__ import annotations

from collections import Counter

import pytest
from transformer_stage import MATRICES as MATRICES_OF_A_BLOCK
from transformer_stage import backward_stage

from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning
from util import PRELUDE, run

PASS = "mpmd-split-bwd-fragments"


def program(body: str, origin: str = '"f"(1)', attrs: str = "", sent: str = "0", results: int = 2) -> str:
    """A fragment of two arguments; the results numbered in `sent` are transferred."""
    types = ", ".join(["!A"] * results)
    lines = "\n".join(f"  %t{i} = mpmd.transfer %0#{i} : (!A) -> !B" for i in sent)
    returned = ", ".join(f"%t{i}" if str(i) in sent else f"%0#{i}" for i in range(results))
    out = ", ".join("!B" if str(i) in sent else "!A" for i in range(results))
    return f"""
func.func @main(%p: !A, %q: !A, %r: !B) -> ({out}) attributes {{topology = #topo}} {{
  %0:{results} = mpmd.fragment<mesh="alpha", origin=[{origin}]> (%p, %q) {attrs} (%x: !L, %y: !L) {{
{body}
  }} : (!A, !A) -> ({types})
{lines}
  %unused = mpmd.transfer %r : (!B) -> !A
  return {returned} : {out}
}}
"""


PLAIN = """
    %a = stablehlo.negate %x : !L
    %b = stablehlo.multiply %a, %y : !L
    mpmd.return %a, %b : !L, !L
"""
LOCAL = "!L = tensor<4xf32>\n" + PRELUDE


def parts(text: str, pipeline: str = PASS) -> list[FragmentOp]:
    return [op for op in run(text, pipeline, LOCAL).main.body if isinstance(op, FragmentOp)]


def test_only_unmarked_backward_fragments_with_both_kinds_of_results_are_split() -> None:
    assert len(parts(program(PLAIN))) == 2
    assert len(parts(program(PLAIN, '"f"(1), "g"(1)'))) == 2
    for origin in ('"f"', '"f"(2)', '"f", "g"(1)', ""):
        assert len(parts(program(PLAIN, origin))) == 1
    for attrs in ("{split_keep_transferred}", "{split_drop_transferred}"):
        assert len(parts(program(PLAIN, attrs=attrs))) == 1
    assert len(parts(program(PLAIN, sent="01"))) == 1
    assert len(parts(program(PLAIN, sent=""))) == 1


def test_microbatches_share_both_parts() -> None:
    text = program(PLAIN).replace("@main", "private @step")
    calls = "\n".join(f"%{i}:2 = mpmd.call @step(%p, %q, %r) : (!A, !A, !B) -> (!B, !A)" for i in range(4))
    main = (
        "func.func @main(%p: !A, %q: !A, %r: !B) -> (!B, !A) attributes {topology = #topo} {"
        f"{calls}\n return %3#0, %3#1 : !B, !A }}"
    )
    module = run(main + text, f"mpmd-call-inline,{PASS}", LOCAL)
    assert len({id(op.body) for op in module.main.body if isinstance(op, FragmentOp)}) == 2
    assert len([op for op in module.main.body if isinstance(op, FragmentOp)]) == 8


CLEAN = "mpmd-fragment-dedup,mpmd-fragment-dce"


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("first_stage", [False, True])
def test_weight_gradients_of_a_transformer_depend_on_nothing_transferred(blocks: int, first_stage: bool) -> None:
    stage = backward_stage(blocks, first_stage=first_stage)
    module = stage.module.clone()
    run_passes(module, f"{PASS}{{split-first-stage=true}},{CLEAN}")
    assert_same_meaning(stage.module, module)
    first, second = (op for op in module.main.body if isinstance(op, FragmentOp))
    assert all(v.defining_op is first for v in second.operands)
    assert not any(isinstance(user, TransferOp) for user in second.users)
    assert not any(user is second for r in second.results for user in r.users)
    assert len(second.results) == stage.parameters
    products = Counter(op.name for op in second.body.block)
    # One product per weight matrix and nothing else that is big: all of the chain is in the first part.
    assert products["stablehlo.dot_general"] == MATRICES_OF_A_BLOCK * blocks
    elementwise = {"stablehlo.exponential", "stablehlo.divide", "stablehlo.tanh", "stablehlo.select"}
    assert not elementwise & set(products)


def test_forwarding_arguments_afterwards_adds_no_transfer_that_the_first_part_does_not_need() -> None:
    stage = backward_stage(1)
    module = stage.module
    run_passes(module, f"{PASS},{CLEAN},canonicalize,mpmd-fragment-dce")
    first, second = (op for op in module.main.body if isinstance(op, FragmentOp))
    received = {v for v in second.operands if isinstance(v.defining_op, TransferOp)}
    assert received <= set(first.operands)
