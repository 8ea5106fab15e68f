"""Phases of the pipelines under the names that text has for them: `mpmd-import-pipeline` and others."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.ir.attributes import TopologyAttr
from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.compile_options import CompileOptions
from mpmd_trace.passes.export.validate_no_backward_deps import ValidateNoBackwardDeps
from mpmd_trace.passes.export.validate_no_inferred_fragments import ValidateNoInferredFragments
from mpmd_trace.passes.export.validate_no_param_transfers import ValidateNoParamTransfers
from mpmd_trace.passes.export.validate_no_reshards import ValidateNoReshards
from mpmd_trace.passes.import_.assignments import NameAssignment
from mpmd_trace.passes.optimize.reference_schedules import SCHEDULES, Order
from mpmd_trace.passes.pipelines import infer_mesh, passes_of
from mpmd_trace.passes.request import PartitionRequest


def _phase(number: int, **fields: Any) -> list[Pass]:
    request = PartitionRequest("", TopologyAttr.get({}), **fields)
    return next(itertools.islice(passes_of(request), number, None))


@dataclasses.dataclass(frozen=True)
class InferMeshPipeline(Pipeline):
    """Assign every value to a mesh, and put every computation into a fragment.

    func.func @main(%a: T) -> T {                       func.func @main(%a: T on m1) -> T on m1 {
      %0 = add %a, %a                                     %0 = mpmd.fragment<mesh="m1", ..> (%a) {
      %1 = mpmd.assign %0 : m1                     =>       add, then the body of s }
      %2 = mpmd.fragment<mesh="m1", origin=["s"]> ..      return %0
      %3 = mpmd.unassign %2 ; return %3                 }
    }
    """

    name = "mpmd-infer-mesh-pipeline"
    summary = "find a mesh for everything that the user did not assign"

    infer_transfers: bool = option(False, "add transfers wherever a value is needed on another mesh")
    infer_cross_mesh_reductions: bool = option(
        False, "turn reductions of values on several meshes into reductions per mesh and transfers"
    )

    def passes(self) -> list[Pass]:
        return infer_mesh(
            CompileOptions(
                mpmd_infer_transfers=self.infer_transfers,
                mpmd_infer_cross_mesh_reductions=self.infer_cross_mesh_reductions,
            )
        )


@dataclasses.dataclass(frozen=True)
class ImportPipeline(Pipeline):
    """Turn a traced program into fragments and transfers, inline calls, and merge user fragments into units.

    %1 = mpmd.named_computation<"f"> (%w, %x) ..    =>   %1 = mpmd.fragment<mesh="m1", origin=["f"]> ..
    %2 = mpmd.named_computation<"g"> (%v, %1) ..         %2 = mpmd.transfer %1 : m1 -> m2
                                                         %3 = mpmd.fragment<mesh="m2", origin=["g"]> ..
    """

    name = "mpmd-import-pipeline"
    summary = "put a traced program on meshes"

    name_to_mesh_assignment: tuple[NameAssignment, ...] = option((), "meshes of names, as NAME@MESH[/STAGE],...")
    merge_after_scheduling: bool = option(False, "merge inferred fragments after scheduling, not here")
    enable_heterogeneous_meshes: bool = option(False, "the meshes differ: take sdy meshes from the topology")
    placement: Literal["reference", "cut"] = option(
        "reference", "where unnamed code goes: as the reference says, or where the fewest bytes move (cut)"
    )

    def passes(self) -> list[Pass]:
        return _phase(
            0,
            assignment=dict(self.name_to_mesh_assignment),
            heterogeneous=self.enable_heterogeneous_meshes,
            options=CompileOptions(
                mpmd_merge_inferred_after_scheduling=self.merge_after_scheduling, placement=self.placement
            ),
        )


_TEXT_SCHEDULES = ("none", "1F1B", "Circular")


@dataclasses.dataclass(frozen=True)
class OptimizePipeline(Pipeline):
    """Schedule fragments, check stages, and merge remaining inferred fragments."""

    name = "mpmd-optimize-pipeline"
    summary = "schedule fragments, recompute activations, merge the remaining fragments"
    merge_after_scheduling: bool = option(False, "merge inferred fragments after scheduling instead of during import")
    pipeline_schedule: Order = option(SCHEDULES["1F1B"], f"The schedule: {', '.join(_TEXT_SCHEDULES)}.")

    def passes(self) -> list[Pass]:
        """Return the passes, in order.  Raises `MpmdError` for a schedule that the textual form does not have."""
        if self.pipeline_schedule.name not in _TEXT_SCHEDULES:
            raise MpmdError(
                f"option mpmd-optimize-pipeline pipeline-schedule is one of {', '.join(_TEXT_SCHEDULES)}, "
                f"not '{self.pipeline_schedule}'; run mpmd-pipeline-scheduler for the others"
            )
        options = CompileOptions(
            mpmd_merge_inferred_after_scheduling=self.merge_after_scheduling, placement="reference"
        )
        return _phase(1, options=options, schedule=self.pipeline_schedule)


@dataclasses.dataclass(frozen=True)
class ShardingPropagationPipeline(Pipeline):
    """Propagate shardings of inputs, outputs and constraints to all values, and write them into types.

    A transfer never changes a sharding: fragments reshard.
    """

    name = "mpmd-sharding-propagation-pipeline"
    summary = "propagate shardings and put them into types"

    def passes(self) -> list[Pass]:
        return _phase(2, options=CompileOptions(placement="reference"))


@dataclasses.dataclass(frozen=True)
class ExportPipeline(Pipeline):
    """Replace fragments by calls of functions, with donation, memory kinds and layouts.

    Each distinct fragment is a function of the module that says on which mesh it runs, which arguments it may
    overwrite, where they are in memory, and how much memory others need.
    """

    name = "mpmd-export-pipeline"
    summary = "turn a partitioned program into fragment calls"

    fail_on_reshard_only_fragments: bool = option(False, "fail for fragments that only reshard")
    fail_on_backward_deps: bool = option(False, "fail when data of a forward program flows backward through the meshes")
    fail_on_inferred_fragments: bool = option(True, "fail for inferred fragments that should have been merged")
    fail_on_param_transfers: bool = option(False, "fail for parameters that are transferred")
    param_transfer_pattern: str = option("params['transformer", "text that the names of parameters contain")

    def passes(self) -> list[Pass]:
        checks: dict[type[Pass], Pass] = {
            ValidateNoParamTransfers: ValidateNoParamTransfers(
                self.fail_on_param_transfers, self.param_transfer_pattern
            ),
            ValidateNoInferredFragments: ValidateNoInferredFragments(self.fail_on_inferred_fragments),
            ValidateNoReshards: ValidateNoReshards(self.fail_on_reshard_only_fragments),
            ValidateNoBackwardDeps: ValidateNoBackwardDeps(self.fail_on_backward_deps),
        }
        steps = _phase(3, options=CompileOptions(placement="reference"))
        return [checks.get(type(step), step) for step in steps]
