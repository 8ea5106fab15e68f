"""Analysis of which values of a traced program can be in pieces along the axis of the layers, and of their cuts.

`scan` cuts the layers of its arguments (`frontend/layer_scan.py`).  From these cuts it follows which arguments,
gradients, sums over microbatches and states of an optimizer can be in pieces as well: what is computed for each layer
alone, or by a reduction over layers.  `frontend/stacked/interpreter.py` then makes the program that has them so.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from mpmd_trace.frontend.eval_jaxpr import applied, live_equations
from mpmd_trace.frontend.layer_scan import bounds_of, has_marks
from mpmd_trace.frontend.scope import is_computation
from mpmd_trace.frontend.stacked.links import PAIRWISE, contracted, cut_axis, linked, moved_rows
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened


class Cut(NamedTuple):
    """The cuts of an array along an axis, as parts of its length: 0, 1/2, 1."""

    axis: int
    parts: tuple[Fraction, ...]


class Rows(NamedTuple):
    """The cuts of an array along an axis, in numbers of rows: 0, 4, 8."""

    axis: int
    bounds: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The first row of each piece, and that after its last one."""
        return list(itertools.pairwise(self.bounds))

    def along(self, axis: int) -> Rows:
        """Return such rows along another axis."""
        return self._replace(axis=axis)


def rows(cut: Cut, aval: Any) -> Rows | None:
    """Return the cuts of an array of this type in numbers of rows; None where it cannot be cut so."""
    shape = getattr(aval, "shape", ())
    if cut.axis >= len(shape):
        return None
    bounds = [part * shape[cut.axis] for part in cut.parts]
    return None if any(bound.denominator != 1 for bound in bounds) else Rows(cut.axis, tuple(map(int, bounds)))


def _cut(axis: int, bounds: Sequence[int], length: int) -> Cut:
    return Cut(axis, tuple(Fraction(bound, length) for bound in bounds))


class _Value(NamedTuple):
    """A variable of a jaxpr in one place where that is used."""

    cuts: Cuts
    atom: Any
    #: How many axes it has before those that it shares with others of its group.
    leading: int = 0


