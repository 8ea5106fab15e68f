"""Which values of a traced program can be in pieces along an axis, that of the layers, and where those are cut.

`scan` cuts the layers of its arguments (`frontend/layers.py`).  From these cuts it follows which arguments, gradients,
sums over microbatches and states of an optimiser can be in pieces as well: what is computed for each layer alone, or
by a reduction over layers.  `frontend/piecewise.py` then makes the program that has them so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from jax import lax

from mpmd_trace.frontend.calls import live_equations
from mpmd_trace.frontend.layers import bounds_of
from mpmd_trace.frontend.questions import applied
from mpmd_trace.frontend.scope import is_computation
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

__all__ = ["PAIRWISE", "REDUCTIONS", "Cut", "Cuts", "Link", "Rows", "contracted", "cut_axis", "linked", "rows"]


class Cut(NamedTuple):
    """Where the pieces of an array are cut along an axis, as parts of its length: 0, 1/2, 1."""

    axis: int
    parts: tuple[Fraction, ...]


class Rows(NamedTuple):
    """Where an array is cut along an axis, in numbers of rows: 0, 4, 8."""

    axis: int
    bounds: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The first row of each piece, and that after its last one."""
        return list(itertools.pairwise(self.bounds))


#: For an equation whose piece k of the results is made of piece k of the operands: the axis along which each operand,
#: then each result, has the layers; None for those that are whole.
Link = tuple[int | None, ...]

_ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp clz complex conj
convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not
one_minus_square or polygamma population_count pow random_unwrap random_wrap real reduce_precision rem round
rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh
threefry2x32 xor
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
_OTHER_AXIS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
_CONTROL = frozenset({"scan", "while", "cond"})


def rows(cut: Cut, aval: Any) -> Rows | None:
    """The cuts of an array of this type in numbers of rows; None where it cannot be cut so."""
    shape = getattr(aval, "shape", ())
    if cut.axis >= len(shape):
        return None
    found = [part * shape[cut.axis] for part in cut.parts]
    return None if any(bound.denominator != 1 for bound in found) else Rows(cut.axis, tuple(map(int, found)))


def _cut(axis: int, bounds: Sequence[int], length: int) -> Cut:
    return Cut(axis, tuple(Fraction(bound, length) for bound in bounds))


def linked(eqn: Equation, axes: Sequence[int | None]) -> Link | None:
    """How `eqn` computes each piece of its results from pieces of its operands, if it does.

    Args:
        eqn: an equation without jaxprs.
        axes: of each operand, then of each result, the axis along which it is cut, None for one that is whole.
    """
    known = next((i for i, axis in enumerate(axes) if axis is not None), None)
    if known is None:
        return None
    return next((link for link in _links(eqn) if link[known] == axes[known]), None)


def _links(eqn: Equation) -> Iterator[Link]:
    name, params = eqn.primitive.name, eqn.params
    shapes = [getattr(v.aval, "shape", ()) for v in eqn.invars]
    outs = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
    shape, out = shapes[0] if shapes else (), outs[0] if outs else ()

    def alone(pairs: Iterable[tuple[int | None, int | None]]) -> Iterator[Link]:
        """Axes of the first operand and of all results."""
        for axis, other in pairs:
            yield (axis, *(None for _ in shapes[1:]), *(other for _ in outs))

    def kept(gone: Iterable[int]) -> Iterator[Link]:
        """The first operand without some of its axes."""
        there = [axis for axis in range(len(shape)) if axis not in gone]
        return alone((axis, i) for i, axis in enumerate(there))

    def alike(gone: Iterable[int]) -> Iterator[Link]:
        """All operands and results have the same axes, but for some."""
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
        case "iota":
            yield from (((None,) * len(shapes) + (axis,)) for axis in range(len(out)))
        case "reshape" if params["dimensions"] is None and 0 not in shape:
            before = {math.prod(out[:axis]): axis for axis, size in enumerate(out) if size > 1}
            yield from alone(
                (axis, before[math.prod(shape[:axis])])
                for axis, size in enumerate(shape)
                if size > 1 and math.prod(shape[:axis]) in before
            )
        case "transpose":
            yield from alone((axis, i) for i, axis in enumerate(params["permutation"]))
        case "squeeze":
            yield from kept([axis % len(shape) for axis in params["dimensions"]])
        case "rev":
            yield from alike(params["dimensions"])
        case "concatenate":
            yield from alike([params["dimension"]])
        case "split":
            yield from alike([params["axis"]])
        case "slice" | "pad":
            yield from alone((axis, axis) for axis in range(len(out)) if not _moved_rows(eqn, axis))
        case "sort":
            yield from alike([params["dimension"]])
        case "dot_general":
            (left, right), (lbatch, rbatch) = params["dimension_numbers"]
            yield from ((a, b, i) for i, (a, b) in enumerate(zip(lbatch, rbatch, strict=True)))
            rest = [(axis, None) for axis in range(len(shape)) if axis not in (*left, *lbatch)]
            more = [(None, axis) for axis in range(len(shapes[1])) if axis not in (*right, *rbatch)]
            yield from ((a, b, i) for i, (a, b) in enumerate([*rest, *more], len(lbatch)))
        case _ if name in REDUCTIONS or name in ("argmax", "argmin"):
            yield from kept(params["axes"])
        case _ if name in _OTHER_AXIS:
            yield from alike([params["axis"]])
        case "bitcast_convert_type":
            yield from alone((axis, axis) for axis in range(min(len(shape), len(out))))


