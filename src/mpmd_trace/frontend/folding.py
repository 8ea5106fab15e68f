"""Values of a traced program that are known while it is rewritten: loop indices, and stacked slices.

An unrolled loop indexes arrays with its counter and stacks its results. Knowing the counter gives
each iteration a plain slice; keeping a stack as a list of its slices gives a later loop (such as the
derivative of the first) each slice without concatenating them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mpmd_trace.jax_compat import lowering, tracing


class Known:
    """An integer or boolean array whose value is known."""

    __slots__ = ("value",)

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self.value = value


class Stack:
    """Arrays of one shape, to be stacked along a new first axis when somebody needs the whole.

    `repeats`: for how many arrays the last one stands.  `mpmd-repeat-calls` puts these in its place; no pass before it
    looks into the stack, since there is a barrier behind.
    """

    __slots__ = ("_whole", "parts", "repeats")

    def __init__(self, parts: Sequence[Any], repeats: int = 1) -> None:
        self.parts = list(parts)
        self.repeats = repeats
        self._whole: Any = None

    def whole(self) -> Any:
        """Return the stacked array, made once."""
        if self._whole is None:
            arrays = [jnp.asarray(whole(p)) for p in self.parts]
            if self.repeats == 1:
                self._whole = lax.concatenate([lax.expand_dims(a, (0,)) for a in arrays], 0)
            else:
                *first, last = arrays
                parts = [*(lax.expand_dims(a, (0,)) for a in first), lax.broadcast(last, (self.repeats,))]
                self._whole = lax.optimization_barrier(lax.concatenate(parts, 0))
        return self._whole


def whole(value: Any) -> Any:
    """Return `value` as an array of the trace."""
    if isinstance(value, Stack):
        return value.whole()
    if not isinstance(value, Known):
        return value
    known = value.value
    is_range = known.ndim == 1 and np.array_equal(known, np.arange(known.size))
    return lax.iota(known.dtype, known.size) if is_range else known


def slice_at(value: Any, index: int) -> Any:
    """Return `value[index]` along the first axis."""
    if isinstance(value, Stack):
        return value.parts[index] if value.repeats == 1 else lowering.slice_at(value.whole(), index)
    if isinstance(value, Known):
        return Known(np.asarray(value.value[index]))
    return lowering.slice_at(value, index)


_MOST_ELEMENTS = 4096


#: NumPy's functions for those that mean the same there: nothing is compiled for them.
# fmt: off
_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "max": np.maximum, "min": np.minimum,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": lambda which, *cases: np.select([which == i for i in range(len(cases))], cases),
}
# fmt: on
# Cheap, pure, and what index arithmetic is made of.
_MOVING = frozenset({"convert_element_type", "broadcast_in_dim", "squeeze", "reshape", "slice", "copy"})
_FOLDABLE = _MOVING | _NUMPY.keys() | {"sign", "rem", "div", "iota"}


def _is_index(aval: tracing.Aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and getattr(dtype, "kind", "") in "iub" and aval.size <= _MOST_ELEMENTS


def _known_input(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, Known):
        return value.value
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return np.asarray(value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iub":
        return value
    return None


def fold(eqn: tracing.Equation, args: Sequence[Any]) -> list[Any] | None:
    """Return the results of `eqn` as `Known`s, when its operands are known integers; None otherwise."""
    name = eqn.primitive.name
    if name not in _FOLDABLE:
        return None
    if not all(_is_index(v.aval) for v in eqn.outvars) or (name == "iota" and len(eqn.outvars[0].aval.shape) != 1):
        return None
    values: list[Any] = []
    for atom, arg in zip(eqn.invars, args, strict=True):
        value = _known_input(arg)
        if value is None:
            return None
        values.append(value.astype(atom.aval.dtype))
    result = _computed(name, eqn.outvars[0].aval, values)
    if result is not None:
        return [Known(result)]
    with jax.ensure_compile_time_eval():
        results = tracing.rebind(eqn, values)
    return [Known(np.asarray(r)) for r in results]


def _computed(name: str, aval: tracing.Aval, values: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """Return the result of this type, by NumPy; None where that may be another one."""
    if name in _NUMPY:
        with np.errstate(over="ignore"):  # integers wrap around
            return np.asarray(_NUMPY[name](*values), aval.dtype)
    if name == "iota":
        return np.arange(aval.size, dtype=aval.dtype)
    if name in ("squeeze", "reshape", "convert_element_type", "copy"):
        return np.array(values[0]).astype(aval.dtype).reshape(aval.shape)
    return None


def as_known(value: Any, aval: tracing.Aval) -> Any:
    """Return `value`, wrapped as known when it is an integer literal of the program."""
    if isinstance(value, (Known, Stack)) or not _is_index(aval):
        return value
    known = _known_input(value)
    return value if known is None else Known(known.astype(aval.dtype))


RESHAPING = frozenset({"squeeze", "reshape", "slice", "broadcast_in_dim"})


def sliced(eqn: tracing.Equation, args: Sequence[Any], moved: bool = False) -> list[Any] | None:
    """Return the result of a `dynamic_slice` at a known place as a plain slice; None for other equations.

    With `moved`, reshapes of such slices count too.
    """
    name = eqn.primitive.name
    if moved and name in RESHAPING:
        return tracing.rebind(eqn, [whole(a) for a in args])
    first = starts_of(eqn, args)
    if first is None:
        return None
    limits = [a + b for a, b in zip(first, eqn.outvars[0].aval.shape, strict=True)]
    return [lax.slice(whole(args[0]), first, limits)]


def starts_of(eqn: tracing.Equation, args: Sequence[Any]) -> list[int] | None:
    """Return where a `dynamic_slice` at a known place starts; None for other equations."""
    if eqn.primitive.name != "dynamic_slice":
        return None
    starts = [_known_input(a) for a in args[1:]]
    shape, sizes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if len(starts) != len(shape):
        return None
    first: list[int] = []
    for start, dimension, size in zip(starts, shape, sizes, strict=True):
        if start is None:
            return None
        first.append(min(max(int(start), 0), dimension - size))
    return first
