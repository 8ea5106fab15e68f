"""Modules that jaxlib's C++ partitioner made run too, and compute what the traced program says."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from mpmd_trace.backend.load import load
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.cpp_engine import available, partition_with_cpp
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace_devtools.comparison import assert_same_meaning
from mpmd_trace_devtools.interpreter import interpret, random_args
from pipelines import mesh

HERE = Path(__file__).parent


def check(text: str) -> None:
    traced = parse((HERE / "data" / "mlp_traced.mlir").read_text())
    module = parse(text)
    assert_same_meaning(traced, module, rtol=1e-5)
    program = load(module, {"m0": mesh(0, (2,), "x"), "m1": mesh(4, (2,), "x")})
    assert len(program.plan.runs) > 4 and len(program.plan.transfers) == 4
    assert program.plan.donated == frozenset(range(8))
    assert any(run.donated for run in program.plan.runs)
    args = random_args(traced)
    arrays = [jax.device_put(a, s) for a, s in zip(args, program.input_shardings, strict=True)]
    for found, expected in zip(program(*arrays), interpret(traced, args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert all(a.is_deleted() for a in arrays[:8])


def test_a_saved_module() -> None:
    check((HERE / "data" / "mlp_partitioned.mlir").read_text())


@pytest.mark.skipif(not available(), reason="this jaxlib has no partitioner")
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_a_fresh_module(schedule: str) -> None:
    parameters = [f"m{i // 4}" for i in range(8)]
    request = PartitionRequest.of(
        "main",
        [("m0", [("x", 2)]), ("m1", [("x", 2)])],
        {"stage0": ("m0", 0), "stage1": ("m1", 1)},
        [*parameters, None, None],
        [*parameters, None],
        range(8),
        partitioning_options={
            "mpmd_infer_transfers": True,
            "mpmd_infer_cross_mesh_reductions": True,
            "mpmd_pipeline_schedule": schedule,
        },
    )
    check(partition_with_cpp((HERE / "data" / "mlp_traced.mlir").read_text(), request).as_text())
