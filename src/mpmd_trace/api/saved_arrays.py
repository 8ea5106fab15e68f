"""How arrays are written that orbax does not take as they are: layers in pieces, and arrays without elements.

In a job of several processes nobody has all pieces of an array, so each is written on its own, as
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
from mpmd_trace.backend.stacked import Pieces
from mpmd_trace.jax_compat.tracing import is_key

_ROWS = re.compile(r"rows (\d+):(\d+) of axis (\d+) of (.*)", re.DOTALL)
_EMPTY = re.compile(r"empty (\w+)\[([\d,]+)\] (.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Saved:
    """An array in a folder.

    Attributes:
        shape: of the whole array.
        dtype: likewise.
        entries: the names of its parts in the folder, in order.
        axis: along which they are put together.
        bounds: where it is cut along that, if it has several parts.
    """

    shape: tuple[int, ...]
    dtype: Any
    entries: tuple[str, ...]
    axis: int = 0
    bounds: tuple[int, ...] = ()

    def entries_of(self, rows: Sequence[tuple[int, int]]) -> list[str]:
        """Return the names of the parts that have any of these rows, each from one to another one."""
        if not self.bounds:
            return list(self.entries) if rows else []
        return [
            entry
            for entry, (a, b) in zip(self.entries, itertools.pairwise(self.bounds), strict=True)
            if any(max(a, start) < min(b, stop) for start, stop in rows)
        ]

    def part(self, entries: Mapping[str, Any], box: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
        """Return a part of the array, of the entries that have something of it; `box`: its bounds along each axis."""
        if not np.prod(self.shape):
            return np.zeros([b - a for a, b in box], self.dtype)
        at = [slice(a, b) for a, b in box]
        if not self.bounds:
            return np.asarray(entries[self.entries[0]])[tuple(at)]
        rows, parts = box[self.axis], []
        for name in self.entries_of([rows]):
            first = self.bounds[self.entries.index(name)]
            at[self.axis] = slice(max(0, rows[0] - first), rows[1] - first)
            parts.append(np.asarray(entries[name])[tuple(at)])
        return np.concatenate(parts, self.axis)

    def whole(self, entries: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the array of what was read."""
        return self.part(entries, [(0, size) for size in self.shape])


def in_folder(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return what orbax writes for these arrays: typed keys are their data."""
    result: dict[str, Any] = {}
    for name, x in arrays.items():
        parts = [jax.random.key_data(part) if is_key(part) else part for part in (x.parts if _is_cut(x) else [x])]
        if not _size(x):
            spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
            spec = jax.eval_shape(jax.random.key_data, spec) if is_key(x) else spec
            shape = ",".join(map(str, spec.shape))
            result[f"empty {np.dtype(spec.dtype).name}[{shape}] {name}"] = np.zeros(1, np.int8)
        elif not _is_cut(x):
            result[name] = np.asarray(parts[0]) if isinstance(parts[0], np.generic) else parts[0]
        elif current() is None:
            result[name] = np.concatenate([np.asarray(part) for part in parts], x.axis)
        else:
            result |= zip(rows_of(name, x), parts, strict=True)
    return result


def rows_of(name: str, x: Any) -> list[str]:
    """Return the names of the entries of an array in pieces."""
    return [f"rows {a}:{b} of axis {x.axis} of {name}" for a, b in itertools.pairwise(x.bounds)]


def saved_arrays(entries: Mapping[str, Any]) -> dict[str, Saved]:
    """Return the arrays in a folder by their names.

    Args:
        entries: shape and dtype of what orbax has written, by its name.
    """
    result: dict[str, Saved] = {}
    rows: dict[str, list[tuple[int, int, int, str]]] = {}
    for entry, of in entries.items():
        if (match := _ROWS.fullmatch(entry)) is not None:
            a, b, axis = map(int, match.groups()[:3])
            rows.setdefault(match[4], []).append((a, b, axis, entry))
        elif (match := _EMPTY.fullmatch(entry)) is not None:
            shape = tuple(map(int, match[2].split(",")))
            result[match[3]] = Saved(shape, jnp.dtype(match[1]), (entry,))
        else:
            result[entry] = Saved(tuple(of.shape), of.dtype, (entry,))
    for name, parts in rows.items():
        parts.sort()
        (_, last, axis, first) = parts[-1]
        of = entries[first].shape
        whole = (*of[:axis], last, *of[axis + 1 :])
        bounds = (*(part[0] for part in parts), last)
        result[name] = Saved(whole, entries[first].dtype, tuple(part[3] for part in parts), axis, bounds)
    return result


def _is_cut(x: Any) -> bool:
    return isinstance(x, Pieces)


def _size(x: Any) -> int:
    return int(np.prod(x.shape))
