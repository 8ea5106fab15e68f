"""Saving models and optimizer states, and restoring them to the meshes of a program (with orbax)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.checkpoint_folders import Replacement, check, complete
from mpmd_trace.api.checkpoints import checkpointer_of_job, orbax
from mpmd_trace.api.compiled import Compiled
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.api.foreign import restore_foreign
from mpmd_trace.api.foreign_files import is_ours
from mpmd_trace.api.placing import abstract
from mpmd_trace.api.safetensors_files import is_safetensors
from mpmd_trace.api.saved_arrays import Saved, in_folder, rows_of, saved_arrays
from mpmd_trace.api.stored_as import Names, converted
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.stacked import Pieces, PiecesType, check_not_deleted
from mpmd_trace.diagnostics.internal import explains_internal_errors, in_words
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.jax_compat.layouts import elsewhere, put
from mpmd_trace.jax_compat.tracing import is_key, key_implementation

#: What the names of saved numbers begin with, which are not arrays.
_NUMBER = "number "


def _named(tree: Any) -> dict[str, Any]:
    """Return the arrays of `tree` by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if is_dynamic(leaf)}


def _numbers(tree: Any) -> dict[str, Any]:
    """The Python numbers of `tree` by their paths: a count of steps is one before the first step, and then an array."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_NUMBER + jax.tree_util.keystr(path): leaf for path, leaf in leaves if type(leaf) in (int, float, complex)}


@explains_internal_errors
def save(path: str | os.PathLike[str], tree: Any, *, overwrite: bool = False) -> None:
    """Write the arrays of `tree`, wherever they are, to the folder `path`.

    What is neither an array nor a number is not written.  Returns when everything is on disk; until then there is no
    such folder, or what was there before: it is written beside the path (`.NAME.new`) and gets there when it is
    complete.  What a process that was killed has left there is taken away by the next one that saves to the path.
    In a job of several processes all of them call this, and each writes what is on its devices.

    Raises:
        MpmdError: when orbax is missing, there is no array, or one that was deleted, `path` exists and `overwrite` is
            False, or it cannot be written; the old one stays.
        PeerError: when another process cannot write its part.
    """
    orbax()
    path = os.path.realpath(path)
    check_not_deleted(tree)
    arrays = in_folder(_named(tree))
    if not arrays:
        raise MpmdError("there is no array to save")
    arrays |= {name: np.asarray(number) for name, number in _numbers(tree).items()}
    new = Replacement(path, overwrite=overwrite)
    try:
        with _working(f"save to {path}", together=True), checkpointer_of_job() as checkpointer:
            checkpointer.save(new.folder, arrays)
    except MpmdError:
        job = current()
        if job is None or job.process == 0:
            with contextlib.suppress(OSError):
                new.clear()
        raise
    new.put()


@contextlib.contextmanager
def _working(doing: str, hint: str = "", *, together: bool = False) -> Iterator[None]:
    """While orbax does something; its errors, tensorstore's and the system's become `MpmdError`.

    hint: what else to say of them.
    together: whether the processes of a job wait for each other in it, so that an error of one is one of all.
    """
    job = current() if together else None
    try:
        with job.peers.telling(f"to {doing}") if job is not None else contextlib.nullcontext():
            yield
    except MpmdError:
        raise
    except Exception as error:
        raise MpmdError(f"cannot {doing}{hint}: {in_words(error)}") from error


@explains_internal_errors
def restore(
    path: str | os.PathLike[str],
    like: Any,
    argnums: int | Sequence[int] = 0,
    *,
    verify: bool = True,
    names: Names | None = None,
    cast: bool = False,
) -> Any:
    """Read what was saved at `path`, with each array placed as in `like`.

    Args:
        path: a folder that `save` wrote; or what others did: a tree of orbax, a step of its `CheckpointManager` or all
            steps (the last one counts), a file or folder of safetensors, a file of `eqx.tree_serialise_leaves` or of
            `flax.serialization.to_bytes`.
        like: a pytree of the saved structure with arrays or `jax.ShapeDtypeStruct`s, whose shardings count
            and whose other leaves are kept, numbers excepted; or a compiled program, for its arguments at `argnums`.
            What was saved as a number may be an array here.
        argnums: see `abstract`; only for a compiled program.
        verify: whether to read all files first and verify the checksums that `save` has written.
        names: what arrays are called there, where it is not the same: for patterns (regular expressions) of names
            here, such as `layers.0.weight`, a name there or `StoredAs`.
        cast: whether arrays may be stored in other dtypes, and are converted.

    Raises:
        MpmdError: when orbax or the folder is missing, something in it is damaged, or the arrays have other names,
            shapes or dtypes.
    """
    path = complete(os.path.realpath(path))
    if not os.path.exists(path):
        raise MpmdError(f"there is no folder {path} to restore from")
    if verify and os.path.isdir(path):
        check(path)
    is_program = isinstance(like, Compiled)
    tree = abstract(like, argnums) if is_program else like
    if names or cast or is_safetensors(path) or not is_ours(path, tree):
        return restore_foreign(path, tree, names, cast=cast, on_host=is_program)
    ocp = orbax()
    wanted = _named(tree)
    with checkpointer_of_job() as checkpointer:
        with _working(f"restore from {path}", " (it may be damaged)"):
            entries = _saved(checkpointer.metadata(path))
        saved = saved_arrays(entries)
        scalars = _scalars(wanted, {} if is_program else _numbers(tree), saved)
        plain = {key for key in saved if key.startswith(_NUMBER)}.union(scalars.values())
        wanted = {name: leaf for name, leaf in wanted.items() if name not in scalars}
        _check(wanted, {name: info for name, info in saved.items() if name not in plain}, path)
        # Layers that are cut as they were saved: each process reads what it has of them.
        cut = {name: parts for name, leaf in wanted.items() if (parts := _parts(name, leaf, saved[name]))}
        # What is put together here of what was cut in another way, or not at all, or is to be cut.
        apart = {n: saved[n] for n, x in wanted.items() if n not in cut and (saved[n].entries != (n,) or _is_cut(x))}
        types = {name: _data_type(leaf) for name, leaf in wanted.items() if name not in apart and name not in cut}
        types |= {entry: _data_type(part) for parts in cut.values() for entry, part in parts.items()}
        arguments = {
            name: ocp.ArrayRestoreArgs(sharding=t.sharding, global_shape=t.shape, dtype=t.dtype)
            if t.sharding is not None
            else ocp.RestoreArgs(restore_type=np.ndarray if is_program else jax.Array, dtype=t.dtype)
            for name, t in types.items()
        }
        bare = next((n for n, t in types.items() if t.sharding is None and n in wanted and not is_program), None)
        needed = plain.union(*(one.entries_of(_rows_here(wanted[name], one.axis)) for name, one in apart.items()))
        for key in (*plain, *(entry for one in apart.values() for entry in one.entries)):
            here = jax.ShapeDtypeStruct(entries[key].shape, entries[key].dtype)
            types[key] = here if key in needed else ocp.PLACEHOLDER
            arguments[key] = ocp.RestoreArgs(restore_type=np.ndarray)
        hint = " (it may be damaged)"
        if bare is not None:
            hint = f" (the type of {bare or 'the value'} has no sharding: give it one of the devices there are)"
        with _working(f"restore from {path}", hint, together=True):
            arrays = checkpointer.restore(path, item=types, restore_args=arguments)
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = []
    for key_path, leaf in named:
        name = jax.tree_util.keystr(key_path)
        if name in scalars:
            leaves.append(_scalar(name, arrays[scalars[name]], leaf, is_number=scalars[name] != name))
            continue
        if not is_dynamic(leaf):
            leaves.append(leaf)
            continue
        array: Any
        if name in cut:
            array = Pieces(leaf.bounds, [_typed(arrays[entry], part) for entry, part in cut[name].items()], leaf.axis)
        elif name in apart:
            array = _put_together(apart[name], arrays, leaf, on_host=is_program)
        else:
            array = _typed(arrays[name], leaf)
        leaves.append(put(array, leaf) if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding else array)
    return jax.tree.unflatten(structure, leaves)


def _is_cut(leaf: Any) -> bool:
    return isinstance(leaf, Pieces | PiecesType)


def _parts(name: str, leaf: Any, saved: Saved) -> dict[str, Any]:
    """Return the pieces of `leaf` by the names of the entries that they were saved as; none if it was cut otherwise."""
    if not _is_cut(leaf):
        return {}
    entries = tuple(rows_of(name, leaf))
    return dict(zip(entries, leaf.parts, strict=True)) if entries == saved.entries else {}


def _typed(array: Any, leaf: Any) -> Any:
    return jax.random.wrap_key_data(array, impl=key_implementation(leaf)) if is_key(leaf) else array


def _rows_here(leaf: Any, axis: int) -> list[tuple[int, int]]:
    """Return the rows along an axis that this process has of an array, each from one to another one."""
    result = []
    for start, part in zip(leaf.bounds, leaf.parts, strict=False) if _is_cut(leaf) else [(0, leaf)]:
        sharding = getattr(part, "sharding", None)
        if sharding is None:
            return [(0, leaf.shape[axis])]
        first = start if _is_cut(leaf) and leaf.axis == axis else 0
        for index in sharding.addressable_devices_indices_map(tuple(part.shape)).values():
            a, b, _ = index[axis].indices(part.shape[axis])
            result.append((a + first, b + first))
    return result


def _put_together(
    saved: Saved, entries: Mapping[str, Any], leaf: Any, axis: int = 0, start: int = 0, *, on_host: bool
) -> Any:
    """Return an array of what was read, where `leaf` is, as orbax would have read it.

    It begins at `start` along the axis.  Without a sharding it is whole, one of NumPy if `on_host`.
    """
    if _is_cut(leaf):
        pieces = zip(leaf.bounds, leaf.parts, strict=False)
        parts = [_put_together(saved, entries, part, leaf.axis, a, on_host=on_host) for a, part in pieces]
        return Pieces(leaf.bounds, parts, leaf.axis)
    spec = _data_type(leaf)
    if spec.sharding is None:
        whole = saved.whole(entries)
        return _typed(whole if on_host else jax.numpy.asarray(whole), leaf)
    if not spec.sharding.addressable_devices:
        return elsewhere(leaf)

    def read(index: Sequence[slice]) -> np.ndarray[Any, Any]:
        box = [one.indices(size)[:2] for one, size in zip(index, spec.shape, strict=True)]
        if start:
            box[axis] = box[axis][0] + start, box[axis][1] + start
        return saved.part(entries, box)

    return _typed(jax.make_array_from_callback(spec.shape, spec.sharding, read, dtype=spec.dtype), leaf)


def _scalars(wanted: dict[str, Any], numbers: dict[str, Any], saved: dict[str, Any]) -> dict[str, str]:
    """Return the names of what is a number, here or in the folder, with the keys of what was saved."""
    result = {n: _NUMBER + n for n, x in wanted.items() if n not in saved and _NUMBER + n in saved and not x.shape}
    for key in numbers:
        name = key.removeprefix(_NUMBER)
        if key in saved:
            result[name] = key
        elif name in saved and not saved[name].shape:
            result[name] = name
    return result


def _scalar(name: str, value: Any, leaf: Any, *, is_number: bool) -> Any:
    """Return what was saved, for `leaf`, a number or an array; `is_number`: whether it was a number."""
    if not is_dynamic(leaf):
        return type(leaf)(value.item()) if is_number else jax.numpy.asarray(value)
    array = converted(np.asarray(value), leaf.dtype, name)
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding:
        return put(array, leaf)
    return jax.device_put(array, getattr(leaf, "sharding", None))


def _data_type(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of the saved array for `leaf`."""
    sharding = getattr(leaf, "sharding", None)
    if is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _saved(metadata: Any) -> dict[str, Any]:
    """Shape and dtype of each saved array, from orbax's metadata (whose form depends on its version)."""
    item = getattr(metadata, "item_metadata", metadata)
    return dict(getattr(item, "tree", item))


def _check(wanted: dict[str, Any], saved: dict[str, Any], path: str) -> None:
    problems = [f"{path} has no {name or 'value'}" for name in wanted if name not in saved]
    unwanted = [name for name in saved if name not in wanted]
    problems += [f"{path} has {name or 'a value'}, which is not wanted" for name in unwanted]
    for name, leaf in wanted.items():
        if name in saved:
            spec, stored = _data_type(leaf), saved[name]
            if (tuple(stored.shape), stored.dtype) != (spec.shape, spec.dtype):
                problems.append(
                    f"{name or 'the value'} was saved as {stored.dtype}{list(stored.shape)}, and "
                    f"{spec.dtype}{list(spec.shape)} is wanted"
                )
    if problems:
        raise MpmdError([Diagnostic("error", p) for p in problems])
