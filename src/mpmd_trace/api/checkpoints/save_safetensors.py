"""`save_safetensors`: arrays on meshes as a folder that Hugging Face's libraries read."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.checkpoints.folders import once, saving
from mpmd_trace.api.checkpoints.safetensors_format import (
    Tensor,
    check_dtypes,
    is_there,
    put_in_place,
    remove_parts,
    write,
)
from mpmd_trace.api.checkpoints.stored_as import Names, Rule, by_name, dotted, resolved
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.distribution.reshard_transfer import shard_slices_of
from mpmd_trace.backend.distribution.shard_slices import ShardSlice, common, is_empty
from mpmd_trace.backend.stacked import Pieces, check_not_deleted
from mpmd_trace.diagnostics.files import claimed
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError, raise_errors
from mpmd_trace.jax_compat.tracing import is_key


@explains_internal_errors
def save_safetensors(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    names: Names | None = None,
    max_file_bytes: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the arrays of `tree` as safetensors to the folder `path`.

    The files and their index can be read by Hugging Face's libraries.  Other files in the folder, such as
    `config.json`, are kept.  In a job of several processes, all of them call this, and each writes its tensors.  If a
    process is killed meanwhile, `restore` reads the old model or the new one, whole; while files get to their places,
    other libraries may find none.

    Args:
        path: the folder.
        tree: a pytree of arrays and numbers; other leaves are not written.
        names: the names of the arrays in the files; `restore` reads the files with the same `names`.
        max_file_bytes: the most bytes of tensors in a file; a single larger tensor gets a file of its own.
        metadata: the metadata in the header of each file; `{"format": "pt"}` by default.
        overwrite: whether to replace files of a model that exist.

    Raises:
        MpmdError: if files of a model exist and `overwrite` is False, if names do not fit, if a tensor is on several
            processes, if files cannot be written, or if another process writes to `path` at the same time.
    """
    path = os.path.realpath(path)
    check_not_deleted(tree)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = by_name(
        (dotted(p), _data(x) if is_dynamic(x) else np.asarray(x))
        for p, x in leaves
        if is_dynamic(x) or type(x) in (int, float, complex)
    )
    if not arrays:
        raise MpmdError("there is no array to save")
    tensors = _tensors(arrays, resolved(arrays, names))
    check_dtypes(tensors)
    job = current()
    with contextlib.ExitStack() as stack:
        once("folder to save to", lambda: _prepare(path, overwrite, stack))
        with job.peers.telling(f"to save to {path}") if job is not None else contextlib.nullcontext(), saving(path):
            own = 0 if job is None else job.process
            finish = write(path, tensors, max_file_bytes, metadata or {"format": "pt"}, own)
        if job is not None:
            job.peers.allgather_bytes("end of the writing", b"", patient=True)
        once("end of the saving", saving(path)(finish), patient=True)


def _prepare(path: str, overwrite: bool, stack: contextlib.ExitStack) -> None:
    """Make the folder, which no other process may write to until `stack` is closed."""
    files = is_there(path)
    if files and not overwrite:
        raise MpmdError(f"{path} has {files[0]}; save to another folder, or with overwrite=True")
    with saving(path):
        os.makedirs(path, exist_ok=True)
        if not stack.enter_context(claimed(path)):
            raise MpmdError(f"another process saves to {path}: wait until it has ended, or save to another folder")
        put_in_place(path)
        remove_parts(path)


def _data(x: Any) -> Any:
    return jax.random.key_data(x) if is_key(x) and not isinstance(x, Pieces) else x


