"""Which mesh tensor types and shardings are valid on a mesh: its axes, once each, and sizes that they divide."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from mpmd_trace.ir.attributes import Axis, MeshAttr, TensorShardingAttr, TopologyAttr
from mpmd_trace.ir.types import MeshTensorType, TensorType


@functools.lru_cache(maxsize=100_000)
def mesh_tensor_problem(type: MeshTensorType, topology: TopologyAttr) -> str | None:
    """Why values of this type cannot exist in a program with this topology."""
    mesh = topology.meshes.get(type.mesh)
    if mesh is None:
        return no_mesh(type.mesh, topology)
    return None if type.sharding is None else sharding_problem(type.sharding, type.tensor, mesh)


def no_mesh(name: str, topology: TopologyAttr) -> str:
    """That the topology has no such mesh."""
    known = " and ".join(f'"{mesh}"' for mesh in topology.meshes)
    return f'the topology has no mesh "{name}"; it has {known}'


def sharding_problem(sharding: TensorShardingAttr, tensor: TensorType, mesh: MeshAttr) -> str | None:
    """Why a tensor cannot be sharded like that on the mesh."""
    shape = tensor.shape
    if shape is None or len(sharding.dims) != len(shape):
        rank = "no" if shape is None else str(len(shape))
        return f"the sharding {sharding.stripped} has {len(sharding.dims)} dimensions, {tensor} has {rank}"
    for i, dim in enumerate(sharding.dims):
        if not sharding.dim_axes(i) and not sharding.is_open(i) and not dim.endswith("}"):
            return f"dimension {i} is closed and has no axis, so it cannot have a priority"
    lists = [sharding.dim_axes(i) for i in range(len(shape))]
    problem = _axes_problem([*lists, sharding.replicated, sharding.unreduced], mesh)
    if problem is not None:
        return problem
    sizes = dict(mesh.axes)
    order = {name: i for i, (name, _) in enumerate(mesh.axes)}
    for what, axes in (("replicated", sharding.replicated), ("unreduced", sharding.unreduced)):
        keys = [(order[a.name], a.pre_size or 1) for a in axes]
        if keys != sorted(keys):
            return f"the {what} axes are not in the order of the mesh {mesh.body}"
    for i, (size, axes) in enumerate(zip(shape, lists, strict=True)):
        parts = math.prod(sizes[axis.name] if axis.size is None else axis.size for axis in axes)
        if size >= 0 and size % parts:
            return f"dimension {i} of size {size} is not divisible by {parts}, the size of its axes"
    return None


def _axes_problem(lists: Sequence[Sequence[Axis]], mesh: MeshAttr) -> str | None:
    sizes = dict(mesh.axes)
    used: dict[str, list[Axis]] = {}
    for axes in lists:
        for before, axis in zip([None, *axes], axes, strict=False):
            size = sizes.get(axis.name)
            if size is None:
                return f"the mesh {mesh.body} has no axis {axis.text}"
            if axis.size is not None and axis.pre_size is not None:
                if axis.pre_size < 1 or axis.size < 2:
                    return f"the sub-axis {axis.text} needs a pre-size of at least 1 and a size of at least 2"
                if axis.size == size:
                    return f"the sub-axis {axis.text} is the whole axis"
                if size % (axis.pre_size * axis.size):
                    return f"the sub-axis {axis.text} does not divide the axis, which has size {size}"
            for other in used.get(axis.name, ()):
                if _overlap(axis, other):
                    return f"the axes {other.text} and {axis.text} overlap; an axis can be used once"
            if before is not None and _mergeable(before, axis):
                return f"the neighbours {before.text} and {axis.text} must be written as one"
            used.setdefault(axis.name, []).append(axis)
    return None


def _overlap(a: Axis, b: Axis) -> bool:
    if a.size is None or b.size is None or a.pre_size is None or b.pre_size is None:
        return True
    return a.pre_size < b.pre_size * b.size and b.pre_size < a.pre_size * a.size


def _mergeable(a: Axis, b: Axis) -> bool:
    return a.name == b.name and a.size is not None and a.pre_size is not None and a.pre_size * a.size == b.pre_size