def _moved_rows(eqn: Equation, axis: int) -> bool:
    """Whether a `slice` or `pad` takes, adds or skips rows along an axis."""
    params = eqn.params
    if eqn.primitive.name == "slice":
        step = (params["strides"] or (1,) * (axis + 1))[axis]
        whole = eqn.invars[0].aval.shape[axis]
        return (params["start_indices"][axis], params["limit_indices"][axis], step) != (0, whole, 1)
    return tuple(map(int, params["padding_config"][axis])) != (0, 0, 0)


def cut_axis(eqn: Equation, axes: Iterable[int | None]) -> int | None:
    """The axis along which `eqn` takes rows of, adds rows to, or joins arrays, one by one; None if it does not.

    Args:
        eqn: an equation.
        axes: those along which its operands and results are cut.
    """
    name, params = eqn.primitive.name, eqn.params
    axis = 0 if bounds_of(eqn) is not None else next((axis for axis in axes if axis is not None), None)
    if axis is None or name not in ("concatenate", "split", "slice", "pad") or not eqn.invars[0].aval.shape:
        return None
    if name in ("concatenate", "split"):
        return axis if axis == params["dimension" if name == "concatenate" else "axis"] else None
    if not _moved_rows(eqn, axis):
        return None
    if name == "slice":
        return axis if (params["strides"] or (1,) * (axis + 1))[axis] == 1 else None
    low, high, between = map(int, params["padding_config"][axis])
    return axis if between == 0 and low >= 0 and high >= 0 else None


def contracted(eqn: Equation) -> list[tuple[int, int]]:
    """The axes of both operands over which `eqn` sums, if it is a product of arrays without axes in common."""
    if eqn.primitive.name != "dot_general":
        return []
    (left, right), batch = eqn.params["dimension_numbers"]
    return [] if batch[0] else list(zip(left, right, strict=True))