def _tensors(arrays: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[Tensor]:
    """Return what is to be written.  Raises `MpmdError` for names that say too much or too little."""
    parts: dict[str, list[tuple[str, Rule, int | None]]] = {}
    for name, rule in rules.items():
        for number, stored in enumerate(rule.names):
            parts.setdefault(stored, []).append((name, rule, number if rule.is_stacked else None))
    result = []
    problems: list[str] = []
    for stored, sources in parts.items():
        rows = [rule.row for _, rule, _ in sources]
        if len(sources) > 1 and sorted(r if r is not None else -1 for r in rows) != list(range(len(rows))):
            of = ", ".join(name for name, _, _ in sources[:3])
            problems.append(f"{stored} is what {of} are stored as: give each a name of its own, or rows 0, 1, 2 ...")
        elif len(sources) == 1 and rows[0]:
            problems.append(f"{stored} has row {rows[0]} of {sources[0][0]}, and no array is row 0")
        else:
            result += _tensor(stored, sorted(sources, key=lambda s: s[1].row or 0), arrays, problems)
    raise_errors(problems)
    return result


def _tensor(
    stored: str, sources: Sequence[tuple[str, Rule, int | None]], arrays: Mapping[str, Any], problems: list[str]
) -> list[Tensor]:
    """Return the tensor that is made of these arrays, or layers of one; none if no process has all of it."""
    regions = []
    for name, rule, number in sources:
        full = tuple((0, size) for size in arrays[name].shape)
        at = rule.axis or 0
        box = full if number is None else (*full[:at], (number, number + 1), *full[at + 1 :])
        regions.append((_boxes(arrays[name]), box))
    owners = [_owners(boxes, region) for boxes, region in regions]
    both = sorted(set.intersection(*owners))
    if not both:
        problems.append(
            f"{stored} is in parts on several processes, of which none has all: write it with mpmd_trace.save"
        )
        return []
    first, rule, number = sources[0]
    dtype = arrays[first].dtype

    def make() -> np.ndarray[Any, Any]:
        those = [_read(boxes, region, dtype) for boxes, region in regions]
        if number is not None:
            return rule.stored(those[0])[0]
        done = [one.stored(x)[0] for (_, one, _), x in zip(sources, those, strict=True)]
        return done[0] if rule.row is None else np.stack(done, rule.axis or 0)

    types = []
    for (name, one, _), (_, region) in zip(sources, regions, strict=True):
        x = np.broadcast_to(np.zeros((), arrays[name].dtype), tuple(b - a for a, b in region))
        types.append((one.stored(x)[0].shape, x.dtype.name, one.axis))
        if types[-1] != types[0]:
            (shape, one_dtype, axis), (other, other_dtype, other_axis) = types[0], types[-1]
            problems.append(
                f"{stored} would have rows of {one_dtype}{list(shape)} along axis {axis}, such as {first}, and of "
                f"{other_dtype}{list(other)} along axis {other_axis}, such as {name}"
            )
            return []
    shape = types[0][0]
    if rule.row is not None:
        shape = (*shape[: rule.axis], len(sources), *shape[rule.axis or 0 :])
    return [Tensor(stored, shape, dtype, both[0], make)]


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of an array in the memory of a process."""

    process: int
    box: ShardSlice
    data: Any


def _boxes(x: Any) -> list[_Part]:
    if isinstance(x, Pieces):
        return [
            _Part(
                p.process,
                tuple((a + start, b + start) if i == x.axis else (a, b) for i, (a, b) in enumerate(p.box)),
                p.data,
            )
            for start, part in zip(x.bounds, x.parts, strict=False)
            for p in _boxes(part)
        ]
    full = tuple((0, size) for size in x.shape)
    if not isinstance(x, jax.Array):
        return [_Part(process, full, x) for process in range(jax.process_count())]
    local = {shard.device: shard for shard in x.addressable_shards}
    parts: dict[tuple[int, ShardSlice], _Part] = {}
    for device, box in shard_slices_of(x.shape, x.sharding).items():
        parts.setdefault((device.process_index, box), _Part(device.process_index, box, local.get(device)))
    return list(parts.values())


def _volume(box: ShardSlice) -> int:
    return 0 if is_empty(box) else math.prod(b - a for a, b in box)


def _owners(parts: Sequence[_Part], region: ShardSlice) -> set[int]:
    """Return the processes that have all of a region."""
    volumes: dict[int, int] = {}
    for part in parts:
        volumes[part.process] = volumes.get(part.process, 0) + _volume(common(part.box, region))
    return {process for process, volume in volumes.items() if volume >= _volume(region)}


def _read(parts: Sequence[_Part], region: ShardSlice, dtype: Any) -> np.ndarray[Any, Any]:
    """Return a region of an array, all of which is in this process."""
    result = np.empty([b - a for a, b in region], dtype)
    for part in parts:
        shared = common(part.box, region)
        if part.data is None or is_empty(shared):
            continue
        data = np.asarray(part.data.data if hasattr(part.data, "replica_id") else part.data)
        for_result, for_part = (
            tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(shared, box, strict=True))
            for box in (region, part.box)
        )
        result[for_result] = data[for_part]
    return result
