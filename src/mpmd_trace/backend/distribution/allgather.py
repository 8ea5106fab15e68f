"""Values of all processes for every process."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jax
import numpy as np

from mpmd_trace.backend.distribution.job import Job
from mpmd_trace.backend.stacked import Pieces, check_not_deleted
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.tracing import is_key

#: Bytes that a process may give others at a time.
_MOST = 64 << 20


def process_allgather(job: Job | None, tree: Any) -> Any:
    """Return the arrays of `tree` as NumPy arrays; those with devices of other processes go through the job's store.

    Raises:
        MpmdError: for arrays that are gone.
    """
    check_not_deleted(tree)
    given, structure = jax.tree.flatten(tree)
    leaves: list[Any] = []  # an array for each piece
    for x in given:
        leaves += x.parts if isinstance(x, Pieces) else [x]
    parts = iter(_gathered(job, leaves))
    gathered = [x.whole(itertools.islice(parts, len(x.parts))) if isinstance(x, Pieces) else next(parts) for x in given]
    return jax.tree.unflatten(structure, gathered)


def _gathered(job: Job | None, leaves: list[Any]) -> list[Any]:
    keys = {i: str(jax.random.key_impl(x)) for i, x in enumerate(leaves) if is_key(x)}
    arrays = [jax.random.key_data(x) if i in keys else x for i, x in enumerate(leaves)]
    # Whether an array is all in this process does not tell whether others have it.
    shared = [i for i, x in enumerate(arrays) if isinstance(x, jax.Array) and _is_shared(job, x)]
    whole = {i: np.asarray(x) for i, x in enumerate(arrays) if isinstance(x, jax.Array) and i not in shared}
    if shared:
        if job is None:
            raise MpmdError("these arrays are on devices of other processes; call mpmd_trace.initialize() first")
        whole.update(_from_all(job, {i: arrays[i] for i in shared}))
    result = [whole.get(i, x) for i, x in enumerate(arrays)]
    for i, impl in keys.items():
        result[i] = jax.random.wrap_key_data(result[i], impl=impl)
    return result


def _is_shared(job: Job | None, array: jax.Array) -> bool:
    return not array.is_fully_addressable or (job is not None and array.committed)


def _from_all(job: Job, arrays: dict[int, jax.Array]) -> dict[int, np.ndarray[Any, Any]]:
    """Return each array from the first holders of its parts.

    A message: a line of JSON about all parts, then their bytes.
    """
    listed: list[tuple[int, list[tuple[int, int]]]] = []
    parts: list[bytes] = []
    for i, array in arrays.items():
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                listed.append((i, [s.indices(n)[:2] for s, n in zip(shard.index, array.shape, strict=True)]))
                parts.append(np.asarray(shard.data).tobytes())
    size = sum(map(len, parts))
    if size > _MOST:
        raise MpmdError(
            f"fetch is for small arrays, and these have {size >> 20} MiB in process {job.process} alone; use them "
            "where they are (x.addressable_shards), or save them with mpmd_trace.save"
        )
    types = [[i, f"{x.dtype}{list(x.shape)}", sorted(d.id for d in x.sharding.device_set)] for i, x in arrays.items()]
    result = {i: np.empty(array.shape, array.dtype) for i, array in arrays.items()}
    head = json.dumps({"types": types, "parts": listed}).encode()
    for process, message in enumerate(job.peers.allgather_bytes("fetch", head + b"\n" + b"".join(parts))):
        line, _, data = message.partition(b"\n")
        told = json.loads(line)
        if told["types"] != types:
            raise MpmdError(
                f"all processes must fetch the same arrays: process {process} has {_shown(told['types'])}, and "
                f"process {job.process} has {_shown(types)}"
            )
        at = 0
        for i, box in told["parts"]:
            whole = result[i]
            shape = tuple(stop - start for start, stop in box)
            length = int(np.prod(shape)) * whole.dtype.itemsize
            whole[tuple(slice(*b) for b in box)] = np.frombuffer(data[at : at + length], whole.dtype).reshape(shape)
            at += length
    return result


def _shown(types: list[list[Any]]) -> str:
    return ", ".join(f"{text} on devices {devices}" for _, text, devices in types) or "none"