class Cuts:
    """The cuts of the values of one jaxpr, for one place where it is used.

    Args:
        closed: the jaxpr.
    """

    def __init__(self, closed: Closed) -> None:
        self.closed = closed
        self.parts = opened(closed)
        self.alive = live_equations(closed)
        #: The cuts of variables that are in pieces.
        self.of: dict[Any, Cut] = {}
        #: For equations with jaxprs inside that are looked into, the cuts of these.
        self.inner: dict[int, list[Cuts]] = {}
        for i, eqn in enumerate(self.parts.eqns):
            name = eqn.primitive.name
            if not self.alive[i] or is_computation(eqn):
                continue
            body = applied(eqn)
            if body is not None:
                self.inner[i] = [Cuts(body)]
            elif name in _CONTROL:
                self.inner[i] = [Cuts(inner) for inner in _bodies(eqn)]

    @property
    def any(self) -> bool:
        """Whether anything is in pieces, here or inside."""
        return bool(self.of) or any(cuts.any for inner in self.inner.values() for cuts in inner)

    def get(self, atom: Any) -> Cut | None:
        """The cut of a value, None for one that is whole."""
        return None if tracing.is_literal(atom) else self.of.get(atom)

    def rows(self, atom: Any) -> Rows | None:
        """The cut of a value in numbers of rows, None for one that is whole."""
        cut = self.get(atom)
        return None if cut is None else rows(cut, atom.aval)

    def find(self) -> None:
        """Find all cuts: from where the program cuts layers, forwards and backwards, until nothing follows any more."""
        while self._sweep():
            pass

    def _set(self, atom: Any, cut: Cut | None) -> bool:
        if cut is None or len(cut.parts) < 3 or tracing.is_literal(atom) or atom in self.of:
            return False
        if rows(cut, atom.aval) is None:
            return False
        self.of[atom] = cut
        return True

    def _set_all(self, atoms: Iterable[Any], cut: Cut | None) -> bool:
        return bool([v for v in atoms if self._set(v, cut)])

    def _sweep(self) -> bool:
        changed = False
        order = [i for i in range(len(self.parts.eqns)) if self.alive[i]]
        for i in (*order, *reversed(order)):
            changed |= self._equation(i, self.parts.eqns[i])
        return changed

    def _equation(self, i: int, eqn: Equation) -> bool:
        if i in self.inner:
            return self._control(i, eqn)
        if is_computation(eqn):
            return False
        if eqn.primitive.name in PAIRWISE:
            pairs = list(zip(eqn.invars, eqn.outvars, strict=True))
            return bool([pair for pair in pairs if self._link(pair)])
        atoms = [*eqn.invars, *eqn.outvars]
        known = [self.get(v) for v in atoms]
        axes = [None if cut is None else cut.axis for cut in known]
        axis = cut_axis(eqn, axes)
        if axis is not None:
            return self._rows(eqn, axis)
        cut = next((cut for cut in known if cut is not None), None)
        if cut is None:
            return False
        link = linked(eqn, axes)
        if link is not None:
            return self._set_along(atoms, link, cut)
        pairs = [pair for pair in contracted(eqn) if axes[0] == pair[0] or axes[1] == pair[1]]
        return bool(pairs) and self._set_along(eqn.invars, pairs[0], cut)

    def _set_along(self, atoms: Iterable[Any], axes: Iterable[int | None], cut: Cut) -> bool:
        pairs = zip(atoms, axes, strict=True)
        return bool([v for v, axis in pairs if axis is not None and self._set(v, cut._replace(axis=axis))])

    def _link(self, members: Iterable[Any]) -> bool:
        """All of them have the same cut."""
        members = list(members)
        cut = next((c for v in members if (c := self.get(v)) is not None), None)
        return self._set_all(members, cut)

    def _rows(self, eqn: Equation, axis: int) -> bool:
        """The cuts of an array whose rows are others of it, or those of several arrays: of the whole, and of parts."""
        bounds, name = bounds_of(eqn), eqn.primitive.name
        whole = eqn.outvars[0] if name in ("concatenate", "pad") else eqn.invars[0]
        parts, at = (eqn.outvars if name in ("slice", "split") else eqn.invars), 0
        if name == "slice":
            at = eqn.params["start_indices"][axis]
        elif name == "pad":
            parts, at = parts[:1], int(eqn.params["padding_config"][axis][0])
        length = whole.aval.shape[axis]
        found = bounds is not None and length == bounds[-1] and self._set(whole, _cut(axis, bounds, length))
        for part in parts:
            stop = at + part.aval.shape[axis]
            found |= self._set(part, _part(self.get(whole), whole.aval, at, stop))
            at = stop
        return found

    def _control(self, i: int, eqn: Equation) -> bool:
        changed = False
        for cuts, groups in zip(self.inner[i], joints(eqn), strict=True):
            inside = [*cuts.parts.invars, *cuts.parts.outvars]
            for _ in range(2):
                for outer, inner in groups:
                    known = (*map(self.get, outer), *(cuts.get(inside[n]) for n in inner))
                    cut = next((c for c in known if c is not None), None)
                    changed |= self._set_all(outer, cut)
                    changed |= cuts._set_all([inside[n] for n in inner], cut)
                changed |= cuts._sweep()
        return changed


def _part(cut: Cut | None, aval: Any, start: int, stop: int) -> Cut | None:
    """The cut of rows `start` to `stop` of an array with this cut; None if they are in one piece."""
    known = None if cut is None else rows(cut, aval)
    if known is None or stop <= start:
        return None
    inside = [b for b in known.bounds if start < b < stop]
    if not inside:
        return None
    return _cut(known.axis, [0, *(b - start for b in inside), stop - start], stop - start)


def _bodies(eqn: Equation) -> list[Closed]:
    p = eqn.params
    match eqn.primitive.name:
        case "scan":
            return [p["jaxpr"]]
        case "while":
            return [p["cond_jaxpr"], p["body_jaxpr"]]
    return list(p["branches"])


#: Values outside, and the numbers of those inside (the arguments of a jaxpr, then its results), that have one cut.
Joint = tuple[list[Any], list[int]]


def joints(eqn: Equation) -> list[list[Joint]]:
    """For each jaxpr inside `eqn` that `Cuts` looks into, which values have the same cuts outside and inside."""
    operands, results = list(eqn.invars), list(eqn.outvars)
    match eqn.primitive.name:
        case "scan":
            layout = tracing.scan_layout(eqn)
            carries = range(layout.constants, layout.constants + layout.carries)
            found = [([operands[n]], [n]) for n in range(layout.constants)]
            found += [([operands[at], results[n]], [at, len(operands) + n]) for n, at in enumerate(carries)]
            return [found]
        case "while":
            tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            state = operands[tests + consts :]
            in_test = [([v], [n]) for n, v in enumerate(operands[:tests])]
            in_body = [([v], [n]) for n, v in enumerate(operands[tests : tests + consts])]
            for n, v in enumerate(state):
                in_test.append(([v], [tests + n]))
                in_body.append(([v, results[n]], [consts + n, consts + len(state) + n]))
            return [in_test, in_body]
        case "cond":
            operands = operands[1:]
            count = len(eqn.params["branches"])
        case _:
            count = 1
    links: list[Joint] = [([v], [n]) for n, v in enumerate(operands)]
    links += [([v], [len(operands) + n]) for n, v in enumerate(results)]
    return [links for _ in range(count)]
