"""What a fragment computes and what it sends inside its mesh, for the choice of what to overlap."""

from __future__ import annotations

from collections.abc import Callable

from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.passes.programs.overlap_microbatches import Work
from mpmd_trace.scheduling.costs import collective_bytes, flops


def work_by_counts(
    flops_per_second: float | None = None, bytes_per_second: float | None = None
) -> Callable[[FragmentOp, Module], Work]:
    """Return what tells the work of a fragment on devices of that speed, whose links to each other have that speed.

    Without speeds, what a device computes is counted, and nothing is sent.
    """

    def work(op: FragmentOp, module: Module) -> Work:
        topology = module.main.topology
        devices = 1 if topology is None else topology.meshes[op.mesh].size
        sent = collective_bytes(op.body, module) / bytes_per_second if bytes_per_second else 0.0
        return Work(flops(op.body, module) / devices / (flops_per_second or 1.0), sent)

    return work
