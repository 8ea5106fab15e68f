"""Devices that are described and not attached: XLA compiles for them, and nothing can run on them.

A TPU is described by the name of its kind and the shape of its grid; XLA's compiler for it is in the package `libtpu`.
A GPU is described by what XLA has to know of it; its compiler is in the packages of JAX's CUDA plugin.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jaxlib import _jax

from mpmd_trace.diagnostics.messages import MpmdError


class Gpu(NamedTuple):
    """Describe a GPU to XLA's compiler, with the numbers of XLA's own descriptions (`gpu/target_config/specs`)."""

    name: str
    capability: tuple[int, int]
    cores: int
    units: int
    gigahertz: float
    bandwidth: int
    cache: int
    memory: int
    shared: int
    shared_of_a_block: int

    @property
    def text(self) -> str:
        """The description, as a `GpuTargetConfigProto` in text form."""
        major, minor = self.capability
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared,
            "shared_memory_per_block_optin": self.shared_of_a_block,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": self.units,
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.bandwidth,
            "l2_cache_size": self.cache,
            "clock_rate_ghz": self.gigahertz,
            "device_memory_size": self.memory,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        listed = " ".join(f"{name}: {value}" for name, value in fields.items())
        return (
            f"gpu_device_info {{ {listed} cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
            f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }} '
            f'device_description_str: "{self.name}"'
        )


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 2039040000000, 41943040, 85100068864, 167936, 166912),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 3352320000000, 52428800, 84942979072, 233472, 232448),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 1.98, 4800000000000, 52428800, 151397597184, 233472, 232448),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 128, 1.965, 7672320000000, 132644864, 191514411008, 233472, 232448),
}


#: GiB that XLA gives to the programs of a device, by `device_kind`: what libtpu 0.0.50 says when it refuses a program.
_MEMORY = {
    "TPU v2": 7.48,
    "TPU v3": 15.48,
    "TPU v4": 15.25,
    "TPU v5 lite": 15.75,
    "TPU v5": 95.73,
    "TPU v6 lite": 31.24,
    "TPU7x": 94.74,
}
#: Bytes a second that a device sends to others of its slice or host, by the start of its kind: what the makers say. The
#: two devices of a chip of TPU v2, v3 and TPU7x share its links.
_LINK_SPEED = {
    "TPU v2": 31e9,
    "TPU v3": 41e9,
    "TPU v4": 300e9,
    "TPU v5 lite": 200e9,
    "TPU v5": 600e9,
    "TPU v6 lite": 448e9,
    "TPU7x": 600e9,
    "NVIDIA A100": 300e9,
    "NVIDIA H100": 450e9,
    "NVIDIA H200": 450e9,
    "NVIDIA B200": 900e9,
}
#: Bytes a second that a device sends to other slices, over the data-center network: of a pod what Google Cloud's
#: documentation says (6.4 Tbit/s of 256 v5e, 25.6 Tbit/s of 256 v6e), of v5p what "How to Scale Your Model" says.
_NETWORK_SPEED = {"TPU v5 lite": 3.125e9, "TPU v5": 6.25e9, "TPU v6 lite": 12.5e9}
#: How many dimensions a grid of such TPUs has.
KINDS = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}
#: What libtpu would otherwise ask a cloud's metadata server for, or refuse because another process has loaded it.
_NO_TPU = MappingProxyType(
    {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
)


#: CUDA's own libraries, whose versions JAX looks at, are not needed to compile.
_NO_GPU = MappingProxyType({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"})
#: The part of its memory that JAX takes of a GPU, unless a variable says otherwise.
_PART_OF_GPU = 0.75


def is_described(device: Any) -> bool:
    """Return whether a device is only described."""
    return isinstance(getattr(device, "client", None), _jax.CompileOnlyPyClient)


def process_of(device: Any) -> int:
    """Return the process that compiles for a device: its own, or this one if the device is only described."""
    return jax.process_index() if is_described(device) else int(device.process_index)


def memory_of(device: Any) -> int | None:
    """Return the bytes of memory that programs may use on a device; None where that is unknown."""
    if not is_described(device):
        return (device.memory_stats() or {}).get("bytes_limit")
    if device.platform == "gpu":
        part = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", _PART_OF_GPU))
        return next((int(part * gpu.memory) for gpu in GPUS.values() if gpu.name == device.device_kind), None)
    gib = _MEMORY.get(device.device_kind)
    return None if gib is None else int(gib * 2**30)


def link_speed_of(device: Any) -> float | None:
    """Return the bytes a second that a device sends to its neighbors, if known."""
    return next((speed for kind, speed in _LINK_SPEED.items() if device.device_kind.startswith(kind)), None)


def network_speed_of(device: Any) -> float | None:
    """Return the bytes a second that a device sends to devices of other slices, if known."""
    return _NETWORK_SPEED.get(device.device_kind)


def most_in_use(device: Any) -> int | None:
    """Return the most bytes of memory that have been in use on a device since the process began, None if not known."""
    stats = None if is_described(device) else device.memory_stats()
    peak = (stats or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)


def positions(devices: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return where described devices are, as seen from the first of them; nothing for others.

    XLA compiles for the links between devices, so that equal programs are equal on devices placed alike.
    """
    if not is_described(devices[0]) or devices[0].platform != "tpu":
        return ()
    first, begin = devices[0].coords, slice_of(devices[0])
    return tuple(
        (slice_of(d) - begin, *(a - b for a, b in zip(d.coords, first, strict=True)), d.core_on_chip) for d in devices
    )


