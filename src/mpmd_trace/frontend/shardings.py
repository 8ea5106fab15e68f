"""Shardings of arrays, as attributes of the Shardy dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from mpmd_trace.jax_compat import lowering, tracing

#: The symbol of the `sdy.mesh` of a module; where meshes have different axes, those after the first get numbers.
MESH_SYMBOL = "mesh"

Axes = tuple[tuple[str, int], ...]


class Meshes:
    """The axes that the shardings of a program refer to.

    `topology`: the shapes of its meshes by axis, where they are known.
    """

    def __init__(self, topology: Iterable[Mapping[Any, int]] = ()) -> None:
        self._known = dict.fromkeys(_listed(shape) for shape in topology)
        self._symbols: dict[Axes, str] = {}

    def ops(self) -> tuple[str, ...]:
        """Return the text of the `sdy.mesh` op of each set of axes that was seen."""
        return tuple(map(self._op, self._symbols))

    def op(self, sharding: NamedSharding) -> str:
        """Return the text of the `sdy.mesh` op of a sharding for which there is a text."""
        return self._op(_listed(sharding.mesh.shape))

    def _op(self, axes: Axes) -> str:
        listed = ", ".join(f'"{name}"={size}' for name, size in axes)
        return f"sdy.mesh @{self._symbols[axes]} = <[{listed}]>"

    def text(self, sharding: Any, aval: tracing.Aval) -> tuple[str | None, str | None]:
        """Return `<mesh, dims>` for `sharding` of an array like `aval`, and what is wrong with it.

        Either may be None: shardings that say nothing about axes give no text.
        """
        if not isinstance(sharding, NamedSharding):
            kind = type(sharding).__name__
            if kind in ("SingleDeviceSharding", "UnspecifiedValue"):
                return None, None
            return None, no_named_sharding(sharding)
        axes = _listed(sharding.mesh.shape)
        if not axes:
            return None, None
        if mistake := self.unknown(sharding.mesh.shape):
            return None, mistake
        if self._symbols and axes not in self._symbols and len(self._known) < 2:
            return None, (
                f"sharding over a mesh with axes {_shape(axes)}, while another one of this program "
                f"has {_shape(next(iter(self._symbols)))}. All meshes of a topology must have the same axes."
            )
        count = len(self._symbols)
        symbol = self._symbols.setdefault(axes, f"{MESH_SYMBOL}{count or ''}")
        return f"@{symbol}, [{dimensions(sharding.spec, aval)}]", None

    def constrained(
        self, values: Sequence[Any], targets: Sequence[Any], variables: Sequence[Any]
    ) -> tuple[list[Any], list[str]]:
        """Return values, each in the sharding that is its target, if that is one, and what is wrong with those."""
        results: list[Any] = []
        mistakes: list[str] = []
        for x, target, variable in zip(values, targets, variables, strict=True):
            text, mistake = self.text(target, variable.aval) if isinstance(target, Sharding) else (None, None)
            mistakes += [] if mistake is None else [mistake]
            results.append(x if text is None else lowering.sharding_p.bind(x, sharding=text, mesh=self.op(target))[0])
        return results, mistakes

    def unknown(self, shape: Mapping[Any, int]) -> str | None:
        """Return what is wrong with a mesh of this shape, when none of the topology has it."""
        axes = _listed(shape)
        if not self._known or not axes or axes in self._known:
            return None
        return (
            f"sharding over a mesh with axes {_shape(axes)}, which no mesh of the topology has "
            f"({' or '.join(map(_shape, self._known))}). Use a mesh of the topology."
        )


def without_devices(eqn: tracing.Equation) -> dict[str, Any]:
    """Return the parameters; a `shard_map` loses its devices, because the assignment says which ones it runs on."""
    mesh = eqn.params.get("mesh") if eqn.primitive.name == "shard_map" else None
    params: dict[str, Any] = eqn.params
    return {**params, "mesh": mesh.abstract_mesh} if isinstance(mesh, Mesh) else params


def no_named_sharding(sharding: object) -> str:
    """Return what is wrong with something else than a `NamedSharding`."""
    kind = type(sharding).__name__
    return f"{kind} cannot be used here. Use a jax.sharding.NamedSharding over a mesh of the topology."


def _listed(shape: Mapping[Any, int]) -> Axes:
    return tuple((str(n), int(s)) for n, s in shape.items())


def dimensions(spec: PartitionSpec, aval: tracing.Aval) -> str:
    """Return the dimension shardings of `spec`; trailing dimensions of the physical array are whole."""
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
