"""Utilization of devices by a step: model FLOPs and tokens per second, and MFU.

Model FLOPs utilization (MFU) is the rate at which the FLOPs of the model are computed over the peak rate of the devices
(Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B).  The FLOPs are counted from the
program as it was traced, so what the compiler recomputes to save memory does not count; what the program itself
recomputes (`jax.checkpoint`) does.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import jax

from mpmd_trace.ir.flops import flops
from mpmd_trace.ir.ops import Module

#: Peak dense bfloat16 FLOP/s of one device by `jax.Device.device_kind` (a regular expression that has to match from the
#: start), with the document that says so.  The first match counts.
PEAK_FLOPS: tuple[tuple[str, float, str], ...] = (
    (r"NVIDIA B200", 2250e12, "NVIDIA DGX B200 datasheet (4.5 PFLOP/s with sparsity)"),
    (r"NVIDIA H200|NVIDIA GH200", 989.4e12, "NVIDIA H200 datasheet (1,979 TFLOP/s with sparsity)"),
    (r"NVIDIA H100 PCIe", 756e12, "NVIDIA H100 datasheet (1,513 TFLOP/s with sparsity)"),
    (r"NVIDIA H100 NVL", 835e12, "NVIDIA H100 datasheet (1,671 TFLOP/s with sparsity)"),
    (r"NVIDIA H100", 989.4e12, "NVIDIA H100 datasheet (1,979 TFLOP/s with sparsity)"),
    (r"NVIDIA A100", 312e12, "NVIDIA A100 datasheet"),
    (r"NVIDIA L40S", 362e12, "NVIDIA L40S datasheet (733 TFLOP/s with sparsity)"),
    (r"NVIDIA L4\b", 121e12, "NVIDIA L4 datasheet (242 TFLOP/s with sparsity)"),
    (r"TPU7x", 1153.5e12, "Google Cloud documentation, TPU7x (2,307 TFLOP/s for a chip of two devices)"),
    (r"TPU v6 lite|TPU v6e", 918e12, "Google Cloud documentation, TPU v6e"),
    (r"TPU v5 lite|TPU v5e", 197e12, "Google Cloud documentation, TPU v5e"),
    (r"TPU v5", 459e12, "Google Cloud documentation, TPU v5p"),
    (r"TPU v4", 275e12, "Google Cloud documentation, TPU v4"),
    (r"TPU v3", 61.5e12, "Google Cloud documentation, TPU v3 (123 TFLOP/s for a chip of two devices)"),
    (r"TPU v2", 22.5e12, "Google Cloud documentation, TPU v2 (45 TFLOP/s for a chip of two devices)"),
)


def peak_flops(device_kind: str) -> float | None:
    """Return the peak dense bfloat16 FLOP/s of a device of this kind; None if it is not in `PEAK_FLOPS`."""
    return next((peak for kind, peak, _ in PEAK_FLOPS if re.match(kind, device_kind)), None)


def mfu(rate: float, devices: Collection[jax.Device], peak: float | None = None) -> float | None:
    """Return the part of the peak rate of all devices that `rate` is, in FLOP/s; None if the peak of one is not known.

    Args:
        rate: model FLOPs per second.
        devices: the devices, of any kinds.
        peak: the peak FLOP/s of each; by default that of its kind.
    """
    peaks = [peak_flops(device.device_kind) if peak is None else peak for device in devices]
    known = [one for one in peaks if one is not None]
    return rate / sum(known) if len(known) == len(peaks) else None


def model_flops(module: Module) -> float:
    """Return the FLOPs of one run of a traced program (`Lowered.compiler_ir("stablehlo")`)."""
    return flops(module.main.regions[0], module)
