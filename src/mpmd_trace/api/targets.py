"""Programs for devices that are described and not attached: `tpu:v5e:2x4`, `gpu:h100:8`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from mpmd_trace.api.program import Program
from mpmd_trace.backend.placement import device_owners
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.layouts import Format
from mpmd_trace.jax_compat.targets import devices_of


def target_devices(target: str) -> list[jax.Device]:
    """Return the devices of a target, for meshes of programs that are compiled and not run.

        devices = mpmd_trace.compiler.target_devices("tpu:v5e:2x4")
        meshes = {"first": Mesh(devices[:4], ("data",)), "second": Mesh(devices[4:], ("data",))}

    Args:
        target: the kind and grid of TPUs: v2, v3, v5e and v6e have two dimensions, v4, v5p and tpu7x three; and the
            number of slices, if there are several, as in `tpu:v5e:2x4:2`.  The package libtpu has to be installed (`pip
            install 'mpmd_trace[tpu-aot]'`).  Or the kind and number of GPUs, `gpu:h100:8`, or of hosts and of GPUs of
            each, `gpu:h100:2x8`: a100, h100, h200 or b200 (`docs/gpus.md`).

    Raises:
        MpmdError: for a target that XLA does not have.
    """
    return list(devices_of(target))


def for_target(program: Program, target: str) -> Program:
    """Return the program with each mesh made of devices of the target, and types in the place of arrays.

    The meshes take the devices one after the other; those that share devices do so there, too.

    Raises:
        MpmdError: for an unknown target, or one that has too few devices.
    """
    moved = Moved(program.config, target)
    static = program.static_positions
    return dataclasses.replace(
        program,
        args=tuple(a if i in static else moved.types(a) for i, a in enumerate(program.args)),
        config=moved.config,
        in_shardings=jax.tree.map(moved.sharding, program.in_shardings),
        out_shardings=jax.tree.map(moved.sharding, program.out_shardings),
    )


class Moved:
    """A configuration on the devices of a target, with what is given for its own devices."""

    def __init__(self, config: Config, target: str) -> None:
        meshes = _meshes(config.topology, devices_of(target), target)
        self._pairs = [(mesh, meshes[name]) for name, mesh in config.topology.items()]
        self.config = dataclasses.replace(config, topology=MappingProxyType(meshes))

    def sharding(self, given: Any) -> Any:
        """Return a sharding over a mesh of the configuration over the one in its place, anything else as it is."""
        if isinstance(given, Format):
            return Format(given.layout, self.sharding(given.sharding))
        if isinstance(given, NamedSharding):
            for before, after in self._pairs:
                if before == given.mesh:
                    return NamedSharding(after, given.spec, memory_kind=given.memory_kind)
        return given

    def types(self, tree: Any) -> Any:
        """Return a pytree with types in the place of arrays, on the devices of the target where arrays had a mesh."""
        return jax.tree.map(self._type, tree)

    def _type(self, x: Any) -> Any:
        if not isinstance(x, jax.Array | jax.ShapeDtypeStruct):
            return x
        where = self.sharding(x.sharding) if getattr(x, "committed", True) else None
        kept = where if isinstance(where, NamedSharding) else None
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=kept, weak_type=getattr(x, "weak_type", False))


def _meshes(given: Mapping[str, Mesh | AbstractMesh], devices: tuple[jax.Device, ...], target: str) -> dict[str, Mesh]:
    """Return the meshes by name, of the same axes as those that are given."""
    owners, begins, needed = device_owners(given), dict[str, int](), 0
    for name, mesh in given.items():
        if owners[name] == name:
            begins[name] = needed
            needed += mesh.size
    if needed > len(devices):
        raise MpmdError(f"the meshes of the program have {needed} devices, and {target} has {len(devices)}")
    meshes = {}
    for name, mesh in given.items():
        begin = begins[owners[name]]
        taken = np.array(devices[begin : begin + mesh.size], dtype=object)
        meshes[name] = Mesh(taken.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)
    return meshes
