"""Recognising that two jaxprs are the same program.

JAX's caches usually give repeated calls the very same jaxpr object; where they do not (a function
made anew for every microbatch), equal structure does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from mpmd_trace.frontend import tags
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, opened

# Rules for differentiation: functions, different in every trace, and of no use any more.
RULES = frozenset({"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"})


class Fingerprints:
    """Numbers for jaxprs, equal exactly when the jaxprs are equal but for names of variables."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._memo: dict[int, tuple[Any, int]] = {}
        self._alive: list[Any] = []

    def of(self, closed: Closed) -> int:
        """The number of `closed`."""
        if id(closed) not in self._memo:
            key = self._key(closed)
            self._memo[id(closed)] = (closed, self._numbers.setdefault(key, len(self._numbers)))
        return self._memo[id(closed)][1]

    def _key(self, closed: Closed) -> Hashable:
        parts = opened(closed)
        number: dict[Any, int] = {}

        def define(variables: Any) -> tuple[Hashable, ...]:
            for v in variables:
                number[v] = len(number)
            return tuple(_type(v.aval) for v in variables)

        def use(atom: Any) -> Hashable:
            if tracing.is_literal(atom):
                return ("literal", _type(atom.aval), self.value(atom.val))
            return number[atom]

        lines: list[Hashable] = [define(parts.constvars), tuple(map(self.value, parts.consts)), define(parts.invars)]
        for eqn in parts.eqns:
            scopes = tracing.scopes(eqn)
            lines.append(
                (
                    eqn.primitive.name,
                    tuple(map(use, eqn.invars)),
                    self.params(eqn),
                    tracing.transposes(eqn),
                    tags.counter_in(scopes),
                    any("rematted_computation" in s for s in scopes),
                    define(eqn.outvars),
                )
            )
        return (tuple(lines), tuple(map(use, parts.outvars)))

    def params(self, eqn: tracing.Equation) -> Hashable:
        """What stands for the parameters of `eqn`, but for rules."""
        return tuple((k, self.value(v)) for k, v in eqn.params.items() if k not in RULES)

    def value(self, value: Any) -> Hashable:
        """What stands for a parameter or constant: equal for equal ones."""
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


def _type(aval: Any) -> Hashable:
    return (str(aval), bool(getattr(aval, "weak_type", False)))
