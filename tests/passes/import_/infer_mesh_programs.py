"""Tests of mesh inference: a short spelling of mesh sets, the sequence of passes, random programs."""

from __future__ import annotations

import import_programs

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.ir.ops import Module
from util import spelled

T = "tensor<6x2xf32>"


def check(before: str, pipeline: str | list[str], after: str) -> Module:
    return import_programs.check(spelled(before), pipeline, spelled(after))


def run(before: str, pipeline: str | list[str]) -> Module:
    return import_programs.run(spelled(before), pipeline)


def diagnostics(before: str, pipeline: str) -> tuple[bool, list[Diagnostic]]:
    return import_programs.diagnostics(spelled(before), pipeline)


def sequence(
    *,
    infer_transfers: bool = True,
    infer_reductions: bool = True,
    constraints: str = "",
    max_clones: int = 1,
    until: str = "finalize",
) -> list[str]:
    """The passes of the infer-mesh pipeline, up to and with the one whose name ends in `until`."""
    flag = "true" if infer_transfers else "false"
    reductions = "true" if infer_reductions or infer_transfers else "false"
    steps = ["populate-use-set", "populate-src-set"]
    if constraints:
        steps.append(f"assign-using-input-output-constraints{{constraints={constraints}}}")
    steps.append(f"convert-reduce-ops{{infer-cross-mesh-reductions={reductions} keep-initial-value=true}}")
    if not infer_transfers:
        steps.append("validate-src-set-not-empty")
    steps += [f"assign-mesh-func-leaves{{infer-transfers={flag}}}", "populate-use-set"]
    if not infer_transfers:
        steps.append("validate-no-additional-transfers-needed")
    steps += [f"rewrite-using-analysis{{max-clones={max_clones}}}", f"finalize{{infer-transfers={flag}}}"]
    passes = []
    for step in steps:
        passes.append(f"mpmd-infer-mesh-{step}")
        if step.partition("{")[0] == until:
            return passes
    raise ValueError(until)


def mesh(name: str) -> str:
    return f'!mpmd.mesh_tensor<"{name}", {T}>'
