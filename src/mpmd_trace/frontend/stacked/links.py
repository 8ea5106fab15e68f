"""Rules by which equations compute each piece of their results from pieces of their operands.

Pieces are rows along one axis, that of the layers.  An op can be computed piece by piece when it treats that axis as a
batch: elementwise ops, batching dimensions of gathers, scatters and products, leading dimensions of linear algebra.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jax import lax

from mpmd_trace.frontend.layer_scan import bounds_of
from mpmd_trace.jax_compat.tracing import Equation

#: For an equation whose piece k of the results is made of piece k of the operands: the axis along which each operand,
#: then each result, has the layers; None for those that are whole.
Link = tuple[int | None, ...]

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex
conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge
gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min
mul mulhi name ne neg nextafter not one_minus_square or polygamma population_count pow random_clone
random_fold_in random_gamma_grad random_seed random_unwrap random_wrap real reduce_precision
regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32 xor zeta
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
#: Ops with one result for each operand, which is like it.
PAIRWISE = frozenset({"optimization_barrier", "device_put"})
#: Reductions whose parts can be put together, with the op that does.
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_prod": lax.mul,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}
#: Ops of linear algebra, and how many axes of the first operand are not a batch; all operands and results have it.
_MATRICES = """
cholesky eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd symmetric_product triangular_solve
tridiagonal
"""
_BATCHED = {**dict.fromkeys(_MATRICES.split(), 2), "lu_pivots_to_permutation": 1, "tridiagonal_solve": 1}
#: Ops along one axis, and the parameter that says which.
_ALONG = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"), "axis"),
    **dict.fromkeys(("concatenate", "sort"), "dimension"),
}


def linked(eqn: Equation, axes: Sequence[int | None]) -> Link | None:
    """Return how `eqn` computes each piece of its results from pieces of its operands, if it does.

    Args:
        eqn: an equation without jaxprs.
        axes: of each operand, then of each result, the axis along which it is cut, None for one that is whole.
    """
    known = next((i for i, axis in enumerate(axes) if axis is not None), None)
    if known is None:
        return None
    return next((link for link in _links(eqn) if link[known] == axes[known]), None)


def _links(eqn: Equation) -> Iterator[Link]:
    """Yield every link of an equation: one for each axis along which it can be computed piece by piece."""
    name, params = eqn.primitive.name, eqn.params
    shapes = [getattr(v.aval, "shape", ()) for v in eqn.invars]
    outs = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
    shape, out = shapes[0] if shapes else (), outs[0] if outs else ()

    def alone(pairs: Iterable[tuple[int | None, int | None]]) -> Iterator[Link]:
        """Link an axis of the first operand with one of all results; other operands are whole."""
        for axis, other in pairs:
            yield (axis, *(None for _ in shapes[1:]), *(other for _ in outs))

    def kept(gone: Iterable[int]) -> Iterator[Link]:
        """Link the axes that the first operand has, and the results, which lack those that are `gone`."""
        there = [axis for axis in range(len(shape)) if axis not in gone]
        return alone((axis, i) for i, axis in enumerate(there))

    def alike(gone: Iterable[int]) -> Iterator[Link]:
        """Link the axes that all operands and results have in common, but for those that are `gone`."""
        return ((axis,) * (len(shapes) + len(outs)) for axis in range(len(out)) if axis not in gone)

    if name in ELEMENTWISE:
        for axis, size in enumerate(out):
            of = [axis if axis < len(s) and s[axis] == size else None for s in shapes]
            if any(s for s in shapes) and of.count(None) < len(of):
                yield (*of, *(axis for _ in outs))
        return
    match name:
        case "broadcast_in_dim":
            at = {dim: i for i, dim in enumerate(params["broadcast_dimensions"]) if shape[i] == out[dim]}
            yield from alone((at.get(axis), axis) for axis in range(len(out)))
        case "sharding_constraint":
            yield from alone((axis, axis) for axis in range(len(shape)) if not _is_sharded(params["sharding"], axis))
        case "iota":
            yield from (((None,) * len(shapes) + (axis,)) for axis in range(len(out)))
        case "reshape" if 0 not in shape:
            before = {math.prod(out[:axis]): axis for axis, size in enumerate(out) if size > 1}
            order = params["dimensions"] or tuple(range(len(shape)))
            places = [before.get(math.prod(shape[axis] for axis in order[:i])) for i in range(len(order))]
            pairs = zip(order, places, strict=True)
            yield from alone((axis, other) for axis, other in pairs if shape[axis] > 1 and other is not None)
        case "transpose":
            yield from alone((axis, i) for i, axis in enumerate(params["permutation"]))
        case "squeeze":
            yield from kept([axis % len(shape) for axis in params["dimensions"]])
        case "stack" | "unstack":
            for axis in range(len(shape if name == "stack" else out)):
                sides = (axis, axis + (axis >= params["axis"]))
                one, both = sides if name == "stack" else sides[::-1]
                yield (*(one for _ in shapes), *(both for _ in outs))
        case "slice" | "pad":
            yield from alone((axis, axis) for axis in range(len(out)) if not _moved_rows(eqn, axis))
        case "dot_general":
            (left, right), (lbatch, rbatch) = params["dimension_numbers"]
            yield from ((a, b, i) for i, (a, b) in enumerate(zip(lbatch, rbatch, strict=True)))
            rest = [(axis, None) for axis in range(len(shape)) if axis not in (*left, *lbatch)]
            more = [(None, axis) for axis in range(len(shapes[1])) if axis not in (*right, *rbatch)]
            yield from ((a, b, i) for i, (a, b) in enumerate([*rest, *more], len(lbatch)))
        case _ if name in REDUCTIONS or name in ("argmax", "argmin"):
            yield from kept(params["axes"])
        case "rev":
            yield from alike(params["dimensions"])
        case _ if name in _ALONG:
            yield from alike([params[_ALONG[name]]])
        case "bitcast_convert_type" | "random_bits" | "random_split":
            yield from alone((axis, axis) for axis in range(min(len(shape), len(out))))
        case _ if name in _BATCHED:
            yield from alike(range(len(shape) - _BATCHED[name], len(out)))
        case "fft":
            yield from alike(range(len(shape) - len(params["fft_lengths"]), len(shape)))
        case "top_k" | "approx_top_k":
            yield from alike([params.get("axis", params.get("reduction_dimension", -1)) % len(shape)])
        case "reduce_window_sum" | "reduce_window_max" | "reduce_window_min":
            yield from alike(axis for axis in range(len(shape)) if _has_window(params, axis))
        case "dynamic_slice":
            yield from alone((axis, axis) for axis, size in enumerate(params["slice_sizes"]) if size == shape[axis])
        case "dynamic_update_slice":
            for axis, size in enumerate(shape):
                if shapes[1][axis] == size:
                    yield (axis, axis, *(None for _ in shapes[2:]), axis)
        case "conv_general_dilated":
            yield from _convolution_links(params)
        case "gather":
            yield from _gather_links(params, shape, len(shapes[1]), len(out))
        case _ if name.startswith("scatter"):
            yield from _scatter_links(params, shapes)


def _is_sharded(sharding: Any, axis: int) -> bool:
    """Return whether a sharding divides an axis, or may do so."""
    spec = getattr(sharding, "spec", None)
    return spec is None or (axis < len(spec) and spec[axis] is not None)


def _has_window(params: dict[str, Any], axis: int) -> bool:
    """Return whether a window of a `reduce_window` is more than one row along an axis."""
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    return any(params[name][axis] != 1 for name in names) or tuple(params["padding"][axis]) != (0, 0)


#: Parameters of a convolution that say how many convolutions it is.
_GROUPS = ("feature_group_count", "batch_group_count")


def groups_along(eqn: Equation, axis: int | None) -> dict[str, int]:
    """Return how many groups of a convolution an axis of its result consists of, by parameter; rows are in none."""
    params = eqn.params
    if eqn.primitive.name != "conv_general_dilated" or axis != params["dimension_numbers"].out_spec[1]:
        return {}
    return {name: params[name] for name in _GROUPS if params[name] > 1}


def _convolution_links(params: dict[str, Any]) -> Iterator[Link]:
    """Link axes of the rows, of the kernels, and of groups, as which `jax.vmap` writes a batch of convolutions."""
    numbers = params["dimension_numbers"]
    (rows, features), kernels, (results, channels) = numbers.lhs_spec[:2], numbers.rhs_spec[0], numbers.out_spec[:2]
    feature_groups, row_groups = (params[name] for name in _GROUPS)
    if row_groups > 1:
        yield rows, kernels, channels
        return
    yield rows, None, results
    yield (features, kernels, channels) if feature_groups > 1 else (None, kernels, channels)


def _gather_links(params: dict[str, Any], shape: Sequence[int], rank: int, results: int) -> Iterator[Link]:
    """Link axes of the indices, which have `rank` axes, and axes of the operand that are taken whole."""
    numbers = params["dimension_numbers"]
    batch = [axis for axis in range(results) if axis not in numbers.offset_dims]
    paired = dict(zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    yield from ((paired.get(axis), axis, batch[axis]) for axis in range(rank - 1))
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = (axis for axis in range(len(shape)) if axis not in gone)
    for axis, result in zip(kept, numbers.offset_dims, strict=True):
        if axis not in numbers.start_index_map and params["slice_sizes"][axis] == shape[axis]:
            yield axis, None, result


def _scatter_links(params: dict[str, Any], shapes: Sequence[Sequence[int]]) -> Iterator[Link]:
    """Link batching dimensions, and axes that the updates have whole."""
    numbers = params["dimension_numbers"]
    scattered = [axis for axis in range(len(shapes[2])) if axis not in numbers.update_window_dims]
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    yield from ((axis, other, scattered[other], axis) for axis, other in pairs)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = (axis for axis in range(len(shapes[0])) if axis not in gone)
    for axis, update in zip(kept, numbers.update_window_dims, strict=True):
        if axis not in numbers.scatter_dims_to_operand_dims and shapes[2][update] == shapes[0][axis]:
            yield axis, None, update, axis


def _moved_rows(eqn: Equation, axis: int) -> bool:
    """Return whether a `slice` or `pad` takes, adds or skips rows along an axis."""
    params = eqn.params
    if eqn.primitive.name == "slice":
        step = (params["strides"] or (1,) * (axis + 1))[axis]
        whole = eqn.invars[0].aval.shape[axis]
        return (params["start_indices"][axis], params["limit_indices"][axis], step) != (0, whole, 1)
    return tuple(map(int, params["padding_config"][axis])) != (0, 0, 0)


def cut_axis(eqn: Equation, axes: Iterable[int | None]) -> int | None:
    """Return the axis along which `eqn` takes rows of, adds rows to, or joins arrays, one by one; None if it does not.

    Args:
        eqn: an equation.
        axes: those along which its operands and results are cut.
    """
    name, params = eqn.primitive.name, eqn.params
    axis = 0 if bounds_of(eqn) is not None else next((axis for axis in axes if axis is not None), None)
    if axis is None or name not in ("concatenate", "split", "slice", "pad") or not eqn.invars[0].aval.shape:
        return None
    if name in _ALONG:
        return axis if axis == params[_ALONG[name]] else None
    if not _moved_rows(eqn, axis):
        return None
    if name == "slice":
        return axis if (params["strides"] or (1,) * (axis + 1))[axis] == 1 else None
    low, high, between = map(int, params["padding_config"][axis])
    return axis if between == 0 and low >= 0 and high >= 0 else None


def moved_rows(eqn: Equation, axis: int) -> tuple[Any, list[tuple[Any, int, int]]]:
    """Return, for an equation with this `cut_axis`, the array with all rows, and the arrays with some of them.

    With each of the latter, the first of its rows and the one behind its last.
    """
    name, params = eqn.primitive.name, eqn.params
    at, whole, parts = 0, eqn.invars[0], eqn.outvars
    if name == "slice":
        at = params["start_indices"][axis]
    elif name != "split":
        whole, parts = eqn.outvars[0], eqn.invars
    if name == "pad":
        at, parts = int(params["padding_config"][axis][0]), parts[:1]
    bounds = itertools.accumulate((v.aval.shape[axis] for v in parts), initial=at)
    return whole, [(v, *pair) for v, pair in zip(parts, itertools.pairwise(bounds), strict=True)]


def contracted(eqn: Equation) -> list[tuple[int, int]]:
    """Return the axes of both operands over which `eqn` sums, if it is a product of arrays without axes in common."""
    if eqn.primitive.name != "dot_general":
        return []
    (left, right), batch = eqn.params["dimension_numbers"]
    return [] if batch[0] else list(zip(left, right, strict=True))
