"""Callbacks for what they do (`jax.debug.print`, `jax.debug.callback`, `io_callback`), some of them in order.

Ordered ones get and return a token, an array without meaning: what takes the token of another callback comes
after it.  There is a chain of tokens for each mesh and one for code without a name, so that order costs no
transfer between meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend.calls import live_equations
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.scope import is_computation, tag_of
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

#: What a chain of tokens belongs to: a mesh, None for code without a name.
Chain = Hashable
TOKEN = jax.ShapeDtypeStruct((), np.float32)


class Order:
    """The chains of ordered callbacks in programs.

    Args:
        mesh: the mesh of a name.
    """

    def __init__(self, mesh: Callable[[str], Chain]) -> None:
        self._mesh = mesh
        self._memo: dict[int, tuple[Closed, tuple[Chain, ...]]] = {}
        #: The last token of each chain, for the traces that are being made, innermost last.
        self.tokens: list[dict[Chain, Any]] = []

    def chain(self, name: str | None) -> Chain:
        """The chain of code in the computation `name`."""
        return None if name is None else self._mesh(name)

    def chains(self, closed: Closed, name: str | None) -> tuple[Chain, ...]:
        """The chains of the ordered callbacks in `closed`, a part of the computation `name`."""
        if not any(map(tracing.is_ordered, closed.effects)):
            return ()
        if name is not None:
            return (self.chain(name),)
        if id(closed) not in self._memo:
            found: dict[Chain, None] = {}
            for eqn in opened(closed).eqns:
                if tracing.is_callback(eqn) and any(map(tracing.is_ordered, eqn.effects)):
                    found[None] = None
                tag = tag_of(eqn)
                for inner in tracing.subjaxprs(eqn):
                    found.update(dict.fromkeys(self.chains(inner, tag.name if tag and is_computation(eqn) else None)))
            self._memo[id(closed)] = closed, tuple(found)
        return self._memo[id(closed)][1]

    def given(self, chains: Sequence[Chain]) -> list[Any]:
        """The tokens of these chains."""
        return [self.tokens[-1].get(chain, np.zeros((), np.float32)) for chain in chains]

    def take(self, chains: Sequence[Chain], tokens: Sequence[Any]) -> None:
        """The tokens of these chains from now on."""
        self.tokens[-1].update(zip(chains, tokens, strict=True))

    def bind(self, eqn: Equation, args: Sequence[Any], name: str | None) -> list[Any]:
        """The results of a callback in the computation `name`, behind those before it where it is ordered."""
        if not any(map(tracing.is_ordered, eqn.effects)):
            return tracing.rebind(eqn, args)
        chains = (self.chain(name),)
        types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        implementation, params = eqn.primitive.impl, eqn.params

        def run(_: Any, *values: Any) -> Any:
            return np.zeros((), np.float32), *map(np.asarray, implementation(*values, **params) or ())

        token, *results = io_callback(run, (TOKEN, *types), *self.given(chains), *args)
        self.take(chains, [token])
        return list(results)


def effect_problems(closed: Any) -> list[Diagnostic]:
    """The side effects that a program over several meshes cannot have."""
    problems = []

    def visit(jaxpr: Any) -> None:
        for eqn, alive in zip(opened(jaxpr).eqns, live_equations(jaxpr), strict=True):
            inner = list(tracing.subjaxprs(eqn))
            kinds = ", ".join(sorted(map(str, eqn.effects)))
            if alive and eqn.effects and not inner and not tracing.is_callback(eqn):
                problems.append(
                    problem(
                        f"{eqn.primitive.name} has a side effect ({kinds}), "
                        "which a program split over meshes cannot have. Return the value instead, "
                        "or use a callback (jax.debug.callback, jax.experimental.io_callback).",
                        tracing.location(eqn),
                    )
                )
            for sub in inner:
                visit(sub)

    if tracing.effects(closed):
        visit(closed)
    return problems
