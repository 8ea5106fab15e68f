"""Values in pieces: what they are made of, and how they are cut and computed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mpmd_trace.frontend.stacked.analysis import Rows
from mpmd_trace.frontend.stacked.links import groups_along
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation


@dataclasses.dataclass(frozen=True)
class Zero:
    """Rows that are known to be zero, as in the derivative of a slice."""

    aval: Any


@jax.tree_util.register_pytree_node_class
class Pieces:
    """An array whose rows `bounds[k]` to `bounds[k + 1] - 1` are `parts[k]`; `name` describes it in messages."""

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

    def of(self, parts: Sequence[Any]) -> Pieces:
        """Return pieces like these."""
        return Pieces(self.rows, parts, self.name)

    def along(self, axis: int) -> Pieces:
        """Return these parts as pieces along another axis."""
        return Pieces(self.rows.along(axis), self.parts, self.name)

    def tree_flatten(self) -> tuple[list[Any], _Form]:
        return self.parts, _Form(self.rows, self.name)

    @staticmethod
    def tree_unflatten(form: _Form, parts: Sequence[Any]) -> Pieces:
        return Pieces(form.rows, parts, form.name)


@dataclasses.dataclass(frozen=True)
class _Form:
    """Hold the static part of `Pieces` as a pytree; names do not count in comparisons."""

    rows: Rows
    name: str | None = dataclasses.field(compare=False)


def rows_in(value: Any) -> Rows | None:
    """Return how a value is cut, None for one that is whole."""
    return value.rows if isinstance(value, Pieces) else None


def solid(values: Sequence[Any]) -> list[Any]:
    """Return values as pytrees of arrays."""
    return [v.of(v.arrays) if isinstance(v, Pieces) else v for v in values]


def traced(function: Callable[..., Any], values: Sequence[Any]) -> tuple[Closed, Any]:
    """Return the jaxpr of a function of such values, and the structure of its results."""
    types = jax.tree.map(lambda x: tracing.struct(jax.typeof(x)), values)
    closed, results = jax.make_jaxpr(function, return_shape=True)(*types)
    return closed, jax.tree.structure(results)


def as_array(part: Any) -> Any:
    """Return a part as an array."""
    return lax.full(part.aval.shape, 0, part.aval.dtype) if isinstance(part, Zero) else part


def resized(aval: Any, axis: int, size: int) -> Any:
    """Return a type with another number of rows."""
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis + 1 :]))


def cut_rows(value: Any, axis: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of a value, whose pieces are cut along this axis if it has some."""
    if not isinstance(value, Pieces):
        return value if (start, stop) == (0, value.shape[axis]) else lax.slice_in_dim(value, start, stop, axis=axis)
    parts = zip(value.parts, value.rows.pairs, strict=True)
    inside = [(part, a, b) for part, (a, b) in parts if max(a, start) < min(b, stop)]
    if [(a, b) for _, a, b in inside] == [(start, stop)]:
        return inside[0][0]
    cut_parts = [cut_rows(as_array(part), axis, max(a, start) - a, min(b, stop) - a) for part, a, b in inside]
    if len(cut_parts) == 1:
        return cut_parts[0]
    return (
        lax.concatenate(cut_parts, axis) if cut_parts else lax.slice_in_dim(as_array(value.parts[0]), 0, 0, axis=axis)
    )


def taken_rows(
    source: Any, axis: int, start: int, stop: int, known: Rows | None, finished: Callable[[Any], Any] | None = None
) -> Any:
    """Rows `start` to `stop` of `source`, cut as `known` says or else as the source is, each piece `finished`."""
    own = source.bounds if isinstance(source, Pieces) and source.axis == axis else ()
    cuts = (0, *(b - start for b in own if start < b < stop), stop - start) if known is None else known.bounds
    parts = []
    for a, b in itertools.pairwise(cuts):
        part = cut_rows(source, axis, start + a, start + b)
        parts.append(part if finished is None else finished(part))
    name = source.name if isinstance(source, Pieces) else None
    return parts[0] if len(parts) == 1 else Pieces(Rows(axis, cuts), parts, name)


#: Ops that make zeros of zeros.
_KEEP_ZEROS = frozenset({"neg", "copy", "reshape", "transpose", "squeeze", "reduce_sum", "slice", "reduce_precision"})


def one_piece(eqn: Equation, args: list[Any], axis: int, start: int, stop: int) -> list[Any]:
    """Return the results of `eqn` for one piece of its operands: rows `start` to `stop` along `axis`."""
    name = eqn.primitive.name
    zeros = [isinstance(a, Zero) for a in args]
    aval = resized(eqn.outvars[0].aval, axis, stop - start)
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
        case "gather" | "dynamic_slice":
            whole = zip(params["slice_sizes"], eqn.invars[0].aval.shape, args[0].shape, strict=True)
            params["slice_sizes"] = tuple(own if size == length else size for size, length, own in whole)
        case "conv_general_dilated":
            for groups, count in groups_along(eqn, axis).items():
                params[groups] = count * (stop - start) // eqn.outvars[0].aval.shape[axis]
        case "slice":
            limits = list(params["limit_indices"])
            limits[axis] = args[0].shape[axis]
            params["limit_indices"] = tuple(limits)
    return tracing.rebind(eqn, args, params)
