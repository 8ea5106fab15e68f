"""Which values of a traced program can be in pieces along their first axis, and where those are cut.

`scan` cuts the layers of its arguments (`frontend/layers.py`).  From these cuts it follows which arguments, gradients,
sums over microbatches and states of an optimiser can be in pieces as well: what is computed for each layer alone, or
by a reduction over layers.  `frontend/piecewise.py` then makes the program that has them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from mpmd_trace.frontend.calls import live_equations
from mpmd_trace.frontend.layers import bounds_of
from mpmd_trace.frontend.questions import applied
from mpmd_trace.frontend.scope import is_computation
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

__all__ = ["PAIRWISE", "REDUCTIONS", "Cut", "Cuts", "contracts_layers", "is_cut", "linked", "moved_rows", "rows"]

#: Where the pieces of an array are cut, as parts of the length of its first axis: 0, 1/2, 1.
Cut = tuple[Fraction, ...]

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
REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "mul",
    "reduce_and": "and",
    "reduce_or": "or",
}
_OTHER_AXIS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
_CONTROL = frozenset({"scan", "while", "cond"})


def rows(cut: Cut, aval: Any) -> tuple[int, ...] | None:
    """The cuts of an array of this type in numbers of rows; None where it cannot be cut so."""
    if not getattr(aval, "shape", ()):
        return None
    found = [part * aval.shape[0] for part in cut]
    return None if any(bound.denominator != 1 for bound in found) else tuple(map(int, found))


def _cut(bounds: Sequence[int], length: int) -> Cut:
    return tuple(Fraction(bound, length) for bound in bounds)


def _keeps_rows(shape: Sequence[int], other: Sequence[int]) -> bool:
    return bool(shape) and bool(other) and shape[0] == other[0]


def linked(eqn: Equation) -> tuple[list[bool], list[bool]] | None:
    """For each operand and result of `eqn`, whether it has the layers, if piece k of the ones gives that of the others.

    None for other equations.
    """
    name, params = eqn.primitive.name, eqn.params
    shapes = [getattr(v.aval, "shape", ()) for v in eqn.invars]
    outs = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
    out = outs[0] if outs else ()
    if name in ELEMENTWISE:
        return [bool(s) and _keeps_rows(s, out) for s in shapes], [bool(s) for s in outs]
    first = [True] + [False] * (len(shapes) - 1)
    is_first = False
    match name:
        case "broadcast_in_dim":
            dims = params["broadcast_dimensions"]
            layered = bool(dims) and dims[0] == 0 and _keeps_rows(shapes[0], out)
            return [layered] + [False] * (len(shapes) - 1), [bool(out)]
        case "iota":
            return [False] * len(shapes), [True]
        case "reshape":
            is_first = bool(shapes[0]) and bool(out) and params["dimensions"] is None and 0 not in shapes[0]
        case "transpose":
            is_first = bool(out) and params["permutation"][0] == 0
        case "squeeze":
            is_first = 0 not in params["dimensions"] and bool(out)
        case "rev":
            is_first = 0 not in params["dimensions"]
        case "concatenate":
            return ([True] * len(shapes), [True]) if params["dimension"] != 0 else None
        case "slice":
            is_first = not moved_rows(eqn)
        case "pad":
            is_first = not moved_rows(eqn) and bool(out)
        case "sort":
            return ([True] * len(shapes), [True] * len(outs)) if params["dimension"] != 0 else None
        case "dot_general":
            (left, _), (lbatch, rbatch) = params["dimension_numbers"]
            if lbatch:
                return ([True, True], [True]) if lbatch[0] == 0 == rbatch[0] else None
            # The layers are rows of one side.
            if out and 0 not in left and len(left) < len(shapes[0]):
                return [True, False], [True]
        case _ if name in REDUCTIONS or name in ("argmax", "argmin"):
            is_first = 0 not in params["axes"] and bool(out)
        case _ if name in _OTHER_AXIS:
            is_first = params["axis"] != 0
        case "bitcast_convert_type":
            is_first = len(out) > 1 and _keeps_rows(shapes[0], out)
    return (first, [True] * len(outs)) if is_first else None


def moved_rows(eqn: Equation) -> bool:
    """Whether a `slice` or `pad` takes, adds or skips rows."""
    name, params = eqn.primitive.name, eqn.params
    if not eqn.outvars[0].aval.shape:
        return False
    if name == "slice":
        step = (params["strides"] or (1,))[0]
        return (params["start_indices"][0], params["limit_indices"][0], step) != (0, eqn.invars[0].aval.shape[0], 1)
    return tuple(map(int, params["padding_config"][0])) != (0, 0, 0)


def is_cut(eqn: Equation) -> bool:
    """Whether `eqn` takes rows of, adds rows to, or joins arrays along the first axis, one by one."""
    name, params = eqn.primitive.name, eqn.params
    if name == "concatenate":
        return bool(params["dimension"] == 0)
    if name not in ("slice", "pad") or not moved_rows(eqn):
        return False
    if name == "slice":
        return bool((params["strides"] or (1,))[0] == 1)
    low, high, between = map(int, params["padding_config"][0])
    return between == 0 and low >= 0 and high >= 0


def contracts_layers(eqn: Equation) -> bool:
    """Whether `eqn` is a product of two arrays that sums over the first axes of both."""
    if eqn.primitive.name != "dot_general":
        return False
    (left, right), batch = eqn.params["dimension_numbers"]
    return not batch[0] and bool([pair for pair in zip(left, right, strict=True) if pair == (0, 0)])


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

    def find(self) -> None:
        """Find all cuts: from where the program cuts layers, forwards and backwards, until nothing follows any more."""
        while self._sweep():
            pass

    def _set(self, atom: Any, cut: Cut | None) -> bool:
        if cut is None or len(cut) < 3 or tracing.is_literal(atom) or atom in self.of or rows(cut, atom.aval) is None:
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
        if is_cut(eqn):
            return self._rows(eqn)
        links = linked(eqn)
        if links is not None:
            return self._link(self._members(eqn, links))
        return contracts_layers(eqn) and self._link(eqn.invars)

    @staticmethod
    def _members(eqn: Equation, links: tuple[list[bool], list[bool]]) -> list[Any]:
        flags = [*links[0], *links[1]]
        return [v for v, has in zip([*eqn.invars, *eqn.outvars], flags, strict=True) if has]

    def _link(self, members: Iterable[Any]) -> bool:
        """All of them have the same cut."""
        members = list(members)
        cut = next((c for v in members if (c := self.get(v)) is not None), None)
        return self._set_all(members, cut)

    def _rows(self, eqn: Equation) -> bool:
        bounds = bounds_of(eqn)
        whole, out = eqn.invars[0], eqn.outvars[0]
        if eqn.primitive.name == "slice":
            start, stop = eqn.params["start_indices"][0], eqn.params["limit_indices"][0]
            length = whole.aval.shape[0]
            marked = bounds is not None and length == bounds[-1] and self._set(whole, _cut(bounds, length))
            return self._set(out, _part(self.get(whole), whole.aval, start, stop)) or marked
        length = out.aval.shape[0]
        marked = bounds is not None and length == bounds[-1] and self._set(out, _cut(bounds, length))
        places = {0: eqn.params["padding_config"][0][0]} if eqn.primitive.name == "pad" else {}
        if not places:
            at = 0
            for i, operand in enumerate(eqn.invars):
                places[i] = at
                at += operand.aval.shape[0]
        for i, start in places.items():
            operand = eqn.invars[i]
            stop = int(start) + operand.aval.shape[0]
            marked |= self._set(operand, _part(self.get(out), out.aval, int(start), stop))
        return marked

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
    bounds = None if cut is None else rows(cut, aval)
    if bounds is None or stop <= start:
        return None
    inside = [b for b in bounds if start < b < stop]
    return _cut([0, *(b - start for b in inside), stop - start], stop - start) if inside else None


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
            count, found = len(operands), []
            for n in range(layout.constants):
                found.append(([operands[n]], [n]))
            for n in range(layout.carries):
                at = layout.constants + n
                found.append(([operands[at], results[n]], [at, count + n]))
            return [found]
        case "while":
            tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            carries = operands[tests + consts :]
            in_test = [([v], [n]) for n, v in enumerate(operands[:tests])]
            in_body = [([v], [n]) for n, v in enumerate(operands[tests : tests + consts])]
            for n, v in enumerate(carries):
                in_test.append(([v], [tests + n]))
                in_body.append(([v, results[n]], [consts + n, consts + len(carries) + n]))
            return [in_test, in_body]
        case "cond":
            operands = operands[1:]
            count = len(eqn.params["branches"])
        case _:
            count = 1
    links: list[Joint] = [([v], [n]) for n, v in enumerate(operands)]
    links += [([v], [len(operands) + n]) for n, v in enumerate(results)]
    return [links for _ in range(count)]
