"""Microbatches share bodies: the number of different ones does not depend on that of microbatches."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mpmd_trace.ir.ops import FragmentOp
from util import run


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "common_passes.py"
    spec = importlib.util.spec_from_file_location("common_passes_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()
PIPELINES = (
    "",
    "mpmd-fragment-dedup,mpmd-fragment-dce",
    "mpmd-split-bwd-fragments{split-first-stage=true},mpmd-fragment-dedup,mpmd-fragment-dce",
    "mpmd-split-and-prioritize-transfer-independent-computations,mpmd-fragment-dce",
    "mpmd-copy-constants,mpmd-merge-transfers,mpmd-fragment-dce",
    "mpmd-merge-inferred-fragments,mpmd-merge-inferred-fragments{merge-sideways=true}",
    "mpmd-merge-user-fragments-into-scheduling-units,mpmd-merge-forward-with-backward,mpmd-fragment-dce",
    "mpmd-merge-backward-with-forward,mpmd-fragment-dce",
)


def bodies(pipeline: str, microbatches: int) -> tuple[int, int]:
    """The numbers of fragments and of different bodies in main."""
    text = BENCHMARK.program(BENCHMARK.Size(3, microbatches, 6))
    module = run(text, "mpmd-call-inline" + (f",{pipeline}" if pipeline else ""), "")
    found = [op for op in module.main.body if isinstance(op, FragmentOp)]
    return len(found), len({id(op.body) for op in found})


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_bodies_do_not_multiply_with_microbatches(pipeline: str) -> None:
    few_fragments, few_bodies = bodies(pipeline, 6)
    many_fragments, many_bodies = bodies(pipeline, 12)
    assert many_fragments > few_fragments
    assert many_bodies == few_bodies
