"""Saving models and optimiser states, and restoring them to the meshes of a program (with orbax)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.checkpoints import checkpoint_handler, orbax
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.api.jit import Compiled
from mpmd_trace.api.placing import abstract
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.stacked import Pieces
from mpmd_trace.diagnostics.messages import Diagnostic, MpmdError
from mpmd_trace.jax_compat.layouts import put
from mpmd_trace.jax_compat.tracing import key_implementation

__all__ = ["restore", "save"]


def _checkpointer() -> Any:
    ocp = orbax()
    return ocp.PyTreeCheckpointer() if current() is None else ocp.Checkpointer(checkpoint_handler())


def _exists(path: str) -> bool:
    """Whether there is something at the path, as process 0 sees it before anything is written."""
    job = current()
    found = os.path.exists(path)
    return found if job is None else job.peers.agree("path to save to", str(int(found)).encode())[0] == b"1"


def _named(tree: Any) -> dict[str, Any]:
    """The arrays of `tree` by their paths."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found if is_dynamic(leaf)}


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def save(path: str | os.PathLike[str], tree: Any, *, overwrite: bool = False) -> None:
    """Write the arrays of `tree`, wherever they are, to the folder `path`.

    What is not an array is not written.  Returns when everything is on disk; until then there is no such folder.
    In a job of several processes all of them call this, and each writes what is on its devices.

    Raises:
        MpmdError: when orbax is missing, there is no array, or `path` exists and `overwrite` is False.
    """
    orbax()
    path = os.path.abspath(os.fspath(path))
    if _exists(path) and not overwrite:
        raise MpmdError(f"{path} exists; save to another folder, or with overwrite=True")
    arrays = {n: jax.random.key_data(x) if _is_key(x) else x for n, x in _named(tree).items()}
    arrays = {n: np.asarray(x) if isinstance(x, Pieces) else x for n, x in arrays.items()}
    if not arrays:
        raise MpmdError("there is no array to save")
    with _checkpointer() as checkpointer:
        checkpointer.save(path, arrays, force=overwrite)


def restore(
    path: str | os.PathLike[str], like: Any, argnums: int | Sequence[int] = 0
) -> Any:
    """What was saved at `path`, each array where `like` has it.

    Args:
        path: a folder that `save` wrote.
        like: a pytree of the saved structure with arrays or `jax.ShapeDtypeStruct`s, whose shardings count
            and whose other leaves are kept; or a compiled program, for its arguments at `argnums`.
        argnums: see `abstract`; only for a compiled program.

    Raises:
        MpmdError: when orbax or the folder is missing, or the arrays have other names, shapes or dtypes.
    """
    ocp = orbax()
    path = os.path.abspath(os.fspath(path))
    if not os.path.isdir(path):
        raise MpmdError(f"there is no folder {path} to restore from")
    is_program = isinstance(like, Compiled)
    tree = abstract(like, argnums) if is_program else like
    wanted = _named(tree)
    with _checkpointer() as checkpointer:
        _check(wanted, _saved(checkpointer.metadata(path)), path)
        types = {name: _data_type(leaf) for name, leaf in wanted.items()}
        arguments = {
            name: ocp.ArrayRestoreArgs(sharding=t.sharding, global_shape=t.shape, dtype=t.dtype)
            if t.sharding is not None
            # Layers in unequal pieces have no sharding of the whole: the program takes them from the host.
            else ocp.RestoreArgs(
                restore_type=np.ndarray if is_program or isinstance(wanted[name], Pieces) else jax.Array, dtype=t.dtype
            )
            for name, t in types.items()
        }
        arrays = checkpointer.restore(path, item=types, restore_args=arguments)
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = []
    for key_path, leaf in named:
        if not is_dynamic(leaf):
            leaves.append(leaf)
            continue
        array = arrays[jax.tree_util.keystr(key_path)]
        if _is_key(leaf):
            array = jax.random.wrap_key_data(array, impl=key_implementation(leaf))
        leaves.append(put(array, leaf) if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding else array)
    return jax.tree.unflatten(structure, leaves)


def _data_type(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of the saved array for `leaf`."""
    sharding = getattr(leaf, "sharding", None)
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
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
            spec, found = _data_type(leaf), saved[name]
            if (tuple(found.shape), found.dtype) != (spec.shape, spec.dtype):
                problems.append(
                    f"{name or 'the value'} was saved as {found.dtype}{list(found.shape)}, and "
                    f"{spec.dtype}{list(spec.shape)} is wanted"
                )
    if problems:
        raise MpmdError([Diagnostic("error", p) for p in problems])
