"""Entries of a checkpoint for arrays that orbax does not take as they are: layers in pieces, arrays without elements.

In a job of several processes none has all pieces of an array, so each is written on its own, as
`rows 0:3 of axis 0 of NAME`.  Of what has no elements the type is written: `empty float32[3,0] NAME`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.backend.distribution.job import current
from mpmd_trace.backend.stacked import Pieces, PiecesType
from mpmd_trace.jax_compat.tracing import is_key

#: What the names of saved numbers begin with, which are not arrays.
NUMBER = "number "
_ROWS = re.compile(r"rows (\d+):(\d+) of axis (\d+) of (.*)", re.DOTALL)
_EMPTY = re.compile(r"empty (\w+)\[([\d,]+)\] (.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Saved:
    """An array in a folder that is in several parts, or has no elements.

    Attributes:
        shape: of the whole array.
        dtype: likewise.
        entries: the names of its parts in the folder, in order.
        axis: along which they are put together.
        bounds: where it is cut along that; none for an array without elements.
    """

    shape: tuple[int, ...]
    dtype: Any
    entries: tuple[str, ...]
    axis: int = 0
    bounds: tuple[int, ...] = ()

    def entries_of(self, rows: Sequence[tuple[int, int]]) -> list[str]:
        """Return the names of the parts that have any of these rows, each from one to another one."""
        if not self.bounds:  # without elements: nothing is read
            return []
        return [
            entry
            for entry, (a, b) in zip(self.entries, itertools.pairwise(self.bounds), strict=True)
            if any(max(a, start) < min(b, stop) for start, stop in rows)
        ]

    def part(self, entries: Mapping[str, Any], box: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
        """Return a part of the array, of the entries that have something of it; `box`: its bounds along each axis."""
        if not self.bounds:
            return np.zeros([b - a for a, b in box], self.dtype)
        at = [slice(a, b) for a, b in box]
        rows, parts = box[self.axis], []
        for name in self.entries_of([rows]):
            first = self.bounds[self.entries.index(name)]
            at[self.axis] = slice(max(0, rows[0] - first), rows[1] - first)
            parts.append(np.asarray(entries[name])[tuple(at)])
        return np.concatenate(parts, self.axis)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Gives slices of a `Saved` from the entries that were read; those that were not asked for are missing."""

    saved: Saved
    entries: Mapping[str, Any]

    def placed(self, start: int) -> jax.Array | None:
        """Return the part that begins at `start`, if it is on its devices."""
        array = self.entries.get(dict(zip(self.saved.bounds, self.saved.entries, strict=False)).get(start, ""))
        return array if isinstance(array, jax.Array) else None

    def __getitem__(self, index: Sequence[slice]) -> np.ndarray[Any, Any]:
        return self.saved.part(self.entries, [(one.start, one.stop) for one in index])

    @property
    def whole(self) -> np.ndarray[Any, Any]:
        return self.saved.part(self.entries, [(0, size) for size in self.saved.shape])


def is_here(spec: Any) -> bool:
    """Return whether this process has devices of an array; it has all of one without a sharding."""
    shardings = [part.sharding for part in (spec.parts if isinstance(spec, PiecesType) else [spec])]
    return any(one is None or one.addressable_devices for one in shardings)


def rows_here(spec: Any, axis: int) -> list[tuple[int, int]]:
    """Return the rows along an axis that this process has of an array, each from one to another one."""
    is_cut = isinstance(spec, PiecesType)
    result = []
    for start, part in zip(spec.bounds, spec.parts, strict=False) if is_cut else [(0, spec)]:
        if part.sharding is None:
            return [(0, spec.shape[axis])]
        first = start if is_cut and spec.axis == axis else 0
        for index in part.sharding.addressable_devices_indices_map(tuple(part.shape)).values():
            a, b, _ = index[axis].indices(part.shape[axis])
            result.append((a + first, b + first))
    return result


def in_folder(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return what orbax writes for these arrays: typed keys are their data."""
    result: dict[str, Any] = {}
    for name, x in arrays.items():
        parts = [jax.random.key_data(p) if is_key(p) else p for p in (x.parts if isinstance(x, Pieces) else [x])]
        if not np.prod(x.shape):
            spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
            spec = jax.eval_shape(jax.random.key_data, spec) if is_key(x) else spec
            shape = ",".join(map(str, spec.shape))
            result[f"empty {np.dtype(spec.dtype).name}[{shape}] {name}"] = np.zeros(1, np.int8)
        elif not isinstance(x, Pieces):
            result[name] = np.asarray(parts[0]) if isinstance(parts[0], np.generic) else parts[0]
        elif current() is None:
            result[name] = np.concatenate([np.asarray(part) for part in parts], x.axis)
        else:
            rows = [f"rows {a}:{b} of axis {x.axis} of {name}" for a, b in itertools.pairwise(x.bounds)]
            result |= zip(rows, parts, strict=True)
    return result


def saved_arrays(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays in a folder by their names: a `Saved`, or what `entries` has of it.

    Args:
        entries: shape and dtype of what orbax has written, by its name.
    """
    result: dict[str, Any] = {}
    rows: dict[str, list[tuple[int, int, int, str]]] = {}
    for entry, of in entries.items():
        if (match := _ROWS.fullmatch(entry)) is not None:
            a, b, axis = map(int, match.groups()[:3])
            rows.setdefault(match[4], []).append((a, b, axis, entry))
        elif (match := _EMPTY.fullmatch(entry)) is not None:
            shape = tuple(map(int, match[2].split(",")))
            result[match[3]] = Saved(shape, jnp.dtype(match[1]), (entry,))
        else:
            result[entry] = of
    for name, parts in rows.items():
        parts.sort()
        (_, last, axis, first) = parts[-1]
        of = entries[first].shape
        whole = (*of[:axis], last, *of[axis + 1 :])
        bounds = (*(part[0] for part in parts), last)
        result[name] = Saved(whole, entries[first].dtype, tuple(part[3] for part in parts), axis, bounds)
    return result
