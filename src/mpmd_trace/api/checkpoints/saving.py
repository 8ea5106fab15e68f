"""Saving models and optimizer states (with orbax)."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import jax
import numpy as np

from mpmd_trace.api.checkpoints.entries import NUMBER, in_folder
from mpmd_trace.api.checkpoints.folders import Replacement
from mpmd_trace.api.checkpoints.orbax_handler import checkpointer_of_job, orbax, working
from mpmd_trace.api.filter_jit import is_dynamic
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.stacked import check_not_deleted
from mpmd_trace.diagnostics.internal import explains_internal_errors
from mpmd_trace.diagnostics.messages import MpmdError


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
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    arrays = in_folder({name: leaf for name, leaf in leaves if is_dynamic(leaf)})
    if not arrays:
        raise MpmdError("there is no array to save")
    # A count of steps is a number before the first step, and then an array.
    arrays |= {NUMBER + name: np.asarray(leaf) for name, leaf in leaves if type(leaf) in (int, float, complex)}
    new = Replacement(path, overwrite=overwrite)
    try:
        with working(f"save to {path}", together=True), checkpointer_of_job() as checkpointer:
            checkpointer.save(new.folder, arrays)
    except MpmdError:
        job = current()
        if job is None or job.process == 0:
            with contextlib.suppress(OSError):
                new.clear()
        raise
    new.put()
