"""Shardings of arrays, as attributes of the Shardy dialect."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from mpmd_trace.jax_compat import tracing

#: The symbol of the `sdy.mesh` of a module; where meshes have different axes, those after the first get numbers.
MESH_SYMBOL = "mesh"

Axes = tuple[tuple[str, int], ...]


class Meshes:
    """The axes that the shardings of a program refer to.

    `differ`: whether the meshes of the topology may have different axes.
    """

    def __init__(self, differ: bool = False) -> None:
        self._differ = differ
        self._symbols: dict[Axes, str] = {}

    def ops(self) -> tuple[str, ...]:
        """The text of the `sdy.mesh` op of each set of axes that was seen."""
        return tuple(map(self._op, self._symbols))

    def op(self, sharding: NamedSharding) -> str:
        """The text of the `sdy.mesh` op of a sharding for which there is a text."""
        return self._op(_axes(sharding))

    def _op(self, axes: Axes) -> str:
        listed = ", ".join(f'"{name}"={size}' for name, size in axes)
        return f"sdy.mesh @{self._symbols[axes]} = <[{listed}]>"

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
        axes = _axes(sharding)
        if not axes:
            return None, None
        if self._symbols and axes not in self._symbols and not self._differ:
            return None, (
                f"sharding over a mesh with axes {_shape(axes)}, while another one of this program "
                f"has {_shape(next(iter(self._symbols)))}. All meshes of a topology must have the same axes."
            )
        count = len(self._symbols)
        symbol = self._symbols.setdefault(axes, f"{MESH_SYMBOL}{count or ''}")
        return f"@{symbol}, [{dimensions(sharding.spec, aval)}]", None


def _axes(sharding: NamedSharding) -> Axes:
    return tuple((str(n), int(s)) for n, s in sharding.mesh.shape.items())


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


def _shape(axes: Axes) -> str:
    return "{" + ", ".join(f"{name}: {size}" for name, size in axes) + "}"
