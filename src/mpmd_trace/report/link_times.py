"""Times of transfers between meshes, measured with arrays of a few sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mpmd_trace.jax_compat.runtime import batched_copy
from mpmd_trace.schedules import Transfers
from mpmd_trace.scheduling.transfers import Link, Links

#: Bytes per device of what is sent.
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
#: Transfers of each size that are measured, after one that is not.
REPEATS = 7


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Return the latency and bandwidth that explain the times best, as far as relative errors go."""
    from scipy.optimize import nnls  # takes long to load, and most plans are not measured

    times = np.maximum(np.asarray(seconds, float), 1e-12)
    weighted = np.stack([1 / times, np.asarray(sizes, float) / times], axis=1)
    scale = weighted.max(axis=0)  # the columns differ by many orders of magnitude
    coefficients, _ = nnls(weighted / scale, np.ones(len(times)))
    latency, per_byte = (coefficients / scale).tolist()
    # What a thousandth of the latency hides cannot be distinguished from noise.
    matters = per_byte * max(sizes) > 1e-3 * latency
    return Link(latency, 1 / per_byte if matters else None)


def measure_links(
    topology: Mapping[str, Any],
    pairs: Iterable[tuple[str, str]],
    transfers: Transfers = "async",
    *,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[str], None] = lambda name: None,
) -> Links:
    """Return the links between these meshes, by sending arrays as the runtime does; others get the median.

    Arrays are spread over all devices of a mesh, and the size is that of one device.
    """
    single: dict[tuple[str, str], Link] = {}
    for source, target in dict.fromkeys(pairs):
        progress(f"{source} to {target}")
        single[source, target] = fit_link(sizes, [_seconds(topology[source], topology[target], n) for n in sizes])
    samples = list(single.values())
    widths = [link.bandwidth for link in samples if link.bandwidth is not None]
    usual = Link(
        statistics.median(link.latency for link in samples) if samples else 0.0,
        statistics.median(widths) if widths else None,
    )
    return Links(usual, single, transfers)


def _seconds(source: Any, target: Any, size: int) -> float:
    at = NamedSharding(source, PartitionSpec(tuple(source.axis_names)))
    to = NamedSharding(target, PartitionSpec(tuple(target.axis_names)))
    array = jax.device_put(jnp.zeros(max(size // 4, 1) * source.devices.size, jnp.float32), at)
    if source.devices.size == target.devices.size:
        copy = batched_copy([to], [False])
    else:

        def copy(arrays: Sequence[Any]) -> list[Any]:
            return [jax.device_put(arrays[0], to, may_alias=False)]

    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(copy([array]))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
