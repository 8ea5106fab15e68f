"""GPUs that are described and not attached, as XLA's compiler for them wants them described."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GPUS", "Gpu"]


class Gpu(NamedTuple):
    """What XLA has to know of a GPU.  The numbers are those of XLA's own descriptions (`gpu/target_config/specs`)."""

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


_HOPPER = (132, 128, 1.98)
GPUS = {
    "a100": Gpu(
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41), *(2039040000000, 41943040, 85100068864, 167936, 166912)
    ),
    "h100": Gpu(*("NVIDIA H100 80GB HBM3", (9, 0), *_HOPPER), *(3352320000000, 52428800, 84942979072, 233472, 232448)),
    "h200": Gpu(*("NVIDIA H200", (9, 0), *_HOPPER), *(4800000000000, 52428800, 151397597184, 233472, 232448)),
    "b200": Gpu(*("NVIDIA B200", (10, 0), 148, 128, 1.965), *(7672320000000, 132644864, 191514411008, 233472, 232448)),
}
