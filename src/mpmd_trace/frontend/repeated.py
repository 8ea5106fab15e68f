"""Loops of which the first iterations stand for all, since the others differ from them in the index alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpmd_trace.frontend import folding
from mpmd_trace.frontend.calls import compute
from mpmd_trace.frontend.eval_jaxpr import needed_variables
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import ScanLayout, is_literal, opened

#: The iterations of such a loop that are written: the first, which starts with other values, and two to be compared.
WRITTEN = 3
#: Loops of fewer iterations are written as they are.
LEAST = 16
#: What stands for an array of which only the type is known; for a slice, it is a list of where it starts.
_ARRAY = object()


def is_regular(layout: ScanLayout, starts: Sequence[Any], scanned: Sequence[Any]) -> bool:
    """Return whether each number that an iteration is called with grows by the same from iteration to iteration.

    The iterations are calls of one function then, on slices and numbers that follow from those of the first ones; and
    only the next one needs what one of them returns, and stacks of what all return.
    """
    body, parts = layout.body, opened(layout.body)
    starts = [folding.as_known(v, a) for v, a in zip(starts, tracing.in_avals(body), strict=False)]
    if layout.length < LEAST or layout.reverse or tracing.effects(body):
        return False
    if not scanned or any(isinstance(value, folding.Stack) for value in (*starts, *scanned)):
        return False
    if any(isinstance(value, folding.Known) for value in starts[layout.constants :]):
        return False
    own = {v: i for i, v in enumerate(parts.invars)}
    for i, atom in enumerate(parts.outvars, layout.constants):
        # What is stacked comes from the call; a carry may also stay what it is.
        stays = i if i < layout.constants + layout.carries else None
        if is_literal(atom) or own.get(atom, stays) != stays:
            return False
    known = [value for value in scanned if isinstance(value, folding.Known)]
    if not all(_is_even(list(value.value)) for value in known):
        return False
    if not known and not any(isinstance(value, folding.Known) for value in starts):
        return True
    numbers = _Numbers(layout, starts, scanned)
    if numbers.gives_results:
        return False
    given = [numbers.at(i) for i in range(layout.length)]
    return all(len(one) == len(given[0]) for one in given) and all(map(_is_even, zip(*given, strict=True)))


def hands_on(layout: ScanLayout, values: Sequence[Any], results: Sequence[Any]) -> bool:
    """Return whether results are what the iteration got, but for a carry that stays as it is, or are known."""
    own = {id(value) for value in values}
    carry, outputs = results[: layout.carries], results[layout.carries :]
    if any(id(value) in own or isinstance(value, folding.Known) for value in outputs):
        return True
    return any(a is not b and id(b) in own for a, b in zip(values[layout.constants :], carry, strict=False))


def _is_even(numbers: Sequence[Any]) -> bool:
    """Return whether the differences of all numbers, or arrays, and those before them are the same."""
    given = [np.asarray(number).tolist() for number in numbers]  # Python's integers do not wrap around
    if all(one == given[0] for one in given):
        return True
    if not isinstance(given[0], int) or isinstance(given[0], bool):
        return False
    return all(b - a == given[1] - given[0] for a, b in itertools.pairwise(given))


class _Numbers:
    """The numbers that calls of the body get, as `calls.Divisions` would divide them."""

    def __init__(self, layout: ScanLayout, starts: Sequence[Any], scanned: Sequence[Any]) -> None:
        self._parts = parts = opened(layout.body)
        self._starts = [value if isinstance(value, folding.Known) else _ARRAY for value in starts]
        self._scanned = scanned
        self._outside: Sequence[int] = range(len(parts.eqns))
        self._needed: set[Any] = set()
        env, self._outside = self._compute(0)
        inside = set(parts.invars)
        made = {v for v in env if v not in inside}
        self.gives_results = any(atom in made for atom in parts.outvars)
        wanted = [atom not in inside for atom in parts.outvars]
        self._needed = needed_variables(layout.body, wanted, made) & made

    def at(self, i: int) -> list[Any]:
        """Return the numbers of an iteration: those that calls get, and where slices start."""
        env, outside = self._compute(i)
        result: list[Any] = []
        for number in outside:
            (result_of,) = self._parts.eqns[number].outvars
            value = env[result_of]
            if not isinstance(value, folding.Known):
                result += value
            elif result_of in self._needed:
                result.append(value.value)
        return result

    def _compute(self, i: int) -> tuple[dict[Any, Any], list[int]]:
        items = [folding.slice_at(x, i) if isinstance(x, folding.Known) else _ARRAY for x in self._scanned]
        env: dict[Any, Any] = dict(zip(self._parts.invars, [*self._starts, *items], strict=True))
        return env, compute(self._parts, self._outside, env, _starts)


def _starts(eqn: tracing.Equation, values: Sequence[Any], is_moved: bool) -> list[Any] | None:
    """Return for a slice that is made outside where it starts, and nothing for what becomes of it."""
    if is_moved and eqn.primitive.name in folding.RESHAPING:
        return [[]]
    starts = folding.starts_of(eqn, values)
    return None if starts is None else [starts]
