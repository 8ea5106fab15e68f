"""Layouts of arrays in memory: which one an array has, which one is the default, and their text.

A layout is the order of the dimensions and, on some platforms, tiles.  The text is that of the attribute
`mhlo.layout_mode`, minor dimension first: `{0,1}`, `{1,0:T(8,128)}`.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import numpy as np
from jax._src import config, core
from jax.experimental.layout import Format as Format
from jax.experimental.layout import Layout
from jax.sharding import NamedSharding, SingleDeviceSharding
from jaxlib import _jax

from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.tracing import is_key, key_implementation


def has_layout(x: Any) -> bool:
    """Return whether `x` is a `Format` that asks for a certain layout; `Layout.AUTO` leaves the choice."""
    return isinstance(x, Format) and isinstance(x.layout, Layout)


def to_text(layout: Layout, dtype: Any) -> str:
    """Return `{0,1}` for `Layout((1, 0))`."""
    return str(layout._to_xla_layout(dtype))


def from_text(text: str) -> Layout | None:
    """Return the layout of such a text; None for `default` and `auto`, and for what is none."""
    match = re.fullmatch(r"\{([\d,]*)(?::T((?:\([\d,]+\))+))?\}", text)
    if match is None:
        return None
    order = [int(n) for n in match[1].split(",") if n]
    tiles = re.findall(r"\(([\d,]+)\)", match[2] or "")
    tiling = tuple(tuple(map(int, tile.split(","))) for tile in tiles)
    return Layout(tuple(reversed(order)), tiling or None)


def layout_of(x: Any) -> Any:
    """Return the layout of an array as a cheap object that can only be compared; None where the platform has none."""
    try:
        return x._pjrt_layout
    except (AttributeError, _jax.JaxRuntimeError):
        return None


def default_layout(shape: tuple[int, ...], dtype: Any, sharding: jax.sharding.Sharding) -> Layout:
    """Return the layout that arrays have by default."""
    plain = Layout(tuple(range(len(shape))))
    device = next(iter(sharding.device_set))
    try:
        layout = device.client.get_default_layout(dtype, sharding.shard_shape(shape), device)
        return Layout.from_pjrt_layout(layout)
    except _jax.JaxRuntimeError:
        return plain


def padded_bytes(spec: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of a device that an array of this type takes, with the padding of the tiles of its layout."""
    sharding: Any = spec.sharding
    shape = sharding.shard_shape(spec.shape)
    layout = full_format(spec).layout
    sizes = [shape[dim] for dim in layout.major_to_minor]
    tile = layout.tiling[0] if layout.tiling else ()
    for back, size in enumerate(reversed(tile), 1):
        if back <= len(sizes):
            sizes[-back] = -(-sizes[-back] // size) * size
        else:
            sizes.insert(0, size)
    count: int = math.prod(sizes)
    return count * int(spec.dtype.itemsize)


def same_layout(wanted: Layout, actual: Any) -> bool:
    """Return whether the layout `actual` (see `layout_of`) is the wanted one; tiles count if that has some."""
    if actual is None:
        return True
    theirs = Layout.from_pjrt_layout(actual)
    if not wanted.tiling:
        return bool(wanted.major_to_minor == theirs.major_to_minor)
    return bool(wanted == theirs)


def full_format(spec: jax.ShapeDtypeStruct) -> Format:
    """Sharding and layout of arrays like `spec`, the layout spelled out where it is the default."""
    assert spec.sharding is not None
    layout = default_layout(spec.shape, spec.dtype, spec.sharding)
    if has_layout(spec.format):
        wanted = spec.format.layout
        layout = wanted if wanted.tiling else layout.update(major_to_minor=wanted.major_to_minor)
    return Format(layout, spec.sharding)


def place_of(spec: jax.ShapeDtypeStruct) -> Format | jax.sharding.Sharding | None:
    """Return the sharding of `spec`, with the layout if it says one."""
    return spec.format if has_layout(spec.format) else spec.sharding


def put(x: Any, to: jax.ShapeDtypeStruct, may_alias: bool | None = None) -> jax.Array:
    """Return `x` with the sharding, memory and layout of `to`, from wherever it is.

    Where other processes have devices of the sharding, all of them have the same `x`, and each puts its own part.
    """
    sharding = to.sharding
    assert sharding is not None
    if not sharding.is_fully_addressable:
        return _put_own_part(x, to)
    current = layout_of(x)
    if current is not None and x.ndim > 1:
        usual = default_layout(x.shape, x.dtype, x.sharding)
        if not same_layout(usual, current):
            # Copies keep the layout, and JAX can change it only in place.
            x = jax.device_put(x, Format(usual, x.sharding))
    placed: jax.Array
    if may_alias is False and isinstance(x, np.ndarray):
        placed = _put_numpy(x, to)
    else:
        placed = jax.device_put(x, sharding, may_alias=may_alias)
    if not isinstance(placed, jax.core.Tracer) and has_layout(to.format):
        placed = jax.device_put(placed, to.format)
    return placed


def _put_numpy(x: np.ndarray[Any, Any], to: jax.ShapeDtypeStruct) -> jax.Array:
    """Return a copy as `jax.device_put` makes it; on CPUs of what `x` is at the time of the call.

    A first step gets hundreds of arrays, and most of what `jax.device_put` does is finding out what is known here.
    """
    sharding = to.sharding
    assert sharding is not None
    device = next(iter(sharding.device_set))
    is_plain = isinstance(sharding, NamedSharding) and not sharding.spec.unreduced and x.dtype == to.dtype
    if device.platform != "cpu" or not is_plain or not core.trace_state_clean():
        placed: jax.Array = jax.device_put(_read_now(x, device), sharding, may_alias=False)
        return placed
    devices, parts, once = sharding._addressable_device_assignment, [x], True
    if len(devices) > 1:
        # XLA's client cannot read the parts of an empty array within the call.
        once = math.prod(sharding.shard_shape(x.shape)) * len(devices) == x.size > 0
        # What several devices have, its threads copy, from a copy of ours that they read for as long as they like.
        x = x if once else x.copy()
        parts = [x[index] for index in sharding.addressable_devices_indices_map(x.shape).values()]
    aval = core.update_aval_with_sharding(core.ShapedArray(x.shape, x.dtype), sharding)
    with config.explicit_device_put_scope():
        result: jax.Array = _jax.batched_device_put(
            aval, sharding, parts, list(devices), force_copy=once, enable_x64=True
        )
        return result


def _read_now(x: Any, device: jax.Device) -> Any:
    """Return what `jax.device_put` may read later: the caller may change an array of NumPy as soon as it has it back.

    JAX copies it into the memory of a CPU when it comes to it.  Other devices get it as under `jax.jit`, without a
    second copy of large parameters.
    """
    return x.copy() if device.platform == "cpu" else x


def _put_own_part(x: Any, to: jax.ShapeDtypeStruct) -> jax.Array:
    sharding = to.sharding
    assert sharding is not None
    if is_key(x):
        data = jax.random.key_data(x)
        spec = jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)
        return jax.random.wrap_key_data(_put_own_part(data, spec), impl=jax.random.key_impl(x))
    if isinstance(x, jax.Array) and x.sharding.device_set == sharding.device_set:
        moved: jax.Array = jax.device_put(x, sharding)
        return moved
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        raise MpmdError(
            f"an array of {x.sharding} cannot be put on the devices of other processes; all of them may have it with "
            "mpmd_trace.fetch"
        )
    with jax.enable_x64(True):
        value = np.asarray(x).astype(to.dtype, copy=False)
        kind = sharding.memory_kind
        blocks = [
            jax.device_put(
                _read_now(value[index], device), SingleDeviceSharding(device, memory_kind=kind), may_alias=False
            )
            for device, index in sharding.addressable_devices_indices_map(value.shape).items()
        ]
        return jax.make_array_from_single_device_arrays(value.shape, sharding, blocks, dtype=value.dtype)


def elsewhere(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """Return the array like `spec` in a process that has none of its devices."""
    assert spec.sharding is not None
    if is_key(spec):
        data = jax.eval_shape(jax.random.key_data, spec)
        inner = jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=spec.sharding)
        return jax.random.wrap_key_data(elsewhere(inner), impl=key_implementation(spec))
    return jax.make_array_from_single_device_arrays(spec.shape, spec.sharding, [], dtype=spec.dtype)
