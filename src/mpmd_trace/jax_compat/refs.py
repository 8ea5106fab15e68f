"""Mutable arrays of JAX (`jax.new_ref`)."""

from __future__ import annotations

from typing import Any

import jax
from jax._src import core

__all__ = ["array_in", "is_ref", "replace_array"]


def is_ref(x: object) -> bool:
    """Return whether `x` is a Ref, outside of all traces."""
    return isinstance(x, core.Ref) and not isinstance(x, core.Tracer) and isinstance(x._refs, core.ArrayRefImpl)


def array_in(ref: Any) -> jax.Array:
    """Return the array that a Ref has now, without a copy."""
    array: jax.Array = ref._refs._buf
    return array


def replace_array(ref: Any, array: jax.Array) -> None:
    """Let a Ref have another array, wherever that is."""
    ref._refs._buf = array
