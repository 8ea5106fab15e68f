"""Placement of values: the JAX sharding that a mesh tensor type means on given devices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from mpmd_trace.backend.dtypes import dtype_of, tensor_type
from mpmd_trace.backend.plan import Plan
from mpmd_trace.diagnostics.messages import raise_errors
from mpmd_trace.ir.attributes import Axis, TensorShardingAttr, TopologyAttr
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.jax_compat.layouts import Format, from_text, padded_bytes
from mpmd_trace.jax_compat.targets import in_first_slices, is_described, process_of


def device_owners(topology: Mapping[str, Mesh | AbstractMesh]) -> dict[str, str]:
    """For each mesh the first one with the same devices in the same order: itself, unless meshes share them."""
    first: dict[tuple[jax.Device, ...], str] = {}
    return {
        name: first.setdefault(tuple(mesh.devices.flat), name) if isinstance(mesh, Mesh) else name
        for name, mesh in topology.items()
    }


def overlaps(topology: Mapping[str, Mesh | AbstractMesh]) -> Iterator[str]:
    """Yield what is wrong with meshes that have some devices in common, and others not, or in another order."""
    meshes = {name: mesh for name, mesh in topology.items() if isinstance(mesh, Mesh)}
    owners = device_owners(meshes)
    for (name, mesh), (other, after) in itertools.combinations(meshes.items(), 2):
        common = [device for device in mesh.devices.flat if device in set(after.devices.flat)]
        if not common or owners[name] == owners[other]:
            continue
        how = f"both have {', '.join(map(str, common))}"
        if len(common) == mesh.devices.size == after.devices.size:
            how = "both have the same devices, in different orders"
        yield (
            f"the meshes {name!r} and {other!r} overlap: {how}. Give each mesh devices of its own, or both the same "
            "ones in the same order, which they share then."
        )


def check_topology(program: TopologyAttr, topology: Mapping[str, Mesh]) -> None:
    """Raise one `MpmdError` with every way in which the meshes are not those of the program."""
    problems = []
    for name, mesh in program.meshes.items():
        given = topology.get(name)
        if given is None:
            known = ", ".join(repr(n) for n in topology) or "none"
            problems.append(
                f"the program runs on mesh '{name}' {mesh.body}, and the topology has no such mesh "
                f"(it has {known}); add it to the topology"
            )
        elif not isinstance(given, Mesh):
            problems.append(
                f"mesh '{name}' is a {type(given).__name__}, which has no devices; give a jax.sharding.Mesh"
            )
        elif (given_axes := _axes(given)) != mesh.axes:
            shown, wanted = (", ".join(f"{a}={n}" for a, n in axes) for axes in (given_axes, mesh.axes))
            problems.append(
                f"mesh '{name}' has axes ({shown}) with {given.devices.size} devices, and the program was "
                f"compiled for ({wanted}) with {mesh.size}; give a mesh of that shape or compile again"
            )
    raise_errors(problems)


#: The parts that each axis of a mesh is cut into, with their sizes, major first.
_Pieces = Mapping[str, Sequence[tuple[str, int]]]


def _axes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    return tuple((str(a), n) for a, n in mesh.shape.items())


def _pieces(mesh: Mesh, parts: Sequence[Axis]) -> _Pieces:
    """Return the axes cut at the boundaries of sub-axes."""
    cuts = {axis: {1, n} for axis, n in _axes(mesh)}
    for part in parts:
        if part.size is not None and part.pre_size is not None:
            cuts[part.name] |= {part.pre_size, part.pre_size * part.size}
    pieces = {}
    for axis, bounds in cuts.items():
        sizes = [b // a for a, b in itertools.pairwise(sorted(bounds))] or [1]
        labels = [axis] if len(sizes) == 1 else [f"{axis}.{i}" for i in range(len(sizes))]
        pieces[axis] = list(zip(labels, sizes, strict=True))
    return pieces


def _labels(axis: Axis, pieces: _Pieces) -> list[str]:
    """Return the refined axes that make up an axis or sub-axis, major first."""
    low = axis.pre_size or 1
    result, before = [], 1
    for label, size in pieces[axis.name]:
        inside = axis.size is None or low <= before < low * axis.size
        if inside and (size > 1 or axis.size is None):
            result.append(label)
        before *= size
    return result


def named_sharding(mesh: Mesh, sharding: TensorShardingAttr | None, rank: int) -> NamedSharding:
    """Return the NamedSharding that means `sharding` on the devices of `mesh`."""
    if sharding is None:
        return NamedSharding(mesh, PartitionSpec())
    pieces = _pieces(mesh, sharding.all_axes)
    if any(axis.size is not None for axis in sharding.all_axes):
        names, sizes = zip(*itertools.chain.from_iterable(pieces.values()), strict=True)
        mesh = Mesh(mesh.devices.reshape(sizes), names)
    dims: list[str | tuple[str, ...] | None] = []
    for dim in range(rank):
        labels = [label for axis in sharding.dim_axes(dim) for label in _labels(axis, pieces)]
        dims.append(None if not labels else labels[0] if len(labels) == 1 else tuple(labels))
    while dims and dims[-1] is None:
        dims.pop()
    unreduced = {label for axis in sharding.unreduced for label in _labels(axis, pieces)}
    return NamedSharding(mesh, PartitionSpec(*dims, unreduced=unreduced))


def memory_kinds(mesh: Mesh) -> frozenset[str]:
    """Return the memories that every device of the mesh can address."""
    kinds = [{m.kind for m in d.addressable_memories()} for d in mesh.devices.flat]
    return frozenset.intersection(*map(frozenset, kinds))


class Placement:
    """The meshes of one program; gives out one and the same sharding object for equal types."""

    def __init__(self, topology: Mapping[str, Mesh]) -> None:
        self.meshes: dict[str, Mesh] = dict(topology)
        me = jax.process_index()
        #: The meshes of which this process has a device.
        self.own = frozenset(n for n, m in topology.items() if any(process_of(d) == me for d in m.devices.flat))
        #: The processes that have devices of them.
        self.processes = frozenset(process_of(d) for mesh in topology.values() for d in mesh.devices.flat)
        #: A device that is described and not attached, if there is one.
        self.described = next((d for m in topology.values() for d in m.devices.flat if is_described(d)), None)
        self._kinds = {name: memory_kinds(mesh) for name, mesh in topology.items()}
        self.sharding = functools.lru_cache(maxsize=None)(self._sharding)
        self.spec = functools.lru_cache(maxsize=None)(self._spec)

    def for_compiler(self) -> Self:
        """Return the meshes on devices for which XLA compiles: of described ones those of the first slices."""
        moved = {}
        for name, mesh in self.meshes.items():
            devices = np.array(in_first_slices([*mesh.devices.flat]), dtype=object).reshape(mesh.devices.shape)
            moved[name] = Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)
        return self if moved == self.meshes else type(self)(moved)

    def _sharding(self, type: MeshTensorType, memory_kind: str | None = None) -> NamedSharding:
        """Return the sharding of a value; its memory is the type's, else `memory_kind`, else the default.

        A memory that the platform does not have is the default memory.
        """
        result = named_sharding(self.meshes[type.mesh], type.sharding, len(type.tensor.shape or ()))
        kind = type.memory_kind or memory_kind
        if kind is not None and kind in self._kinds[type.mesh]:
            return result.with_memory_kind(kind)
        return result

    def _spec(
        self, type: MeshTensorType, memory_kind: str | None = None, layout: str | None = None
    ) -> jax.ShapeDtypeStruct:
        """Shape, dtype and sharding of a value; with its layout if it has an unusual one."""
        sharding = self.sharding(type, memory_kind)
        wanted = None if layout is None else from_text(layout)
        return spec_of(type, sharding if wanted is None else Format(wanted, sharding))

    def with_padding(self, plan: Plan) -> Plan:
        """Return the plan with the bytes that values take on TPUs, which keep arrays in tiles, padded to whole ones."""
        padded = {name for name, mesh in self.meshes.items() if mesh.devices.flat[0].platform == "tpu"}
        if not padded:
            return plan
        bytes_of = functools.cache(lambda *place: padded_bytes(self.spec(*place)))
        slots = (s._replace(bytes=bytes_of(*s.place)) if s.mesh in padded else s for s in plan.slots)
        return dataclasses.replace(plan, slots=tuple(slots))

    def device_ids(self, mesh: str) -> tuple[int, ...]:
        """Return the ids of the devices of a mesh, in the order of the mesh."""
        return tuple(d.id for d in self.meshes[mesh].devices.flat)


def spec_of(type: Type, sharding: NamedSharding | Format) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of the arrays of this type.  64-bit types stay 64 bits wide."""
    tensor = tensor_type(type)
    with jax.enable_x64(True):
        return jax.ShapeDtypeStruct(tensor.shape or (), dtype_of(tensor), sharding=sharding)
