"""Recognizing that two jaxprs are the same program.

JAX's caches usually give repeated calls the very same jaxpr object; where they do not (a function
made anew for every microbatch), equal structure does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from mpmd_trace.frontend import tags
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, opened

# Rules for differentiation: functions, different in every trace, and of no use any more.
_RULES = frozenset({"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"})


class Written:
    """Writes jaxprs with numbers for their variables: those are written alike that are equal but for names."""

    def lines(self, closed: Closed) -> Iterator[Hashable]:
        """Yield what stands for the arguments, the equations and the results."""
        parts = opened(closed)
        number: dict[Any, int] = {}

        def define(variables: Any) -> tuple[Hashable, ...]:
            for v in variables:
                number[v] = len(number)
            return tuple(self.type(v.aval) for v in variables)

        def use(atom: Any) -> Hashable:
            return (self.type(atom.aval), self.value(atom.val)) if tracing.is_literal(atom) else number[atom]

        yield define(parts.constvars), tuple(map(self.value, parts.consts)), define(parts.invars)
        for eqn in parts.eqns:
            yield self.equation(eqn), tuple(map(use, eqn.invars)), self.params(eqn), define(eqn.outvars)
        yield tuple(map(use, parts.outvars))

    def params(self, eqn: tracing.Equation) -> Hashable:
        """Return what stands for the parameters of `eqn`, but for rules."""
        return tuple((k, self.value(v)) for k, v in eqn.params.items() if k not in _RULES)

    def type(self, aval: Any) -> Hashable:
        """Return what stands for a type."""
        return (str(aval), bool(getattr(aval, "weak_type", False)))

    def equation(self, eqn: tracing.Equation) -> Hashable:
        """Return what stands for an equation, but for its operands, parameters and results."""
        raise NotImplementedError

    def value(self, value: Any) -> Hashable:
        """Return what stands for a parameter or constant: equal for equal ones."""
        raise NotImplementedError


class Fingerprints(Written):
    """Numbers for jaxprs, equal exactly when the jaxprs are equal but for names of variables."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._memo: dict[Closed, int] = {}
        self._alive: list[Any] = []

    def of(self, closed: Closed) -> int:
        """Return the number of `closed`."""
        if closed not in self._memo:
            self._memo[closed] = self._numbers.setdefault(tuple(self.lines(closed)), len(self._numbers))
        return self._memo[closed]

    def equation(self, eqn: tracing.Equation) -> Hashable:
        scopes = tracing.scopes(eqn)
        again = any("rematted_computation" in s for s in scopes)
        return eqn.primitive.name, tracing.transposes(eqn), tags.counter_in(scopes), again

    def value(self, value: Any) -> Hashable:
        if tracing.is_jaxpr(value):
            return ("jaxpr", self.of(value))
        if isinstance(value, (tuple, list)):
            return tuple(map(self.value, value))
        if isinstance(value, (np.ndarray, np.generic)) and value.size <= 16:
            return (str(value.dtype), value.shape, value.tobytes())
        if isinstance(value, (bool, int, float, complex)):
            return (type(value).__name__, repr(value))  # tells 0.0 from -0.0, and 1 from True
        try:
            hash(value)
        except TypeError:
            self._alive.append(value)
            return ("object", id(value))
        return (type(value).__name__, value)
