"""A topology from one mesh, one axis of which is the pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.frontend.errors import mistake

__all__ = ["meshes_along"]


def meshes_along(mesh: Any, axis: str | None) -> dict[str, Mesh | AbstractMesh]:
    """Return the slices of `mesh` along `axis`, called `axis0`, `axis1` and so on; they have the other axes.

    Where there is no other axis, each slice keeps this one, with the size 1.

    Raises:
        FrontendError: for something that is not one mesh, or an axis that it does not have.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise mistake(
            f"stage_axis={axis!r} cuts one mesh into those of the pipeline, and the topology is {mesh!r}. Give a "
            "jax.sharding.Mesh, or leave stage_axis out."
        )
    names = list(mesh.axis_names)
    if axis is None or axis not in names:
        asked = "needs stage_axis, the axis along which stages lie" if axis is None else f"has no axis {axis!r}"
        raise mistake(
            f"a topology of one mesh {asked}; its axes are {', '.join(map(repr, names))}. For a pipeline of a single "
            "mesh, give the mesh a name: {'all': mesh}."
        )
    at = names.index(axis)
    others = tuple(name for name in names if name != axis)
    types = [kind for name, kind in zip(names, mesh.axis_types, strict=True) if name != axis or not others]
    result: dict[str, Mesh | AbstractMesh] = {}
    for i in range(mesh.shape[axis]):
        if isinstance(mesh, AbstractMesh):
            sizes = tuple(mesh.shape[name] for name in others)
            result[f"{axis}{i}"] = AbstractMesh(sizes or (1,), others or (axis,), axis_types=tuple(types))
        else:
            devices = np.take(mesh.devices, [i] if not others else i, axis=at)
            result[f"{axis}{i}"] = Mesh(devices, others or (axis,), axis_types=tuple(types))
    return result
