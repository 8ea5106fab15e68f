"""What goes through a call and what does not.

The body of a call is shared by all iterations of a loop, so whatever depends on the loop's index
alone, and slices taken at that index, are better computed around the call: then all iterations are
calls of one function on different slices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mpmd_trace.frontend import folding
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, opened

#: A value inside a body: the position of its equation, and of the result there.
Place = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one call of a body divides.

    `direct` holds the results that need no call, by position; `wanted` says for each result whether
    the call computes it; `arguments` lists the positions of the arguments that it needs, `given` the
    values inside the body that are computed outside (`values`, in the same order).
    """

    direct: dict[int, Any]
    wanted: tuple[bool, ...]
    arguments: tuple[int, ...]
    given: tuple[Place, ...]
    values: tuple[Any, ...]


def plan(closed: Closed, args: Sequence[Any]) -> Plan:
    """Return the division of the call of `closed` on `args`; emits the slices that it takes outside."""
    parts = opened(closed)
    env: dict[Any, Any] = dict(zip(parts.invars, args, strict=True))
    outside: dict[Any, Place] = {}
    if any(isinstance(a, folding.Known) for a in args):
        for i, eqn in enumerate(parts.eqns):
            if not all(tracing.is_literal(v) or v in env for v in eqn.invars):
                continue
            values = [v.val if tracing.is_literal(v) else env[v] for v in eqn.invars]
            moved = any(v in outside for v in eqn.invars if not tracing.is_literal(v))
            with tracing.source_of(eqn):
                results = folding.fold(eqn, values) or folding.sliced(eqn, values, moved)
            if results is not None:
                env.update(zip(eqn.outvars, results, strict=True))
                outside.update((v, (i, k)) for k, v in enumerate(eqn.outvars))
    direct = {}
    for i, atom in enumerate(parts.outvars):
        if tracing.is_literal(atom):
            direct[i] = atom.val
        elif atom in env:
            direct[i] = env[atom]
    wanted = tuple(i not in direct for i in range(len(parts.outvars)))
    needed = needed_variables(closed, wanted, set(outside))
    given = [(place, env[v]) for v, place in outside.items() if v in needed]
    return Plan(
        direct=direct,
        wanted=wanted,
        arguments=tuple(i for i, v in enumerate(parts.invars) if v in needed),
        given=tuple(place for place, _ in given),
        values=tuple(value for _, value in given),
    )


def live_equations(closed: Closed, wanted: Sequence[bool] | None = None, given: set[Any] | None = None) -> list[bool]:
    """For each equation, whether a (`wanted`) result depends on it, when `given` is known."""
    return _liveness(closed, wanted, given or set())[0]


def needed_variables(closed: Closed, wanted: Sequence[bool], given: set[Any]) -> set[Any]:
    """Return the variables on which the wanted results depend, when the values of `given` are known."""
    return _liveness(closed, wanted, given)[1]


def _liveness(closed: Closed, wanted: Sequence[bool] | None, given: set[Any]) -> tuple[list[bool], set[Any]]:
    parts = opened(closed)
    needed = {v for i, v in enumerate(parts.outvars) if (wanted is None or wanted[i]) and not tracing.is_literal(v)}
    alive = [False] * len(parts.eqns)
    for i in range(len(parts.eqns) - 1, -1, -1):
        eqn = parts.eqns[i]
        if eqn.effects or any(v in needed and v not in given for v in eqn.outvars):
            alive[i] = True
            needed.update(v for v in eqn.invars if not tracing.is_literal(v))
    return alive, needed
