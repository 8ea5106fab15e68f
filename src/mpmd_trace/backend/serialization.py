"""Compiled programs as bytes: the exported module and XLA's executables, ready without tracing and compiling.

They are a zip: `header.json` (what it was made with and for), `module.mlir`, `executables/N`, and, pickled, the plan
and what Python needs to call the program; its comment is a checksum of everything before.  Executables and pickles are
code: they are to be trusted, or not to be loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import json
import pickle
import platform
import zipfile
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

import mpmd_trace
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.diagnostics.messages import MpmdError

_FORMAT = 6
#: Bytes of the checksum at the end.
_CHECKSUM = 64


@dataclasses.dataclass(frozen=True)
class Stored:
    """A compiled program as it is stored."""

    #: The exported module, in generic form.
    module: str
    #: Its plan, pickled: reading the module takes longer than anything else but the executables.
    plan: bytes
    #: The distinct serialized executables.
    executables: tuple[bytes, ...]
    #: For each program of the plan the index of its executable; None if the platform cannot serialize it.
    numbers: tuple[int | None, ...]
    #: What it was made with and for.
    header: Mapping[str, Any]
    #: What was warned of when it was made, each with a place (`file:line`) or None.
    warnings: tuple[tuple[str, str | None], ...] = ()

    @property
    def ready(self) -> dict[int, bytes]:
        """The executables that are stored, by the numbers of their programs."""
        return {i: self.executables[n] for i, n in enumerate(self.numbers) if n is not None}


def stored_form(
    program: LoadedProgram, module: str, name: str, schedule: str, warnings: tuple[tuple[str, str | None], ...] = ()
) -> Stored:
    """Return a compiled program as it is stored.

    Args:
        program: what was compiled of the module.
        module: the exported module, in generic form.
        name: the name of the user's function.
        schedule: the name of the schedule.
        warnings: what to warn of when it is loaded.
    """
    serialized = [e.compiled.serialized for e in program.runtime.executables if e is not None]
    distinct = tuple(dict.fromkeys(e for e in serialized if e is not None))
    place = {executable: i for i, executable in enumerate(distinct)}
    numbers = tuple(None if e is None else place[e] for e in serialized)
    plan = pickle.dumps(program.plan, protocol=5)
    header = _header(name, program.topology, schedule, program.keeps_unused)
    return Stored(module, plan, distinct, numbers, header, warnings)


def _header(name: str, topology: Mapping[str, Mesh], schedule: str, keep_unused: bool) -> dict[str, Any]:
    first = next(iter(topology.values())).devices.flat[0]
    return {
        "format": _FORMAT,
        "name": name,
        "made with": versions(first),
        "topology": {
            mesh: {"axes": dict(m.shape), "devices": [d.id for d in m.devices.flat], "kind": first.device_kind}
            for mesh, m in topology.items()
        },
        "schedule": schedule,
        "keep_unused": keep_unused,
    }


def versions(device: jax.Device) -> dict[str, str]:
    """Return, by part, the versions that executables depend on: they run only where all of them are the same."""
    result = {"mpmd_trace": mpmd_trace.__version__, "jax": jax.__version__}
    result["jaxlib"] = importlib.metadata.version("jaxlib")
    result["platform"] = f"{device.platform}, {device.client.platform_version}"
    if device.platform == "cpu":
        result["CPU"] = f"{platform.machine()}, {_cpu_features()}"
    return result


def _cpu_features() -> str:
    """Return a key of the instructions that the CPU has."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:12]


def serialize(stored: Stored, signature: bytes = b"") -> bytes:
    """Return the contents of a file with the program and, pickled, what Python needs to call it."""
    parts = {"module.mlir": stored.module.encode(), "plan.pickle": stored.plan, "signature.pickle": signature}
    parts.update({f"executables/{i}": executable for i, executable in enumerate(stored.executables)})
    header = {**stored.header, "numbers": stored.numbers, "warnings": stored.warnings}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, part in {"header.json": json.dumps(header, indent=1).encode(), **parts}.items():
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
        archive.comment = bytes(_CHECKSUM)
    return with_checksum(file.getvalue())


def with_checksum(data: bytes) -> bytes:
    """Return the data with its checksum in place of its last bytes."""
    return data[:-_CHECKSUM] + hashlib.sha256(data[:-_CHECKSUM]).hexdigest().encode()


def deserialize(data: bytes, what: str) -> tuple[Stored, bytes]:
    """Return what `serialize` was given; `what` names the file in errors.

    Raises:
        MpmdError: if it is something else, or was made by another version, before anything in it is unpickled.
    """
    if len(data) <= _CHECKSUM or with_checksum(data) != data:
        made = _format_of(data)
        if made is not None and made < _FORMAT:
            raise MpmdError(f"{what} cannot be loaded: it has format {made}, this is {_FORMAT}; make it again")
        raise MpmdError(f"{what} is damaged, or no program that mpmd_trace has saved")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(parts["header.json"])
    if header["format"] != _FORMAT:
        raise MpmdError(f"{what} cannot be loaded: it has format {header['format']}, this is {_FORMAT}")
    numbers = tuple(header.pop("numbers"))
    warnings = tuple((text, place) for text, place in header.pop("warnings"))
    count = sum(name.startswith("executables/") for name in parts)
    executables = tuple(parts[f"executables/{i}"] for i in range(count))
    stored = Stored(parts["module.mlir"].decode(), parts["plan.pickle"], executables, numbers, header, warnings)
    return stored, parts["signature.pickle"]


def _format_of(data: bytes) -> int | None:
    """Return the number of the format of a file; None if it is damaged, or something else."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return int(json.loads(archive.read("header.json"))["format"])
    except Exception:  # of zip, zlib, JSON or Python, for any damage
        return None
