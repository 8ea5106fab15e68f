"""Bytes that a device sends in a piece of a program, and the work of fragments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from jax.sharding import Mesh

from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.flops import counted, flops
from mpmd_trace.ir.ops import FragmentOp, Module
from mpmd_trace.ir.shardings import bit_width, mesh_symbols
from mpmd_trace.ir.types import TensorType
from mpmd_trace.jax_compat.collective_overlap import HiddenShare, hidden_shares
from mpmd_trace.passes.fragment_info import is_forward
from mpmd_trace.passes.programs.blocks import Work

if TYPE_CHECKING:
    from mpmd_trace.config import Config

#: How many devices a group of a collective has, where the groups are listed.
_MEMBERS = re.compile(r"tensor<\d+x(\d+)xi64>")
#: The mesh and the axes over which a group goes, as the newest JAX writes it; of an axis also the size of its part.
_GROUP_AXES = re.compile(r"replica_group_mesh_axes<mesh = @(\"?)([^\s,\"]+)\1, axes = \[(.*)\]>")
_AXIS = re.compile(r'axis_ref<name = "([^"]*)"(?:[^>]*?\bsize = (\d+)[^>]*>)?')


#: What XLA hides of the collectives of each mesh, by kind; of meshes and kinds that are not listed nothing.
Hiding: TypeAlias = "Mapping[str, Mapping[str, HiddenShare]]"


def hiding_of(config: Config) -> Hiding:
    """Return what XLA hides on the meshes of a configuration; not of those of whose devices that is not known."""
    with_options = config.options.overlap is not None
    meshes = {name: mesh for name, mesh in config.topology.items() if isinstance(mesh, Mesh)}
    known = {name: hidden_shares([*mesh.devices.flat], with_options=with_options) for name, mesh in meshes.items()}
    return {name: shares for name, shares in known.items() if shares is not None}


def collective_bytes(body: Region, module: Module | None = None, parts: Mapping[str, float] | None = None) -> float:
    """Return the bytes that a device sends in one run of a body, in the collectives that the program writes out.

    Those are the ones inside of `shard_map`.  What XLA adds for shardings is not known before it compiles the body.
    Of the kinds in `parts` only such a part counts.
    """
    meshes = {} if module is None else mesh_symbols(module)
    axes = tuple((name, meshes[name].axes) for name in sorted(meshes))
    return counted(body, module, _Sent(axes, tuple(sorted((parts or {}).items()))))


def exposed_bytes(op: FragmentOp, module: Module, hiding: Hiding) -> tuple[float, float]:
    """Return the bytes that a device sends in a fragment while it computes nothing, by itself and in a pair."""
    hidden = {kind: one.of(is_forward(op)) for kind, one in hiding.get(op.mesh, {}).items()}
    apart, together = (
        collective_bytes(op.body, module, {kind: 1 - shares[i] for kind, shares in hidden.items()}) for i in range(2)
    )
    return apart, together


@dataclass(frozen=True)
class _Sent:
    """Tells the bytes that a device sends in an op: all but its own part, and twice as much where sums come back.

    `meshes` are those of the module, with their axes, by name; `parts` says what counts of some kinds of collectives.
    """

    meshes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    parts: tuple[tuple[str, float], ...] = ()

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
        size *= dict(self.parts).get(op.name.removeprefix("stablehlo.").replace("_", "-"), 1.0)
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
    flops_per_second: float | None = None, bytes_per_second: float | None = None, hiding: Hiding | None = None
) -> Callable[[FragmentOp, Module], Work]:
    """Return what tells the work of a fragment on devices of that speed, whose links to each other have that speed.

    Without speeds, what a device computes is counted, and nothing is sent.  `hiding`: what XLA hides of that.
    """

    def work(op: FragmentOp, module: Module) -> Work:
        topology = module.main.topology
        devices = 1 if topology is None else topology.meshes[op.mesh].size
        compute = flops(op.body, module) / devices / (flops_per_second or 1.0)
        if not bytes_per_second:
            return Work(compute)
        apart, together = exposed_bytes(op, module, hiding or {})
        return Work(compute, (apart - together) / bytes_per_second, together / bytes_per_second)

    return work
