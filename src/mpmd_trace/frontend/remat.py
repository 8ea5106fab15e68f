"""Rematerialization by `jax.checkpoint`: values that one place hands to another are not recomputed.

A checkpoint around parts on several meshes or stages recomputes the first part, then the second, and so on, and
only then runs the backward of the last part, ..., of the first one.  Recomputation and backward of a part then
lie apart, and no pipeline schedule has room for a second forward pass.  So what crosses from one place to another
is kept from the forward pass, as pipelines keep the inputs of their stages, and each place recomputes what is
inside of it, as the start of its own backward.

The recomputed value and the one to keep are equal because they are the same expression: values are numbered
by what computes them (value numbering, Alpern, Wegman and Zadeck, 1988).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax

from mpmd_trace.frontend import folding, marker_primitives
from mpmd_trace.frontend.eval_jaxpr import applied, interpret
from mpmd_trace.frontend.fingerprint import Fingerprints
from mpmd_trace.frontend.scope import Scope
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Equation

#: Where a name is: its mesh and stage, where it has them.
Site: TypeAlias = tuple[str | None, int | None]
_NOWHERE: frozenset[Site] = frozenset()


class Expressions:
    """Numbers for expressions: equal where the same equations are applied to equal operands."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._numbers: dict[Hashable, int] = {}
        self._fresh = 0
        #: How many scans are around the equations that are being numbered.
        self._depth = 0

    def fresh(self) -> int:
        """Return a number that no expression has."""
        self._fresh -= 1
        return self._fresh

    def constant(self, value: Any) -> int:
        """Return the number of a constant that is written out."""
        return self._numbers.setdefault(self._fingerprints.value(value), len(self._numbers))

    def slice(self, operand: int, index: int) -> int:
        """Return the number of a slice of a value along its first axis."""
        return self._numbers.setdefault(("slice", operand, index), len(self._numbers))

    def results(self, eqn: Equation, operands: Sequence[int]) -> list[int]:
        """Return the numbers of the results of `eqn` for the numbers of its operands."""
        if eqn.primitive is marker_primitives.transposes_p:
            return list(operands)
        inner = applied(eqn)
        if inner is not None:
            return interpret(inner, operands, self.results, constant=self.constant)
        if eqn.effects:
            return [self.fresh() for _ in eqn.outvars]
        if eqn.primitive.name == "scan":
            return self._scan(eqn, operands)
        key = (eqn.primitive.name, self._fingerprints.params(eqn), tuple(operands))
        return [self._numbers.setdefault((key, i), len(self._numbers)) for i in range(len(eqn.outvars))]

    def _scan(self, eqn: Equation, operands: Sequence[int]) -> list[int]:
        """By what an iteration computes: one that is recomputed also returns what its derivative reads."""
        layout = tracing.scan_layout(eqn)
        constants, start, scanned = layout.split(operands)
        self._depth += 1
        carries: list[Hashable] = [("carry", self._depth, i) for i in range(layout.carries)]
        rows: list[Hashable] = [("row", self._depth, number) for number in scanned]
        inside = [self._numbers.setdefault(key, len(self._numbers)) for key in (*carries, *rows)]
        outputs = interpret(layout.body, [*constants, *inside], self.results, constant=self.constant)
        self._depth -= 1
        loop = ("scan", layout.length, eqn.params["reverse"], tuple(start), tuple(outputs[: layout.carries]))
        keys: list[Hashable] = [(loop, i) for i in range(layout.carries)]
        keys += [(loop, "row", number) for number in outputs[layout.carries :]]
        return [self._numbers.setdefault(key, len(self._numbers)) for key in keys]


class Later:
    """A value of the forward pass that only the backward may need: computed when it does."""

    def __init__(self, compute: Callable[[], Sequence[Any]], index: int) -> None:
        self._compute = compute
        self._index = index

    def now(self) -> Any:
        """Return the value."""
        return self._compute()[self._index]


def now(value: Any) -> Any:
    """Return `value`, computed."""
    return value.now() if isinstance(value, Later) else value


class Values:
    """The values of one trace: the number of each, the place it was recomputed or differentiated at.

    Args:
        expressions: the numbers, for all traces of a program.
        place: where a name is.
    """

    def __init__(self, expressions: Expressions, place: Callable[[str], Site]) -> None:
        self._expressions = expressions
        self._place = place
        self._known: dict[int, tuple[Any, int]] = {}
        self._places: dict[int, frozenset[Site]] = {}
        self._forward: dict[int, Any] = {}
        #: By id, what is recomputed.
        self._again: set[int] = set()

    def operands(self, args: Sequence[Any], name: str | None) -> list[Any]:
        """Return `args` of an equation of the backward; of those from other places, the ones of the forward pass.

        `name`: of the computation that the equation is, None for other equations.
        """
        own = _NOWHERE if name is None else frozenset([self._place(name)])
        if len(own | self._places_of(args)) < 2:
            return list(args)
        return [a if self._places.get(id(a), _NOWHERE) <= own else self._kept(a) for a in args]

    def _places_of(self, values: Sequence[Any]) -> frozenset[Site]:
        return _NOWHERE.union(*(self._places.get(id(v), _NOWHERE) for v in values))

    def _kept(self, value: Any) -> Any:
        number = self._known.get(id(value))
        if number is None:
            return value
        result = self._forward[number[1]] = now(self._forward.get(number[1], value))
        return result

    def crosses(self, args: Sequence[Any], name: str) -> bool:
        """Return whether the computation `name` of the backward gets something recomputed elsewhere."""
        own = frozenset([self._place(name)])
        return any(id(a) in self._again and not self._places[id(a)] <= own for a in args if id(a) in self._places)

    def add_later(
        self, eqn: Equation, args: Sequence[Any], scope: Scope, compute: Callable[[Sequence[Any]], list[Any]]
    ) -> list[Later]:
        """Return the results of `eqn`, an equation of the forward pass that nothing but the backward may need."""
        values = functools.cache(lambda: compute([now(a) for a in args]))
        results = [Later(values, i) for i in range(len(eqn.outvars))]
        self.add(eqn, args, results, None, scope)
        return results

    def add(self, eqn: Equation, args: Sequence[Any], results: Sequence[Any], name: str | None, scope: Scope) -> None:
        """Know the results of `eqn`, which stands at `scope`."""
        places = _NOWHERE
        if scope.is_backward:
            places = self._places_of(args) if name is None else frozenset([self._place(name)])
        numbers = self._expressions.results(eqn, [self._number(a) for a in args])
        for value, number in zip(results, numbers, strict=True):
            if id(value) in self._known:
                continue
            self._known[id(value)] = value, number
            if places:
                self._places[id(value)] = places
            if scope.rematerialized:
                self._again.add(id(value))
            if not scope.is_backward:
                self._forward.setdefault(number, value)

    def add_slices(self, wholes: Sequence[Any], index: int, slices: Sequence[Any]) -> None:
        """Know the slices of some values at an index, which two loops take from each value separately."""
        for value, slice_ in zip(wholes, slices, strict=True):
            if id(slice_) not in self._known:
                self._known[id(slice_)] = slice_, self._expressions.slice(self._number(value), index)

    def _number(self, value: Any) -> int:
        if id(value) not in self._known:
            known = value.value if isinstance(value, folding.Known) else value
            traced = isinstance(known, jax.core.Tracer | folding.Stack)
            number = self._expressions.fresh() if traced else self._expressions.constant(known)
            self._known[id(value)] = value, number
        return self._known[id(value)][1]