def slice_of(device: Any) -> int:
    """Return the number of the slice of TPUs that a device belongs to; 0 where there is one."""
    return int(getattr(device, "slice_index", None) or 0)


def in_first_slices(devices: Sequence[Any]) -> list[Any]:
    """Return described devices with those of the first slices in their place, as XLA compiles for no others."""
    slices = sorted({slice_of(device) for device in devices})
    if not is_described(devices[0]) or slices == [*range(len(slices))]:
        return list(devices)
    placed = {(slice_of(d), *d.coords, d.core_on_chip): d for d in devices[0].client.devices()}
    return [placed[slices.index(slice_of(d)), *d.coords, d.core_on_chip] for d in devices]


@functools.cache
def devices_of(target: str) -> tuple[jax.Device, ...]:
    """Return the devices of a target, `tpu:v5e:2x4`, `tpu:v5e:2x4:2` or `gpu:h100:8`, always the same ones.

    Those of several slices of TPUs come slice by slice.  Raises `MpmdError`.
    """
    platform, _, name = target.partition(":")
    kind, _, grid = name.partition(":")
    if platform == "gpu":
        return _gpus(target, kind, grid)
    parts = re.fullmatch(r"(\d+(?:x\d+)+)(?::([1-9]\d*))?", grid)
    if platform != "tpu" or parts is None:
        raise MpmdError(
            f"the target is {target!r}; write the kind and grid of TPUs, as in tpu:v5e:2x4 or tpu:v5p:2x2x1, and the "
            "number of slices if there are several, as in tpu:v5e:2x4:2, or the kind and number of GPUs, as in "
            "gpu:h100:8"
        )
    grid, slices = parts.groups()
    if kind not in KINDS:
        raise MpmdError(f"the target {target!r} is of an unknown kind of TPU; known are {', '.join(KINDS)}")
    if grid.count("x") + 1 != KINDS[kind]:
        raise MpmdError(
            f"the target {target!r} has a grid of {grid.count('x') + 1} dimensions; {kind} has {KINDS[kind]}"
        )
    missing = (
        "XLA's compiler for TPUs is not installed: pip install 'mpmd_trace[tpu-aot]', which is libtpu of the version "
        "that this jax wants"
    )
    with _environment({} if _has_tpu() else _NO_TPU):
        more: dict[str, Any] = {} if slices is None else {"num_slices": int(slices)}
        # The same bounds as by default since libtpu 0.0.50; before, a grid of less than 2x2 was refused without them.
        of_host = (*(min(int(size), 2) for size in grid.split("x")[:2]), 1)
        return _described(
            target, missing, platform="tpu", topology_name=f"{kind}:{grid}", chips_per_host_bounds=of_host, **more
        )


def _gpus(target: str, kind: str, grid: str) -> tuple[jax.Device, ...]:
    """Return GPUs, of one host or, as in `2x8`, of several."""
    if not re.fullmatch(r"\d+(x\d+)?", grid):
        raise MpmdError(f"the target is {target!r}; write a number of GPUs, or of hosts and of GPUs of each, as in 2x8")
    if kind not in GPUS:
        raise MpmdError(f"the target {target!r} is of an unknown kind of GPU; known are {', '.join(GPUS)}")
    topology = f"1x{grid}" if "x" in grid else f"1x1x{grid}"
    missing = (
        "XLA's compiler for GPUs is not loaded: pip install jax-cuda13-plugin jax-cuda13-pjrt, of the version of this "
        "jax, and ask for the target before anything else in the process uses a device (without CUDA's own libraries "
        "JAX loads the plugin only if JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 is set by then)"
    )
    with _environment(_NO_GPU):
        return _described(
            target, missing, platform="cuda", topology_name=kind, topology=topology, target_config=GPUS[kind].text
        )


def _described(target: str, missing: str, **description: Any) -> tuple[jax.Device, ...]:
    try:
        return tuple(topologies.get_topology_desc(**description).devices)
    except (ImportError, RuntimeError, ValueError) as error:
        if "TPU support not installed" in str(error) or "topology not implemented" in str(error):
            raise MpmdError(missing) from error
        reason = str(error).splitlines()[0].partition(": ")[2] or str(error)
        raise MpmdError(f"XLA has no target {target!r}: {reason}") from error


def _has_tpu() -> bool:
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set while libtpu starts."""
    ours = [name for name in more if name not in os.environ]
    os.environ.update({name: more[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
