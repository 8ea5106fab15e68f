"""The sharding propagation and export pipelines as a whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mpmd_trace.ir.ops import FragmentCallOp, TransferOp
from mpmd_trace.ir.text import parse
from mpmd_trace.ir.types import MeshTensorType
from mpmd_trace.passes.manager import PassManager, run_passes
from mpmd_trace.passes.named_pipelines import ExportPipeline, ShardingPropagationPipeline
from mpmd_trace_devtools.comparison import assert_same_meaning

sys.path.insert(0, str(Path(__file__).parent.parent / "sharding"))
from microbatched_programs import Step

BOTH = "mpmd-sharding-propagation-pipeline,mpmd-export-pipeline"


@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_exported_and_computes_the_same(seed: int) -> None:
    before = parse(Step(2, 3, seed, split=seed % 2 == 1).text())
    after = run_passes(before.clone(), BOTH)
    assert all(isinstance(op, FragmentCallOp | TransferOp) or op.name == "func.return" for op in after.main.body)
    for op in after.main.body:
        if isinstance(op, TransferOp):
            source, target = op.source_type.sharding, op.target_type.sharding
            assert (source and source.stripped) == (target and target.stripped)
    assert_same_meaning(before, after, rtol=1e-5)


def test_one_function_per_stage_and_direction() -> None:
    text = re.sub(r" \{sdy\.sharding = #sdy\.sharding<[^>]*>\}", "", Step(3, 6, 0).text())
    after = run_passes(parse(text), BOTH)
    names = [f.sym_name for f in after.functions[1:]]
    # Forward and backward per stage; the first backward has no accumulated gradient to read.
    assert len(names) == 3 * 3
    assert names[0].startswith("p0_s0_fwd")
    assert all(isinstance(t, MeshTensorType) and t.sharding is None for t in after.main.type.inputs)


def test_options_reach_the_passes() -> None:
    manager = PassManager(
        "mpmd-export-pipeline{fail-on-reshard-only-fragments=true fail-on-backward-deps=true "
        "fail-on-inferred-fragments=false fail-on-param-transfers=true param-transfer-pattern=w}"
    )
    specs = [p.spec for p in manager.passes]
    for wanted in (
        "mpmd-validate-no-param-transfers{fail-on-param-transfers=true param-pattern=w}",
        "mpmd-validate-no-inferred-fragments{fail-on-inferred-fragments=false}",
        "mpmd-validate-no-reshards{fail-on-reshard-only-fragments=true}",
        "mpmd-validate-no-backward-deps{fail-on-backward-deps=true}",
    ):
        assert wanted in specs


def test_a_pipeline_is_a_pass_itself() -> None:
    text = Step(1, 2, 1).text()
    whole = parse(text)
    PassManager([ShardingPropagationPipeline(), ExportPipeline()]).run(whole)
    assert str(whole) == str(run_passes(parse(text), BOTH))