class Cuts:
    """The cuts of the values of one jaxpr, for one place where it is used.

    Args:
        closed: the jaxpr.
        waiting: of all jaxprs of a program, equations that know of a cut which they have not looked at.
    """

    def __init__(self, closed: Closed, waiting: deque[tuple[Cuts, Equation]] | None = None) -> None:
        self.closed = closed
        self.parts = opened(closed)
        self.alive = live_equations(closed)
        #: The cuts of variables that are in pieces.
        self.of: dict[Any, Cut] = {}
        #: By the id of an equation with jaxprs inside that have values in pieces, the cuts of these.
        self.inner: dict[int, list[Cuts]] = {}
        self._waiting: deque[tuple[Cuts, Equation]] = deque() if waiting is None else waiting
        #: The equations that have a variable as an operand or result.
        self._equations: dict[Any, list[Equation]] = {}
        #: For a variable, the groups of values with the same cut that it is one of.
        self._groups: dict[Any, list[list[_Value]]] = {}
        for eqn in itertools.compress(self.parts.eqns, self.alive):
            if is_computation(eqn):
                continue
            for v in dict.fromkeys(v for v in (*eqn.invars, *eqn.outvars) if not tracing.is_literal(v)):
                self._equations.setdefault(v, []).append(eqn)
            if bounds_of(eqn) is not None or _has_marks(eqn):
                self._waiting.append((self, eqn))

    @property
    def any(self) -> bool:
        """True if anything is in pieces, here or inside."""
        left = [self]
        while left:
            cuts = left.pop()
            if cuts.of:
                return True
            left += [one for inner in cuts.inner.values() for one in inner]
        return False

    def get(self, atom: Any) -> Cut | None:
        """Return the cut of a value, None for one that is whole."""
        return None if tracing.is_literal(atom) else self.of.get(atom)

    def rows(self, atom: Any) -> Rows | None:
        """Return the cut of a value in numbers of rows, None for one that is whole."""
        cut = self.get(atom)
        return None if cut is None else rows(cut, atom.aval)

    def rows_of(self, atoms: Iterable[Any]) -> list[Rows | None]:
        """Return `rows` of each."""
        return list(map(self.rows, atoms))

    def find(self) -> None:
        """Find all cuts: from where the program cuts layers, forwards and backwards, until nothing follows any more.

        A value gets its cut once, and then its equations are looked at again, in all jaxprs alike.
        """
        while self._waiting:
            cuts, eqn = self._waiting.popleft()
            cuts._equation(eqn)

    def _set(self, atom: Any, cut: Cut | None) -> None:
        left = [_Value(self, atom)]
        while cut is not None and left:
            cuts, atom, leading = left.pop()
            here = cut._replace(axis=cut.axis + leading)
            if len(cut.parts) < 3 or here.axis < 0 or tracing.is_literal(atom) or atom in cuts.of:
                continue
            if rows(here, atom.aval) is None:
                continue
            cuts.of[atom] = here
            self._waiting.extend((cuts, eqn) for eqn in cuts._equations.get(atom, ()))
            for group in cuts._groups.get(atom, ()):
                own = next(one.leading for one in group if one.cuts is cuts and one.atom is atom)
                left += [one._replace(leading=one.leading + leading - own) for one in group]

    def _equation(self, eqn: Equation) -> None:
        if id(eqn) in self.inner:
            return  # groups of values say what follows
        if eqn.primitive.name == "scan" and not _has_marks(eqn):
            cut = next((cut for v in in_turns(eqn) if (cut := self.get(v)) is not None and cut.axis == 0), None)
            if cut is not None:
                for v in in_turns(eqn):
                    self._set(v, cut)
                return
        inside = bodies(eqn)
        if inside:
            self.inner[id(eqn)] = [Cuts(body.closed, self._waiting) for body in inside]
            for cuts, body in zip(self.inner[id(eqn)], inside, strict=True):
                atoms = [*cuts.parts.invars, *cuts.parts.outvars]
                for outer, inner, leading in body.joints:
                    values = [_Value(self, v, leading) for v in outer]
                    self._join([*values, *(_Value(cuts, atoms[n]) for n in inner)])
            return
        if eqn.primitive.name in PAIRWISE:
            for operand, result in zip(eqn.invars, eqn.outvars, strict=True):
                self._set(result, self.get(operand))
                self._set(operand, self.get(result))
            return
        atoms = [*eqn.invars, *eqn.outvars]
        known = [self.get(v) for v in atoms]
        axes = [None if cut is None else cut.axis for cut in known]
        axis = cut_axis(eqn, axes)
        if axis is not None:
            self._rows(eqn, axis)
            return
        cut = next((cut for cut in known if cut is not None), None)
        if cut is None:
            return
        link = linked(eqn, axes)
        if link is not None:
            self._set_along(atoms, link, cut)
            return
        pairs = [pair for pair in contracted(eqn) if axes[0] == pair[0] or axes[1] == pair[1]]
        if pairs:
            self._set_along(eqn.invars, pairs[0], cut)

    def _join(self, group: list[_Value]) -> None:
        """Give these values the same cut, now and from now on."""
        for cuts, atom, _ in group:
            if not tracing.is_literal(atom):
                cuts._groups.setdefault(atom, []).append(group)
        for cuts, atom, leading in group:
            cut = cuts.get(atom)
            if cut is not None:
                for one in group:
                    one.cuts._set(one.atom, cut._replace(axis=cut.axis + one.leading - leading))
                return

    def _set_along(self, atoms: Iterable[Any], axes: Iterable[int | None], cut: Cut) -> None:
        for v, axis in zip(atoms, axes, strict=True):
            if axis is not None:
                self._set(v, cut._replace(axis=axis))

    def _rows(self, eqn: Equation, axis: int) -> None:
        """Follow the cuts of an array whose rows are others of it, or those of several arrays."""
        bounds, (whole, parts) = bounds_of(eqn), moved_rows(eqn, axis)
        length = whole.aval.shape[axis]
        if bounds is not None and length == bounds[-1]:
            self._set(whole, _cut(axis, bounds, length))
        for part, start, stop in parts:
            self._set(part, _part(self.get(whole), whole.aval, start, stop))


