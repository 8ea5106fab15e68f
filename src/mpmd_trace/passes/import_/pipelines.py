"""The pipelines that put a traced program on meshes.

Source: sections 20 and 21 of the import specification.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mpmd_trace.passes.base import Pass, Pipeline, option
from mpmd_trace.passes.import_.assignments import parse_constraints, parse_index_assignment, parse_name_assignment
from mpmd_trace.passes.import_.clean_up import CanonicalizeUnrolled, CleanUp
from mpmd_trace.passes.registry import build

__all__ = ["ImportPipeline", "InferMeshPipeline"]


def _flag(value: bool) -> str:
    return "true" if value else "false"


@dataclasses.dataclass(frozen=True)
class InferMeshPipeline(Pipeline):
    """Every value lives on a mesh and every computation is in a fragment.

        func.func @main(%a: T) -> T {                       func.func @main(%a: T on m1) -> T on m1 {
          %0 = add %a, %a                                     %0 = mpmd.fragment<mesh="m1", ..> (%a) {
          %1 = mpmd.assign %0 : m1                     =>       add, then the body of s }
          %2 = mpmd.fragment<mesh="m1", origin=["s"]> ..      return %0
          %3 = mpmd.unassign %2 ; return %3                 }
        }
    """

    name: ClassVar[str] = "mpmd-infer-mesh-pipeline"
    summary: ClassVar[str] = "find a mesh for everything that the user did not assign"

    infer_transfers: bool = option(False, "add transfers wherever a value is needed on another mesh")
    infer_cross_mesh_reductions: bool = option(
        False, "turn reductions of values on several meshes into reductions per mesh and transfers"
    )
    #: The driver sets these; the text form does not have them.
    max_clones: int = 1
    error_limit: int = 5
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_constraints(self.constraints)

    def passes(self) -> list[Pass]:
        """The steps, in order."""
        transfers = _flag(self.infer_transfers)
        reductions = _flag(self.infer_transfers or self.infer_cross_mesh_reductions)
        limit = f"error-limit={self.error_limit}"
        steps = ["mpmd-infer-mesh-populate-use-set", "mpmd-infer-mesh-populate-src-set"]
        if self.constraints:
            verbose = _flag(self.error_limit == -1)
            steps.append(
                "mpmd-infer-mesh-assign-using-input-output-constraints"
                f"{{constraints={','.join(self.constraints)} verbose-logging={verbose}}}"
            )
        steps.append(
            "mpmd-infer-mesh-convert-reduce-ops"
            f"{{infer-cross-mesh-reductions={reductions} keep-initial-value=true}}"
        )
        if not self.infer_transfers:
            steps.append(f"mpmd-infer-mesh-validate-src-set-not-empty{{{limit}}}")
        steps += [
            f"mpmd-infer-mesh-assign-mesh-func-leaves{{infer-transfers={transfers} {limit}}}",
            "mpmd-infer-mesh-populate-use-set",
        ]
        if not self.infer_transfers:
            steps.append(f"mpmd-infer-mesh-validate-no-additional-transfers-needed{{{limit}}}")
        steps += [
            f"mpmd-infer-mesh-rewrite-using-analysis{{max-clones={self.max_clones}}}",
            f"mpmd-infer-mesh-finalize{{infer-transfers={transfers}}}",
        ]
        return build(steps)


@dataclasses.dataclass(frozen=True)
class ImportPipeline(Pipeline):
    """A traced program is fragments and transfers; calls are inlined; user fragments are scheduling units.

        %1 = mpmd.named_computation<"f"> (%w, %x) ..    =>   %1 = mpmd.fragment<mesh="m1", origin=["f"]> ..
        %2 = mpmd.named_computation<"g"> (%v, %1) ..         %2 = mpmd.transfer %1 : m1 -> m2
                                                             %3 = mpmd.fragment<mesh="m2", origin=["g"]> ..
    """

    name: ClassVar[str] = "mpmd-import-pipeline"
    summary: ClassVar[str] = "put a traced program on meshes"

    name_to_mesh_assignment: tuple[str, ...] = option(
        (), "meshes of names, as NAME@MESH[/STAGE],..."
    )
    merge_after_scheduling: bool = option(
        False, "merge inferred fragments after scheduling, not here"
    )
    enable_heterogeneous_meshes: bool = option(
        False, "the meshes differ: take sdy meshes from the topology"
    )
    #: The driver sets these; the text form does not have them.
    input_assignment: tuple[str, ...] = ()
    output_assignment: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    absorb_on_entry_point: bool = False
    infer_transfers: bool = False
    infer_cross_mesh_reductions: bool = False
    max_clones: int = 1
    error_limit: int = 5
    split_bwd_fragments: bool = False
    verify_schedule_units: bool = False

    def __post_init__(self) -> None:
        parse_name_assignment(self.name_to_mesh_assignment)
        parse_index_assignment(self.input_assignment)
        parse_index_assignment(self.output_assignment)
        parse_constraints(self.constraints)

    def passes(self) -> list[Pass]:
        """The steps, in order."""
        return [*self._named_program(), *self._on_meshes(), *self._units()]

    def _named_program(self) -> list[Pass]:
        """The steps before anything has a mesh."""
        steps: list[str | Pass] = [CleanUp(), "mpmd-copy-topology-from-main"]
        if self.enable_heterogeneous_meshes:
            steps.append("mpmd-generate-sdy-meshes-from-topology")
        steps += [
            "mpmd-unroll-for-loops",
            CanonicalizeUnrolled(),
            "stablehlo-target-independent-optimization"
            "{fold-op-element-limit=0 optimize-float=true assume-no-undeclared-side-effects=false}",
            "mpmd-from-unroll-to-call-counter",
            "mpmd-sink-negligible-ops-into-call-op",
            "mpmd-insert-nameless-clone-of-negligible-ops",
            "mpmd-simplify-named-computations",
        ]
        return build(steps)

    def _on_meshes(self) -> list[Pass]:
        """The steps that give everything a mesh."""
        from mpmd_trace.passes.import_.enforce_input_output_equisharding import EnforceInputOutputEquisharding
        from mpmd_trace.passes.import_.inline_nested_user_exposed_ops import InlineNestedUserExposedOps
        from mpmd_trace.passes.import_.map_input_output_to_mesh import MapInputOutputToMesh
        from mpmd_trace.passes.import_.map_named_ops_to_mpmd_ops import MapNamedOpsToMpmdOps

        infer = InferMeshPipeline(
            self.infer_transfers,
            self.infer_cross_mesh_reductions,
            self.max_clones,
            self.error_limit,
            self.constraints,
        )
        steps: list[str | Pass] = [
            MapInputOutputToMesh(self.input_assignment, self.output_assignment),
            InlineNestedUserExposedOps(self.name_to_mesh_assignment),
            "mpmd-validate-named-ops-in-mpmd-func",
            MapNamedOpsToMpmdOps(self.name_to_mesh_assignment),
            "mpmd-introduce-transfers",
            "mpmd-erase-unused-callee-block-arguments",
            *infer.passes(),
        ]
        if not self.merge_after_scheduling:
            from mpmd_trace.passes.common.pipelines import merge_inferred

            steps += merge_inferred(absorb_on_entry_point_function=self.absorb_on_entry_point)
        steps.append(EnforceInputOutputEquisharding(self.constraints))
        return build(steps)

    def _units(self) -> list[Pass]:
        """The steps after which the user fragments are what a schedule orders."""
        from mpmd_trace.passes.common.pipelines import call_inlining, scheduling_preprocessing

        steps: list[str | Pass] = [
            "mpmd-fragment-dedup",
            "mpmd-fragment-dce",
            "mpmd-remove-transfer-cycles",
            *call_inlining(),
        ]
        if not self.merge_after_scheduling:
            steps.append("mpmd-merge-inferred-fragments")
        steps += scheduling_preprocessing(
            split_bwd=self.split_bwd_fragments, verify=self.verify_schedule_units
        )
        return build(steps)
