"""Whether compiled programs fit into memory, as XLA says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mpmd_trace.backend.load import LoadedProgram

__all__ = ["missing", "reserved"]


def reserved(program: LoadedProgram, limit: int, known: Mapping[str, int]) -> dict[str, int] | None:
    """Return the bytes on a device of each mesh that programs take besides values; None where a step fits into `limit`.

    `known`: those that were reserved when the program was made, and were too few where it does not fit.
    """
    if not limit:
        return None
    peaks = program.peaks
    if max(peaks.values()) <= limit:
        return None
    values = program.plan.live_bytes()
    result = {}
    for mesh, peak in peaks.items():
        before = known.get(mesh, 0)
        result[mesh] = max(before, peak - values[mesh], before + peak - limit if known else 0)
    return result


def missing(program: LoadedProgram, limit: int) -> Iterator[str]:
    """Yield what to say where a step does not fit, or where nobody knows whether it does."""
    if not limit:
        yield (
            "remat and offload have no effect, because the devices do not say how much memory they have: give "
            "make_config(device_memory=...) in bytes"
        )
        return
    peaks = program.peaks.items()
    above = [f"{peak - limit:,} bytes too many on mesh {mesh!r}" for mesh, peak in peaks if peak > limit]
    if above:
        yield (
            f"a step does not fit into {limit:,} bytes of a device, whatever is done with activations: "
            f"{', '.join(above)}. Take smaller microbatches, more stages, or shard parameters and the optimizer's "
            "state (optimizer_sharding)"
        )