def _part(cut: Cut | None, aval: Any, start: int, stop: int) -> Cut | None:
    """Return the cut of rows `start` to `stop` of an array with this cut; None if they are in one piece."""
    known = None if cut is None else rows(cut, aval)
    if known is None or stop <= start:
        return None
    inside = [b for b in known.bounds if start < b < stop]
    if not inside:
        return None
    return _cut(known.axis, [0, *(b - start for b in inside), stop - start], stop - start)


def _has_marks(eqn: Equation) -> bool:
    return any(map(has_marks, tracing.subjaxprs(eqn)))


class Joint(NamedTuple):
    """Values outside, and the numbers of those inside (the arguments of a jaxpr, then its results), that have one cut.

    Those outside have `leading` more axes, before the others.
    """

    outer: list[Any]
    inner: list[int]
    leading: int = 0


class Body(NamedTuple):
    """A jaxpr inside of an equation, and what of it is in pieces where something outside is."""

    closed: Closed
    joints: list[Joint]
    #: The operands of the equation that are its arguments.
    operands: list[int]


def in_turns(eqn: Equation) -> list[Any]:
    """Return the operands and results of a `scan` of which each turn has a row."""
    layout = tracing.scan_layout(eqn)
    return [*layout.split(eqn.invars)[2], *eqn.outvars[layout.carries :]]


def bodies(eqn: Equation) -> list[Body]:
    """Return the jaxprs in `eqn` that `Cuts` looks into."""
    operands, results, params = list(eqn.invars), list(eqn.outvars), eqn.params
    every = list(range(len(operands)))

    def plain(closed: Closed, numbers: list[int]) -> Body:
        joints = [Joint([operands[i]], [n]) for n, i in enumerate(numbers)]
        joints += [Joint([v], [len(numbers) + n]) for n, v in enumerate(results)]
        return Body(closed, joints, numbers)

    match eqn.primitive.name:
        case "scan":
            layout = tracing.scan_layout(eqn)
            first, last = layout.constants, layout.constants + layout.carries
            result = [Joint([operands[n]], [n]) for n in range(first)]
            result += [Joint([operands[n], results[n - first]], [n, len(every) + n - first]) for n in every[first:last]]
            result += [Joint([operands[n]], [n], 1) for n in every[last:]]
            outputs = range(layout.carries, len(results))
            result += [Joint([results[n]], [len(every) + n], 1) for n in outputs]
            return [Body(layout.body, result, every)]
        case "while":
            tests, consts = params["cond_nconsts"], params["body_nconsts"]
            state = operands[tests + consts :]
            in_test = [Joint([v], [n]) for n, v in enumerate(operands[:tests])]
            in_body = [Joint([v], [n]) for n, v in enumerate(operands[tests : tests + consts])]
            for n, v in enumerate(state):
                in_test.append(Joint([v], [tests + n]))
                in_body.append(Joint([v, results[n]], [consts + n, consts + len(state) + n]))
                in_test.append(Joint([v], [tests + len(state)]))  # says for each row whether it goes on
            test = Body(params["cond_jaxpr"], in_test, [*every[:tests], *every[tests + consts :]])
            return [test, Body(params["body_jaxpr"], in_body, every[tests:])]
        case "cond":
            return [plain(branch, every[1:]) for branch in params["branches"]]
        case "custom_linear_solve":
            sizes = params["const_lengths"]
            start = sizes.matvec + sizes.vecmat
            constants = every[start : start + sizes.solve]
            return [plain(params["jaxprs"].solve, [*constants, *every[sum(sizes) :]])]
    body = applied(eqn)
    return [] if body is None else [plain(body, every)]
