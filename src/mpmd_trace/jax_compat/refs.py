"""Mutable arrays of JAX (`jax.new_ref`)."""

from __future__ import annotations

from typing import Any

import jax
from jax._src import array, core
from jax.sharding import SingleDeviceSharding


def is_ref(x: object) -> bool:
    """Return whether `x` is a Ref, outside of all traces."""
    return isinstance(x, core.Ref) and not isinstance(x, core.Tracer) and isinstance(x._refs, core.ArrayRefImpl)


def array_in(ref: Any) -> jax.Array:
    """Return the array that a Ref has now, without a copy.

    On one device it is as one that was not put there: JAX has made it when the Ref was.
    """
    buffer: jax.Array = ref._refs._buf
    if not isinstance(buffer.sharding, SingleDeviceSharding):
        return buffer
    arrays = [shard.data for shard in buffer.addressable_shards]
    return array.ArrayImpl(buffer.aval, buffer.sharding, arrays, committed=False, _skip_checks=True)


def replace_array(ref: Any, new: jax.Array) -> None:
    """Let a Ref have another array, wherever that is."""
    ref._refs._buf = new
