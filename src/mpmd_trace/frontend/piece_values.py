"""Values in pieces: what they are made of, and how they are cut and computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from mpmd_trace.frontend.pieces import Cuts, Rows, rows
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Equation

__all__ = [
    "Form",
    "Pieces",
    "Zero",
    "as_array",
    "combined",
    "cut_rows",
    "cuts_inside",
    "flat_arrays",
    "one_piece",
    "resized",
    "rows_of",
    "sizes",
]


class Zero:
    """Rows that are known to be zero, as in the derivative of a slice."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    def array(self) -> Any:
        return lax.full(self.aval.shape, 0, self.aval.dtype)


class Pieces:
    """An array whose rows `bounds[k]` to `bounds[k + 1] - 1` are `parts[k]`; `name` is what is told of it."""

    __slots__ = ("name", "parts", "rows")

    def __init__(self, rows: Rows, parts: Sequence[Any], name: str | None = None) -> None:
        self.rows = rows
        self.parts = list(parts)
        self.name = name

    @property
    def axis(self) -> int:
        """The axis of the rows."""
        return self.rows.axis

    @property
    def bounds(self) -> tuple[int, ...]:
        return self.rows.bounds

    @property
    def arrays(self) -> list[Any]:
        """The parts, with zeros where nothing else is."""
        return [as_array(part) for part in self.parts]


def as_array(part: Any) -> Any:
    """A part as an array."""
    return part.array() if isinstance(part, Zero) else part


def rows_of(cuts: Cuts, atom: Any) -> Rows | None:
    """How a value is cut, None: not at all."""
    cut = cuts.get(atom)
    return None if cut is None else rows(cut, atom.aval)


def sizes(bounds: Sequence[int]) -> list[int]:
    """How many rows are between one bound and the next."""
    return [b - a for a, b in itertools.pairwise(bounds)]


def resized(aval: Any, axis: int, size: int) -> Any:
    """A type with another number of rows."""
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis + 1 :]))


def flat_arrays(values: Sequence[Any]) -> list[Any]:
    """All arrays, piece by piece."""
    return [a for v in values for a in (v.arrays if isinstance(v, Pieces) else [v])]


class Form:
    """The form of some values: takes them apart into arrays, and puts them together again."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._forms = [(v.rows, v.name) if isinstance(v, Pieces) else None for v in values]

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        fill = iter(arrays)
        return [
            next(fill) if form is None else Pieces(form[0], list(itertools.islice(fill, len(form[0].pairs))), form[1])
            for form in self._forms
        ]


def cuts_inside(source: Any, axis: int, start: int, stop: int) -> list[int]:
    """Where rows `start` to `stop` of `source` are cut."""
    bounds = source.bounds if isinstance(source, Pieces) and source.axis == axis else ()
    return [0, *(b - start for b in bounds if start < b < stop), stop - start]


def cut_rows(value: Any, axis: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of a value, whose pieces are cut along this axis if it has some."""
    if not isinstance(value, Pieces):
        return value if (start, stop) == (0, value.shape[axis]) else lax.slice_in_dim(value, start, stop, axis=axis)
    found = []
    for part, a, b in zip(value.parts, value.bounds, value.bounds[1:], strict=False):
        lower, upper = max(a, start), min(b, stop)
        if lower < upper:
            is_all = (lower, upper) == (a, b)
            found.append(part if is_all and lower == start and upper == stop else as_array(part))
            if not is_all:
                found[-1] = lax.slice_in_dim(found[-1], lower - a, upper - a, axis=axis)
    if len(found) == 1:
        return found[0]
    return lax.concatenate(found, axis) if found else lax.slice_in_dim(as_array(value.parts[0]), 0, 0, axis=axis)


def combined(op: str, parts: Sequence[Any]) -> Any:
    """The sum, maximum, ... of some parts."""
    ops: dict[str, Callable[[Any, Any], Any]] = {
        "add": lax.add,
        "max": lax.max,
        "min": lax.min,
        "mul": lax.mul,
        "and": lax.bitwise_and,
        "or": lax.bitwise_or,
    }
    whole = parts[0]
    for part in parts[1:]:
        whole = ops[op](whole, part)
    return whole


#: Ops that make zeros of zeros.
_KEEP_ZEROS = frozenset({"neg", "copy", "reshape", "transpose", "squeeze", "reduce_sum", "slice", "reduce_precision"})


def one_piece(eqn: Equation, args: list[Any], axis: int, start: int, size: int) -> list[Any]:
    """The results of `eqn` for one piece of its operands: rows `start` to `start + size` along `axis`."""
    name = eqn.primitive.name
    zeros = [isinstance(a, Zero) for a in args]
    aval = resized(eqn.outvars[0].aval, axis, size)
    if name in ("add", "add_any") and any(zeros):
        return [args[1] if zeros[0] else args[0]]
    if zeros[:1] == [True] and (name in _KEEP_ZEROS or name == "convert_element_type"):
        return [Zero(aval)]
    args = [as_array(a) for a in args]
    params = dict(eqn.params)
    match name:
        case "iota":
            if params["dimension"] == axis:
                numbers = lax.broadcasted_iota(params["dtype"], aval.shape, axis)
                return [numbers + jnp.asarray(start, params["dtype"])]
            params["shape"] = aval.shape
        case "broadcast_in_dim":
            params["shape"] = aval.shape
        case "reshape":
            params["new_sizes"] = aval.shape
        case "slice":
            limits = list(params["limit_indices"])
            limits[axis] = args[0].shape[axis]
            params["limit_indices"] = tuple(limits)
    return tracing.rebind(eqn, args, params)
