"""`mpmd-split-bwd-fragments`."""

from __future__ import annotations

from collections import Counter

import pytest
from transformer_stage import MATRICES as MATRICES_OF_A_BLOCK
from transformer_stage import backward_stage

from mpmd_trace.ir.ops import FragmentOp, TransferOp
from mpmd_trace.passes.manager import run_passes
from mpmd_trace_devtools.comparison import assert_same_meaning

PASS = "mpmd-split-bwd-fragments"


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
