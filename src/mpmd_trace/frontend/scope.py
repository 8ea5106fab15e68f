"""The scope of an equation while a program is rewritten, and the results of a rewritten body."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

from mpmd_trace.frontend import marker_primitives, tags
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The surroundings of the equations that are interpreted.

    `level` is `main`, `callee` (the body of a call), `named` (of a named computation) or `kept`
    (control flow that stays as it is, inside a named computation).
    """

    level: str = "main"
    transposes: int = 0
    counter: int | None = None
    rematerialized: bool = False
    #: The named computations around it, outermost first.
    around: tuple[str, ...] = ()
    #: What ordered callbacks here come in order with: those of the mesh of the named computation, None outside of any.
    chain: Hashable = None
    #: Whether the scan here is a loop of ours, whose iterations are microbatches whatever is in them.
    is_ours: bool = False

    @property
    def is_open(self) -> bool:
        """True if names become ops here."""
        return self.level in ("main", "callee")

    @property
    def is_backward(self) -> bool:
        """True if what is here is transposed, or recomputed for what is."""
        return self.rematerialized or self.transposes > 0

    def at(self, eqn: Equation) -> Scope:
        """Return the scope inside `eqn`."""
        scopes = tracing.scopes(eqn)
        counter = tags.counter_in(scopes)
        return dataclasses.replace(
            self,
            transposes=self.transposes + tracing.transposes(eqn),
            counter=self.counter if counter is None else counter,
            rematerialized=self.rematerialized or any("rematted_computation" in scope for scope in scopes),
        )


@dataclasses.dataclass(frozen=True)
class Shared:
    """A rewritten body, and where each result of the original comes from.

    A source is `(True, i)` for the i-th result of `closed`, `(False, i)` for its i-th argument:
    results that are equal, or that only pass an argument on, do not leave the body.
    """

    closed: Closed
    sources: tuple[tuple[bool, int], ...]

    @property
    def emits(self) -> bool:
        """True if any result is computed."""
        return any(computed for computed, _ in self.sources)

    def results(self, operands: Sequence[Any], out: Sequence[Any]) -> list[Any]:
        """Return the results of the original, for the operands and results of `closed`."""
        return [(out if computed else operands)[i] for computed, i in self.sources]


def tag_of(eqn: Equation) -> tags.Tag | None:
    """Return the tag of a tagged jit, None for any other equation."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return None
    return tags.decode(eqn.params["name"])


def is_computation(eqn: Equation) -> bool:
    """Return whether `eqn` is a named computation."""
    tag = tag_of(eqn)
    return tag is not None and tag.kind == "named_computation"


def count_in(body: Closed) -> int:
    """Return how often the named computation with this body was transposed."""
    eqns = opened(body).eqns
    counts = [e.params["count"] for e in eqns if e.primitive is marker_primitives.transposes_p]
    return max(counts, default=0)


def distinct(results: Sequence[Any], arguments: Sequence[Any]) -> tuple[list[Any], list[tuple[bool, int]]]:
    """Return the results without arguments and repetitions, and the source of each of them."""
    kept: list[Any] = []
    place = {id(a): (False, i) for i, a in enumerate(arguments)}
    sources = []
    for result in results:
        if id(result) not in place:
            place[id(result)] = (True, len(kept))
            kept.append(result)
        sources.append(place[id(result)])
    return kept, sources
