"""Saving models and optimizer states (with orbax)."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.checkpoints.entries import NUMBER, in_folder
from mpmd_trace.api.checkpoints.folders import replacing
from mpmd_trace.api.checkpoints.orbax_handler import check_storable, checkpointer_of_job, orbax, working
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.backend.stacked import check_not_deleted
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError


@explains_internal_errors
def save(path: str | os.PathLike[str], tree: Any, *, overwrite: bool = False) -> None:
    """Write the arrays of `tree` to the folder `path`.

    Only arrays and numbers are written.  The function returns when everything is on disk.  It first writes to a folder
    next to `path` (`.NAME.new-...`) and renames this folder at the end, so that `path` never has a part of a
    checkpoint.  If a process is killed meanwhile, the next call that saves to `path` removes the incomplete folder.  If
    two processes save to `path` at the same time, it has the checkpoint of the last one.  In a job of several
    processes, all of them call this, and each writes what is on its devices.

    Raises:
        MpmdError: if orbax is missing; if there is no array, or one was deleted, or is of a dtype that orbax cannot
            write; if `path` exists and `overwrite` is False, or it is no checkpoint; or if `path` cannot be written.
            An old checkpoint is kept.
        PeerError: if another process cannot write its part.
    """
    orbax()
    path = os.path.realpath(path)
    check_not_deleted(tree)
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    arrays = in_folder({name: leaf for name, leaf in leaves if is_dynamic(leaf)})
    if not arrays:
        raise MpmdError("there is no array to save")
    check_storable(arrays)
    # A count of steps is a number before the first step, and then an array.
    arrays |= {NUMBER + name: np.asarray(leaf) for name, leaf in leaves if type(leaf) in (int, float, complex)}
    with (
        replacing(path, overwrite=overwrite) as folder,
        working(f"save to {path}", together=True),
        checkpointer_of_job() as checkpointer,
    ):
        checkpointer.save(folder, arrays)
