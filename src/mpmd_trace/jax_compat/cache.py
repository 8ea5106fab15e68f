"""JAX's persistent compilation cache, for entries of our own."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import warnings
from typing import Any

import jax
from jax._src import compilation_cache, config
from jax._src import path as paths


def is_used(backend: Any) -> bool:
    """Return whether `jax_compilation_cache_dir` names a cache that is in use, and not everybody can write to."""
    if not (compilation_cache.is_persistent_cache_enabled() and compilation_cache.is_cache_used(backend)):
        return False
    folder = str(config.compilation_cache_dir.value)
    try:
        status = os.stat(folder)
    except OSError:  # JAX is going to create it, or it is no folder of this system
        return True
    return _is_ours(folder, status.st_uid, status.st_mode)


@functools.cache
def _is_ours(folder: str, owner: int, mode: int) -> bool:
    """Return whether only its owner (us or root) can write to a folder, so that its entries may be run; else warn."""
    if not hasattr(os, "getuid"):
        return True
    if owner not in (os.getuid(), 0):
        problem = f"belongs to another user (number {owner})"
    elif mode & stat.S_IWOTH:
        problem = "can be written to by all users"
    else:
        return True
    warnings.warn(
        f"the compilation cache {folder} {problem}, and its entries are code, so mpmd_trace does not use it for its "
        "programs; take a folder of your own (jax_compilation_cache_dir), with chmod o-w",
        stacklevel=2,
    )
    return False


def get(key: str, backend: Any) -> bytes | None:
    """Return an entry, or None."""
    try:
        cache = compilation_cache._get_cache(backend)
        return None if cache is None else cache.get(key)
    except Exception as error:  # of any file system
        _warn_or_raise(error, f"read the entry {key} of")
        return None


def put(key: str, data: bytes, seconds: float, backend: Any) -> None:
    """Add an entry that took so many seconds to make, if JAX's settings say that time and size are worth it."""
    min_seconds = config.persistent_cache_min_compile_time_secs.value
    if seconds < min_seconds or len(data) < config.persistent_cache_min_entry_size_bytes.value or jax.process_index():
        return
    try:
        cache = compilation_cache._get_cache(backend)
        if cache is not None:
            cache.put(key, data)
    except Exception as error:  # of any file system
        _warn_or_raise(error, f"write the entry {key} to")


def drop(key: str) -> None:
    """Remove an entry that is damaged: `put` leaves what is there as it is."""
    with contextlib.suppress(Exception):  # of any file system
        (paths.Path(str(config.compilation_cache_dir.value)) / f"{key}-cache").unlink()


def _warn_or_raise(error: Exception, what: str) -> None:
    """Warn of an error, since a failing cache costs only time; raise it if `jax_raise_persistent_cache_errors`."""
    if config.raise_persistent_cache_errors.value:
        raise error
    warnings.warn(f"cannot {what} the persistent compilation cache: {type(error).__name__}: {error}", stacklevel=3)
