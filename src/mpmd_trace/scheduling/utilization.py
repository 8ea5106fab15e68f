"""How much of its devices a step uses: model FLOPs and tokens per second, and MFU.

Model FLOPs utilization (MFU) is the rate at which the FLOPs of the model are computed over the peak rate of the devices
(Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B).  The FLOPs are counted from the
program as it was traced, so what the compiler recomputes to save memory does not count; what the program itself
recomputes (`jax.checkpoint`) does.
"""

from __future__ import annotations

import dataclasses
import re

from mpmd_trace.ir.ops import Module
from mpmd_trace.scheduling.costs import flops

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


def model_flops(module: Module) -> float:
    """Return the FLOPs of one run of a traced program (`Lowered.compiler_ir("stablehlo")`)."""
    return flops(module.main.regions[0], module)


@dataclasses.dataclass(frozen=True)
class Utilization:
    """What a step computes in how long, on how many devices.

    flops: of one step.
    seconds: of one step.
    devices: how many take part.
    peak: the FLOP/s of one device at most; None where it is not known.
    tokens: how many tokens a step handles; None where nobody has said it.
    """

    flops: float
    seconds: float
    devices: int
    peak: float | None = None
    tokens: int | None = None

    @property
    def flops_per_second(self) -> float:
        """The rate at which all devices together compute the FLOPs of the model."""
        return self.flops / self.seconds

    @property
    def mfu(self) -> float | None:
        """The part of the devices' peak rate that is used, from 0 to 1; None where the peak is not known."""
        return None if self.peak is None else self.flops_per_second / (self.peak * self.devices)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all devices together."""
        return None if self.tokens is None else self.tokens / self.seconds
