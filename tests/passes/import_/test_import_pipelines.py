"""mpmd-infer-mesh-pipeline and mpmd-import-pipeline, and how the import of the reference makes passes."""

from __future__ import annotations

import pytest

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.named_pipelines import InferMeshPipeline
from mpmd_trace.passes.pipelines import reference_pipeline
from mpmd_trace.passes.request import PartitionRequest


def test_transfers_imply_reductions() -> None:
    (convert,) = (
        p for p in InferMeshPipeline(infer_transfers=True).passes() if p.name == "mpmd-infer-mesh-convert-reduce-ops"
    )
    assert convert.spec == (
        "mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true keep-initial-value=true}"
    )


def test_the_constraints_of_inference() -> None:
    options = CompileOptions(placement="reference")
    request = PartitionRequest("f", TopologyAttr.get({}), options=options, same_mesh=(SameMesh(0, 1), SameMesh(1, 0)))
    specs = [p.spec for p in next(reference_pipeline(request))]
    assert "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:1,1:0}" in specs


def test_wrong_options_are_noticed_when_the_pipeline_is_made() -> None:
    with pytest.raises(MpmdError, match="NAME@MESH"):
        run_passes(parse(""), "mpmd-import-pipeline{name-to-mesh-assignment=f}")
    with pytest.raises(MpmdError, match="INPUT:OUTPUT"):
        run_passes(parse(""), "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0}")
