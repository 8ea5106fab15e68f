"""mpmd-infer-mesh-pipeline and mpmd-import-pipeline.  `examples/*.mlir` hold a program before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from import_programs import check

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.ir.text import parse
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.import_.assignments import NameAssignment, SameMesh
from mpmd_trace.passes.manager import run_passes
from mpmd_trace.passes.pipelines import reference_pipeline
from mpmd_trace.passes.request import PartitionRequest
from mpmd_trace.passes.text_pipelines import ImportPipeline, InferMeshPipeline
from util import check as check_with


def named(name: str, mesh: str, stage: int | None = None) -> NameAssignment:
    return NameAssignment(name, Assignment(mesh, stage))


def example(name: str) -> tuple[str, str]:
    text = Path(__file__).with_name("examples").joinpath(f"{name}.mlir").read_text()
    before, _, after = text.partition("// =>\n")
    return before, after


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("after_a_fragment", ""),
        ("callee_on_two_meshes", ""),
        ("reduction_over_meshes", "{infer-transfers=true}"),
        ("reduction_over_meshes", "{infer-cross-mesh-reductions=true infer-transfers=true}"),
    ],
)
def test_infer_mesh_examples(name: str, options: str) -> None:
    before, after = example(name)
    check(before, f"mpmd-infer-mesh-pipeline{options}", after)


def test_import_example() -> None:
    before, after = example("whole_import")
    spec = "mpmd-import-pipeline{name-to-mesh-assignment=first@m1,second@m2}"
    check_with(before, spec, after, "")


def test_transfers_imply_reductions() -> None:
    (convert,) = (
        p for p in InferMeshPipeline(infer_transfers=True).passes() if p.name == "mpmd-infer-mesh-convert-reduce-ops"
    )
    assert convert.spec == (
        "mpmd-infer-mesh-convert-reduce-ops{infer-cross-mesh-reductions=true keep-initial-value=true}"
    )


def imported(*, same_mesh: tuple[SameMesh, ...] = (), **options: Any) -> list[Pass]:
    """The passes of the first phase."""
    chosen = CompileOptions(placement="reference", **options)
    return next(reference_pipeline(PartitionRequest("f", TopologyAttr.get({}), options=chosen, same_mesh=same_mesh)))


def test_the_constraints_of_inference() -> None:
    specs = [p.spec for p in imported(same_mesh=(SameMesh(0, 1), SameMesh(1, 0)))]
    assert "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0:1,1:0}" in specs


def test_wrong_options_are_noticed_when_the_pipeline_is_made() -> None:
    with pytest.raises(MpmdError, match="NAME@MESH"):
        run_passes(parse(""), "mpmd-import-pipeline{name-to-mesh-assignment=f}")
    with pytest.raises(MpmdError, match="INPUT:OUTPUT"):
        run_passes(parse(""), "mpmd-infer-mesh-assign-using-input-output-constraints{constraints=0}")


def test_a_pipeline_is_a_pass() -> None:
    before, after = example("whole_import")
    module = run_passes(parse(before), [ImportPipeline((named("first", "m1"), named("second", "m2")))])
    assert str(module) == str(parse(after))
