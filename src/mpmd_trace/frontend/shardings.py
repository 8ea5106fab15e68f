"""Shardings of arrays, as attributes of the Shardy dialect."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from mpmd_trace.jax_compat import tracing

#: The symbol of the one `sdy.mesh` of a module; all meshes of a topology have the same axes.
MESH_SYMBOL = "mesh"


class Meshes:
    """The axes that the shardings of a program refer to."""

    def __init__(self) -> None:
        self.axes: tuple[tuple[str, int], ...] | None = None

    def op(self) -> str | None:
        """The text of the `sdy.mesh` op, or None when no sharding was seen."""
        if self.axes is None:
            return None
        axes = ", ".join(f'"{name}"={size}' for name, size in self.axes)
        return f"sdy.mesh @{MESH_SYMBOL} = <[{axes}]>"

    def text(self, sharding: Any, aval: tracing.Aval) -> tuple[str | None, str | None]:
        """`<mesh, dims>` for `sharding` of an array like `aval`, and what is wrong with it.

        Either may be None: shardings that say nothing about axes give no text.
        """
        if not isinstance(sharding, NamedSharding):
            kind = type(sharding).__name__
            if kind in ("SingleDeviceSharding", "UnspecifiedValue"):
                return None, None
            return None, (
                f"{kind} cannot be used here. Use a jax.sharding.NamedSharding over a mesh of the topology."
            )
        axes = tuple((str(n), int(s)) for n, s in sharding.mesh.shape.items())
        if not axes:
            return None, None
        if self.axes is None:
            self.axes = axes
        if axes != self.axes:
            return None, (
                f"sharding over a mesh with axes {_shape(axes)}, while another one of this program "
                f"has {_shape(self.axes)}. All meshes of a topology must have the same axes."
            )
        return f"@{MESH_SYMBOL}, [{dimensions(sharding.spec, aval)}]", None


def dimensions(spec: PartitionSpec, aval: tracing.Aval) -> str:
    """The dimension shardings of `spec`; trailing dimensions of the physical array are whole."""
    rank = len(tracing.physical(aval)[0])
    entries = [*spec, *[None] * (rank - len(spec))]
    return ", ".join(_dimension(entry) for entry in entries)


def _dimension(entry: Any) -> str:
    if entry is PartitionSpec.UNCONSTRAINED:
        return "{?}"
    if entry is None:
        return "{}"
    names = (entry,) if isinstance(entry, str) else entry
    return "{" + ", ".join(f'"{name}"' for name in names) + "}"


def _shape(axes: tuple[tuple[str, int], ...]) -> str:
    return "{" + ", ".join(f"{name}: {size}" for name, size in axes) + "}"
