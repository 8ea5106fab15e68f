"""What a device sends in a piece of a program, and its work for those who weigh fragments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.shardings import bit_width, mesh_symbols
from mpmd_trace.ir.types import TensorType
from mpmd_trace.ir.work import counted, flops
from mpmd_trace.passes.programs.overlap_microbatches import Work

#: How many devices a group of a collective has, where the groups are listed.
_MEMBERS = re.compile(r"tensor<\d+x(\d+)xi64>")
#: The mesh and the axes over which a group goes, as the newest JAX writes it; of an axis also the size of its part.
_GROUP_AXES = re.compile(r"replica_group_mesh_axes<mesh = @(\"?)([^\s,\"]+)\1, axes = \[(.*)\]>")
_AXIS = re.compile(r'axis_ref<name = "([^"]*)"(?:[^>]*?\bsize = (\d+)[^>]*>)?')


def collective_bytes(body: Region, module: Module | None = None) -> float:
    """Return the bytes that a device sends in one run of a body, in the collectives that the program writes out.

    Those are the ones inside of `shard_map`.  What XLA adds for shardings is not known before it compiles the body.
    """
    meshes = {} if module is None else mesh_symbols(module)
    return counted(body, module, _Sent(tuple((name, meshes[name].axes) for name in sorted(meshes))))


@dataclass(frozen=True)
class _Sent:
    """Tells the bytes that a device sends in an op: all but its own part, and twice as much where sums come back.

    `meshes` are those of the module, with their axes, by name.
    """

    meshes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]

    def __call__(self, op: Op) -> float | None:
        values = {
            "stablehlo.all_gather": op.results,
            "stablehlo.all_to_all": op.results,
            "stablehlo.all_reduce": (*op.operands, *op.operands),
            "stablehlo.collective_permute": op.results,
            "stablehlo.reduce_scatter": op.operands,
        }.get(op.name)
        if values is None:
            return None if op.regions else 0.0
        tensors = [v.type for v in values if isinstance(v.type, TensorType) and v.type.is_ranked]
        size = sum(t.num_elements * bit_width(t.element) / 8 for t in tensors)
        groups = op.props.get("replica_groups")
        members = None if groups is None else self._members(groups.text)
        return size * (1 - 1 / members) if members else size

    def _members(self, groups: str) -> int | None:
        """Return how many devices a group has; None where that is unknown."""
        listed = _MEMBERS.search(groups)
        if listed is not None:
            return int(listed[1])
        over = _GROUP_AXES.search(groups)
        axes = None if over is None else dict(self.meshes).get(over[2])
        if over is None or axes is None:
            return None
        sizes = dict(axes)
        return math.prod(int(part) if part else sizes[name] for name, part in _AXIS.findall(over[3]))


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
