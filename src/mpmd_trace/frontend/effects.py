"""Callbacks for what they do (`jax.debug.print`, `jax.debug.callback`, `io_callback`), some of them in order, and calls
of libraries that have side effects (`jax.ffi.ffi_call`).

Ordered ones get and return a token, an array without meaning: what takes the token of another callback comes
after it.  There is a chain of tokens for each mesh and one for code without a name, so that order costs no
transfer between meshes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend.control_flow import threaded
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.eval_jaxpr import live_equations
from mpmd_trace.frontend.scope import Scope, tag_of
from mpmd_trace.jax_compat import lowering, tracing
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
        #: The chain of code in a computation of this name.
        self.chain = mesh
        self._memo: dict[Closed, tuple[Chain, ...]] = {}
        #: The last token of each chain, for the traces that are being made, innermost last.
        self._tokens: list[dict[Chain, Any]] = []

    @contextmanager
    def trace(self, tokens: dict[Chain, Any]) -> Iterator[None]:
        """Within, another trace is made, in which these are the last tokens so far."""
        self._tokens.append(tokens)
        try:
            yield
        finally:
            self._tokens.pop()

    def chains(self, closed: Closed, scope: Scope) -> tuple[Chain, ...]:
        """Return the chains of the ordered callbacks in `closed`, which stands at `scope`."""
        if not tracing.is_ordered(closed):
            return ()
        return self._found(closed) if scope.is_open else (scope.chain,)

    def _found(self, closed: Closed) -> tuple[Chain, ...]:
        """Return the chains in code without a name."""
        if closed not in self._memo:
            chains: list[Chain] = []
            for eqn in filter(tracing.is_ordered, opened(closed).eqns):
                tag = tag_of(eqn)
                if tag is not None and tag.kind == "named_computation":
                    chains.append(self.chain(tag.name))
                elif tracing.calls_out(eqn):
                    chains.append(None)
                else:
                    chains += [chain for inner in tracing.subjaxprs(eqn) for chain in self._found(inner)]
            self._memo[closed] = tuple(dict.fromkeys(chains))
        return self._memo[closed]

    def given(self, chains: Sequence[Chain]) -> list[Any]:
        """Return the tokens of these chains."""
        return [self._tokens[-1].get(chain, np.zeros((), np.float32)) for chain in chains]

    def take(self, chains: Sequence[Chain], tokens: Sequence[Any]) -> None:
        """Set the tokens of these chains from now on."""
        self._tokens[-1].update(zip(chains, tokens, strict=True))

    def bind(self, eqn: Equation, args: Sequence[Any], chain: Chain) -> list[Any]:
        """Return the results of a callback, behind those of the chain before it where it is ordered."""
        if not tracing.is_ordered(eqn):
            return tracing.rebind(eqn, args)
        chains = (chain,)
        types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        implementation, params = eqn.primitive.impl, eqn.params

        def run(_: Any, *values: Any) -> Any:
            return np.zeros((), np.float32), *map(np.asarray, implementation(*values, **params) or ())

        token, *results = io_callback(run, (TOKEN, *types), *self.given(chains), *args)
        self.take(chains, [token])
        return list(results)

    def loop(
        self, eqn: Equation, args: Sequence[Any], scope: Scope, evaluate: Callable[[Closed, Sequence[Any]], list[Any]]
    ) -> list[Any]:
        """Return the results of a loop or conditional at `scope` that stays, with a token through it.

        What is in it, of whichever chains, comes in one order. `evaluate` interprets the jaxprs in it.
        """
        inner = list(tracing.subjaxprs(eqn))
        chains = tuple(dict.fromkeys([scope.chain, *(c for closed in inner for c in self.chains(closed, scope))]))

        def inside(closed: Closed, values: Sequence[Any], token: Any) -> tuple[list[Any], Any]:
            with self.trace(dict.fromkeys(chains, token)):
                results = evaluate(closed, values)
                return results, self._tokens[-1][scope.chain]

        results, token = threaded(eqn, args, functools.reduce(operator.add, self.given(chains)), inside)
        *results, token = once([*results, token]) if scope.is_open else [*results, token]
        self.take(chains, [token] * len(chains))
        return results


def once(results: Sequence[Any]) -> list[Any]:
    """Return results that are sent to the meshes that use them, and not computed on each: effects happen once."""
    return [lowering.broadcast_p.bind(r)[0] for r in results]


def _side_effect(eqn: Equation) -> str:
    """Return why a program over several meshes cannot have the side effect of `eqn`, and what to do."""
    if eqn.primitive.name == "check":
        return (
            "checkify.check raises nothing inside of a compiled step. Compile the step that returns its errors, "
            "mpmd_trace.jit(checkify.checkify(step), config), whose first result has them: error.throw() raises."
        )
    if tracing.uses_ref(eqn):
        if flags := tracing.error_checks():
            return (
                f"{' and '.join(flags)}='raise' keeps errors in a Ref that all of the step writes, which a program "
                "split over meshes cannot have. Set it to 'ignore', or check the values that the step returns."
            )
        return (
            "the step uses a Ref (jax.new_ref) that is not among its arguments, so where it lives cannot be chosen. "
            "Give it to the step as an argument: its array is then on the mesh of what uses it, and changed in place."
        )
    kinds = ", ".join(sorted(map(str, eqn.effects)))
    return (
        f"{eqn.primitive.name} has a side effect ({kinds}), which a program split over meshes cannot have. Return the "
        "value instead, or use a callback (jax.debug.callback, jax.experimental.io_callback)."
    )


def effect_problems(closed: Any) -> list[Diagnostic]:
    """Return the side effects that a program over several meshes cannot have."""
    problems = []

    def visit(jaxpr: Any) -> None:
        for eqn, alive in zip(opened(jaxpr).eqns, live_equations(jaxpr), strict=True):
            inner = list(tracing.subjaxprs(eqn))
            if alive and eqn.effects and not inner and not tracing.calls_out(eqn):
                problems.append(problem(_side_effect(eqn), tracing.location(eqn)))
            for sub in inner:
                visit(sub)

    if tracing.effects(closed):
        visit(closed)
    return problems
