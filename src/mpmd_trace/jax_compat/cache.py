"""JAX's persistent compilation cache, for entries of our own."""

from __future__ import annotations

import warnings
from typing import Any

import jax
from jax._src import compilation_cache, config

__all__ = ["get", "is_used", "put"]


def is_used(backend: Any) -> bool:
    """Whether `jax_compilation_cache_dir` names a cache that is in use."""
    return compilation_cache.is_persistent_cache_enabled() and bool(compilation_cache.is_cache_used(backend))


def get(key: str, backend: Any) -> bytes | None:
    """An entry, or None."""
    try:
        cache = compilation_cache._get_cache(backend)
        return None if cache is None else cache.get(key)
    except Exception as error:  # of any file system
        _told(error, f"read the entry {key} of")
        return None


def put(key: str, data: bytes, seconds: float, backend: Any) -> None:
    """Add an entry that took so long to make, unless JAX's settings say that it is too little."""
    least = config.persistent_cache_min_compile_time_secs.value
    if seconds < least or len(data) < config.persistent_cache_min_entry_size_bytes.value or jax.process_index():
        return
    try:
        cache = compilation_cache._get_cache(backend)
        if cache is not None:
            cache.put(key, data)
    except Exception as error:  # of any file system
        _told(error, f"write the entry {key} to")


def _told(error: Exception, what: str) -> None:
    """As JAX does: a cache that fails costs time alone."""
    if config.raise_persistent_cache_errors.value:
        raise error
    warnings.warn(f"cannot {what} the persistent compilation cache: {type(error).__name__}: {error}", stacklevel=3)
