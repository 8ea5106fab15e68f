"""The numbers of a program: its arguments and results as its modules have them, and how far a module is from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mpmd_trace.api.lowered import Lowered
from mpmd_trace.api.program import Program
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.flatten_arguments import Leaf
from mpmd_trace.ir.ops import Module
from mpmd_trace_devtools.interpreter import Remembered, interpret

Array = np.ndarray[Any, np.dtype[Any]]


class Error(NamedTuple):
    """The largest difference of a result, relative to its norm, and which result that is."""

    size: float
    result: str


def difference(ours: Any, theirs: Any) -> float:
    """Return the norm of the difference, relative to that of `theirs`.

    Where both are the same infinity, or NaN, they do not differ; where only one is, they differ infinitely.
    """
    a, b = np.ravel(ours), np.ravel(theirs)
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not np.isfinite(a[differ]).all() or not np.isfinite(b[differ]).all():
        return math.inf
    norm, error = _norm(b[np.isfinite(b)]), _norm(a[differ] - b[differ])
    return error / norm if norm else error


def _norm(values: Array) -> float:
    return math.sqrt(float(np.sum(np.square(np.abs(values)))))


def on_one_device(args: Any) -> Any:
    """Return the arguments for plain `jax.jit`, which takes no arrays that are committed to different devices."""

    def one(x: Any) -> Any:
        if not isinstance(x, jax.Array) or not x.committed:
            return x
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return x.item() if x.weak_type and x.ndim == 0 else np.asarray(x)

    return jax.tree.map(one, args)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Arguments of a program and the results of plain `jax.jit`, in the order of its modules.

    results: the names of the results.
    """

    arguments: Sequence[Array]
    expected: Sequence[Array]
    results: Sequence[str]
    _remembered: Remembered = dataclasses.field(default_factory=Remembered, repr=False)

    @staticmethod
    def of(program: Program, lowered: Lowered) -> Numbers:
        """Run the step under plain `jax.jit`.  Raises `MpmdError` for programs that cannot be interpreted."""
        traced = lowered.traced
        if traced.host_callbacks:
            text = "the program calls back Python functions, and the interpreter of its modules does not"
            raise MpmdError([problem(f"{text}; take the callbacks out", program.where)])
        expected = program.arrays(program.plain()(*on_one_device(program.args)))
        given = program.arrays(program.dynamic(program.args))
        inputs, outputs = (None, None) if traced.stacks is None else (traced.stacks.inputs, traced.stacks.outputs)
        constants = [np.asarray(c) for c in traced.constants]
        return Numbers(
            [*constants, *_arrays(given, traced.inputs, inputs)],
            _arrays(expected, traced.outputs, outputs),
            traced.out_names,
        )

    def found(self, module: Module) -> list[Array]:
        """Return the results of a module, op by op.  Raises `MpmdError` where an op cannot be computed."""
        return interpret(module, self.arguments, remembered=self._remembered)

    def error(self, module: Module) -> Error:
        """Return how far the results of a module are from those of plain `jax.jit`.  Raises `MpmdError` as `found`."""
        return largest(self.found(module), self.expected, self.results)

    @property
    def tolerance(self) -> float:
        """Half of the digits of the coarsest floating-point type among arguments and results."""
        kinds = [a.dtype for a in (*self.arguments, *self.expected) if jax.numpy.issubdtype(a.dtype, np.inexact)]
        return math.sqrt(max((float(jax.numpy.finfo(kind).eps) for kind in kinds), default=1e-12))


def largest(arrays: Sequence[Array], expected: Sequence[Array], names: Sequence[str]) -> Error:
    """Return the largest difference among several arrays."""
    worst = Error(0.0, names[0] if names else "")
    for name, ours, theirs in zip(names, arrays, expected, strict=True):
        size = difference(_wide(ours), _wide(theirs))
        if size > worst.size:
            worst = Error(size, name)
    return worst


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _arrays(leaves: Sequence[Any], types: Sequence[Leaf], rows: Sequence[Any] | None) -> list[Array]:
    """Return the leaves of the user as arrays of a module: in pieces, without keys, of its types."""
    pieces: list[Any] = []
    for leaf, cut in zip(leaves, rows or [None] * len(leaves), strict=True):
        array = without_key(leaf)
        pieces += [array] if cut is None else np.split(np.asarray(array), cut.bounds[1:-1], cut.axis)
    result = []
    for piece, leaf in zip(pieces, types, strict=True):
        void = leaf.struct.dtype == jax.dtypes.float0
        dtype = np.dtype(np.bool_) if void else jax.numpy.dtype(leaf.physical[1])
        result.append(np.zeros(leaf.struct.shape, dtype) if void else np.asarray(piece).astype(dtype))
    return result


def without_key(value: Any) -> Any:
    """Return the numbers of a random key; anything else as it is."""
    dtype = getattr(value, "dtype", None)
    is_key = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value
