"""Division of calls: what goes through a call and what does not.

The body of a call is shared by all iterations of a loop, so whatever depends on the loop's index
alone, and slices taken at that index, are better computed around the call: then all iterations are
calls of one function on different slices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax

from mpmd_trace.frontend import folding
from mpmd_trace.frontend.eval_jaxpr import needed_variables
from mpmd_trace.frontend.fingerprint import Fingerprints
from mpmd_trace.frontend.scope import Shared
from mpmd_trace.jax_compat import lowering, tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, OpenJaxpr, opened

#: A value inside a body: the position of its equation, and of the result there.
Place = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Division:
    """The division of calls of a body whose arguments are known, stacks or neither at the same positions.

    `direct` holds the results that need no call, by position; `wanted` says for each result whether the call computes
    it; `arguments` lists the positions of the arguments that it needs, `given` the values inside the body that are
    computed outside.
    """

    direct: tuple[tuple[int, Any], ...] = ()
    wanted: tuple[bool, ...] = ()
    arguments: tuple[int, ...] = ()
    given: tuple[tuple[Place, Any], ...] = ()


class Divisions:
    """Divides calls of bodies, once for all iterations of a loop."""

    def __init__(self) -> None:
        #: The body, which keeps its id, its parts, the equations that are computed around the call, and the division.
        self._made: dict[Hashable, tuple[Closed, OpenJaxpr, list[int], Division]] = {}

    def divide(self, closed: Closed, args: Sequence[Any]) -> tuple[Division, dict[int, Any], list[Any]]:
        """Return the division of the call of `closed` on `args`, the direct results by position and the given values.

        Emits the slices that are taken outside.
        """
        # What can be computed depends on what is known, not on its value.
        key = (id(closed), tuple([a.__class__ if isinstance(a, folding.Known | folding.Stack) else None for a in args]))
        made = self._made.get(key)
        parts = opened(closed) if made is None else made[1]
        env: dict[Any, Any] = dict(zip(parts.invars, args, strict=True))
        if made is None:
            known = any(isinstance(a, folding.Known) for a in args)
            outside = compute(parts, range(len(parts.eqns)) if known else (), env)
            made = self._made[key] = closed, parts, outside, _division(closed, parts, outside, env)
        else:
            compute(parts, made[2], env)
        division = made[3]
        direct = {i: atom.val if tracing.is_literal(atom) else env[atom] for i, atom in division.direct}
        return division, direct, [env[v] for _, v in division.given]


def compute(
    parts: OpenJaxpr, equations: Iterable[int], env: dict[Any, Any], sliced: Callable[..., Any] = folding.sliced
) -> list[int]:
    """Add the results of those of the equations to `env` that can be computed around a call; return these.

    `sliced` gives the results of slices at known places, and of reshapes of what was computed so.
    """
    outside: list[int] = []
    moved: set[Any] = set()
    for i in equations:
        eqn = parts.eqns[i]
        if not all(tracing.is_literal(v) or v in env for v in eqn.invars):
            continue
        values = [v.val if tracing.is_literal(v) else env[v] for v in eqn.invars]
        results = folding.fold(eqn, values)
        if results is None:
            is_moved = any(v in moved for v in eqn.invars if not tracing.is_literal(v))
            with tracing.source_of(eqn):
                results = sliced(eqn, values, is_moved)
        if results is not None:
            env.update(zip(eqn.outvars, results, strict=True))
            moved.update(eqn.outvars)
            outside.append(i)
    return outside


def _division(closed: Closed, parts: OpenJaxpr, outside: Sequence[int], env: dict[Any, Any]) -> Division:
    direct = {i: atom for i, atom in enumerate(parts.outvars) if tracing.is_literal(atom) or atom in env}
    wanted = tuple(i not in direct for i in range(len(parts.outvars)))
    places = {v: (i, k) for i in outside for k, v in enumerate(parts.eqns[i].outvars)}
    needed = needed_variables(closed, wanted, set(places))
    return Division(
        direct=tuple(direct.items()),
        wanted=wanted,
        arguments=tuple(i for i, v in enumerate(parts.invars) if v in needed),
        given=tuple((place, v) for v, place in places.items() if v in needed),
    )


class OutlinedCalls:
    """Makes what belongs to a microbatch a call of its own; calls of equal things have one body.

    So a gradient of the loop finds what the forward computed.
    """

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        #: With what is called, which its key names by identity.
        self._bodies: dict[Any, tuple[Any, Closed]] = {}

    def equation(self, eqn: Equation, operands: Sequence[Any], params: dict[str, Any], counter: int) -> list[Any]:
        """Return an equation of code without a name; one that reads nothing traced is no call."""
        traced = [i for i, a in enumerate(operands) if isinstance(a, jax.core.Tracer)]
        if not traced:
            return tracing.rebind(eqn, operands, params)

        def run(*values: Any) -> list[Any]:
            given = dict(zip(traced, values, strict=True))
            return tracing.rebind(eqn, [given.get(i, a) for i, a in enumerate(operands)], params)

        written = tuple(self._fingerprints.value(a) for i, a in enumerate(operands) if i not in traced)
        key = (id(eqn), tuple(traced), written)
        if key not in self._bodies:
            self._bodies[key] = eqn, tracing.make_closed(run, [jax.typeof(operands[i]) for i in traced])
        return self._call(key, [operands[i] for i in traced], eqn.primitive.name, counter)

    def computation(self, shared: Shared, operands: Sequence[Any], name: str, count: int, counter: int) -> list[Any]:
        """Return a named computation, transposed `count` times."""
        key = (id(shared), name, count)
        if key not in self._bodies:

            def run(*args: Any) -> Any:
                return lowering.named_computation_p.bind(*args, body=shared.closed, name=name, transpose_count=count)

            self._bodies[key] = shared, tracing.make_closed(run, tracing.in_avals(shared.closed))
        return self._call(key, operands, name, counter)

    def tensor(self, x: Any, name: str, counter: int) -> list[Any]:
        """Return a named tensor."""
        key = (name, jax.typeof(x))
        if key not in self._bodies:
            made = tracing.make_closed(lambda x: lowering.named_tensor_p.bind(x, name=name), [key[1]])
            self._bodies[key] = None, made
        return self._call(key, [x], name, counter)

    def _call(self, key: Any, operands: Sequence[Any], name: str, counter: int) -> list[Any]:
        body = self._bodies[key][1]
        return list(lowering.call_p.bind(*operands, body=body, name=name, call_counter=counter, repeats=1))
