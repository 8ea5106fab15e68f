"""What a pipeline schedule would order in a step: microbatches, if it has some."""

from __future__ import annotations

import collections

from mpmd_trace.ir.ops import FragmentOp, Module

__all__ = ["waiting_meshes", "without_microbatches"]


def waiting_meshes(module: Module) -> int:
    """Return how many meshes of a training step with microbatches wait for each other in program order; 0 for none.

    The module is that after the import phase.  Meshes that share devices are one.
    """
    counted = [op for op in module.main.body if isinstance(op, FragmentOp) and op.is_user and op.call_counter]
    owners = module.main.device_owners
    meshes = len({owners[op.mesh] for op in counted})
    trains = any(origin.transpose_count for op in counted for origin in op.origin)
    return meshes if trains and meshes > 1 else 0


def without_microbatches(module: Module, schedule: str) -> str | None:
    """Return what to say of a training step over several meshes, after the import phase, that has no microbatch."""
    named = [op for op in module.main.body if isinstance(op, FragmentOp) and op.is_user]
    meshes = len({op.mesh for op in named})
    trains = any(origin.transpose_count for op in named for origin in op.origin)
    if not trains or meshes < 2 or any(op.call_counter is not None for op in named):
        return None
    runs = collections.Counter(origin.name for op in named for origin in op.origin if origin.transpose_count == 0)
    most = max(runs, key=lambda name: runs[name], default=None)
    if most is not None and runs[most] > 1:
        return (
            f"the schedule '{schedule}' orders microbatches, but nothing says which computation is of which one: "
            f"'{most}' runs {runs[most]} times in the step. If these are microbatches, write "
            "mpmd_trace.call(fn, i)(...) in the loop instead of fn(...), or use mpmd_trace.enumerated_for; else leave "
            "pipeline_schedule out"
        )
    return (
        f"the schedule '{schedule}' orders microbatches, but the step has none: one mesh works at a time while the "
        f"others wait, {(meshes - 1) / meshes:.0%} of a step each if all have as much to do (with 8 microbatches and "
        f"1F1B {(meshes - 1) / (meshes + 7):.0%}). Take the gradients with "
        "mpmd_trace.value_and_grad(loss, microbatches=...), or in "
        "mpmd_trace.enumerated_for, or leave pipeline_schedule out"
    )
