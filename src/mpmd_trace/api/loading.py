"""`load`: programs that `Compiled.save` has written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mpmd_trace.api.compilation_cache import loads
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.lowered import Lowered
from mpmd_trace.api.options import Settings
from mpmd_trace.backend.placement import overlaps
from mpmd_trace.backend.serialization import Stored, deserialize, versions
from mpmd_trace.config import Config
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.frontend.traced import Rewritten, Traced
from mpmd_trace.scheduling.resolve_schedule import ScheduleChoice


@explains_internal_errors
def load(path: str | os.PathLike[str], topology: Mapping[str, Mesh] | None = None) -> Compiled:
    """Load a program that `Compiled.save` (or `mpmd-trace compile`) has written, ready to be called.

    Nothing is traced or compiled.  Such a file is code, like a pickle: load only files that you trust.

    Args:
        path: the file.
        topology: the meshes to run on, with the names, shapes and kinds of device that it was compiled for; by default
            the devices with the same ids.

    Raises:
        MpmdError: if the file is not a saved program or is damaged, if it was made with other versions or for other
            devices, or if the topology has another shape; the message lists all mismatches.
    """
    what = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise MpmdError(f"cannot read {what}: {error.strerror}") from None
    stored, signature = deserialize(data, str(what))
    meshes = _meshes(stored, topology, str(what))
    try:
        kept = loads(signature)
        adapter = kept.pop("adapter")
        kept = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
        traced = Traced(jaxpr=None, rewrite=lambda _: _not_traced(str(what)), **kept)
    except Exception as error:  # a pickle may raise anything
        raise MpmdError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from None
    config = Config(MappingProxyType(meshes))
    schedule = ScheduleChoice(stored.header["schedule"])
    settings = Settings(keep_unused=stored.header["keep_unused"], adapter=adapter)
    return Lowered(traced, config, schedule, settings, stored=stored).compile()


def _not_traced(what: str) -> Rewritten:
    raise MpmdError(f"the program was loaded from {what}, where its trace is not kept; trace the function again")


def _meshes(stored: Stored, given: Mapping[str, Mesh] | None, what: str) -> dict[str, Mesh]:
    """Return the meshes to run on, checked.  Raises `MpmdError`."""
    wanted = stored.header["topology"]
    problems = []
    by_number = {d.id: d for d in jax.devices()}
    meshes: dict[str, Mesh] = {}
    if given is None:
        numbers = [n for mesh in wanted.values() for n in mesh["devices"]]
        missing = sorted(set(numbers) - by_number.keys())
        if missing:
            problems.append(
                f"it runs on {len(set(numbers))} devices, numbers {min(numbers)} to {max(numbers)}, and here are "
                f"{len(by_number)}, without number {missing[0]}; start with as many devices, or give the meshes to run "
                "on as topology={...}"
            )
        else:
            meshes = {name: _mesh(mesh, by_number) for name, mesh in wanted.items()}
    elif set(given) != set(wanted):
        problems.append(f"its meshes are called {', '.join(wanted)}; the topology has {', '.join(given) or 'none'}")
    else:
        meshes = {name: given[name] for name in wanted}
        for name, mesh in wanted.items():
            axes = dict(given[name].shape)
            if list(axes.items()) != list(mesh["axes"].items()):
                problems.append(f"its mesh {name!r} has axes {mesh['axes']}; the topology has {axes}")
    for name, mesh in meshes.items():
        kinds = {d.device_kind for d in mesh.devices.flat} - {wanted[name]["kind"]}
        if kinds:
            problems.append(f"its mesh {name!r} is for devices of kind {wanted[name]['kind']!r}, not {min(kinds)!r}")
    problems += overlaps(meshes)
    first = next((m.devices.flat[0] for m in meshes.values()), next(iter(by_number.values())))
    now = versions(first)
    for part, version in stored.header["made with"].items():
        if now.get(part) != version:
            problems.append(f"it was compiled with {part} {version}, and this is {now.get(part, 'none')}")
    raise_errors(f"{what} cannot be loaded: {text}" for text in problems)
    return meshes


def _mesh(described: Mapping[str, Any], by_number: Mapping[int, jax.Device]) -> Mesh:
    devices: Sequence[Any] = [by_number[n] for n in described["devices"]]
    axes = described["axes"]
    shaped = np.array(devices, dtype=object).reshape(tuple(axes.values()))
    return Mesh(shaped, tuple(axes))
