"""Which scans of a traced function are over layers.

A scan over layers carries activations through them: its steps multiply what is carried by parameters, which are
scanned.  A scan over microbatches carries sums, in which no step looks at those of others; one over time, or over a
schedule, scans what is no parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from mpmd_trace.frontend.jaxpr_queries import REMAT, applied
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", **dict.fromkeys(REMAT, "jaxpr")}
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
_SUMS = frozenset({"add", "add_any", "max", "min", "or", "and", "convert_element_type"})
#: What a value depends on: what the scan carries, and numbers that it scans.
_CARRIED, _SCANNED = 1, 2


def inner_of(eqn: Equation) -> Closed | None:
    """Return the jaxpr that `eqn` only applies, if scans in it are looked for."""
    return eqn.params[_CALLS[eqn.primitive.name]] if eqn.primitive.name in _CALLS and tag_of(eqn) is None else None


class Found(NamedTuple):
    """A scan, and whether it is over layers."""

    #: Its body, by whose identity it is known.
    body: Closed
    length: int
    #: Where it is in the program of the user.
    place: str | None
    #: Why it is not over layers, "" if it may be.
    reason: str
    #: Whether it multiplies what it carries by what it scans.
    multiplies: bool

    def __str__(self) -> str:
        return f"that of length {self.length}" + ("" if self.place is None else f" at {self.place}")


def scans_of(closed: Closed) -> list[Found]:
    """Return the outermost scans of a jaxpr that may be over layers, and those around and beside them."""
    inner = tracing.opened(closed)
    return list(_scans(closed, [False] * len(inner.invars)))


def _scans(closed: Closed, computed: Sequence[bool]) -> Iterator[Found]:
    """`computed`: of each argument, whether it is the result of a product, and so no parameter."""
    parts = tracing.opened(closed)
    products = {v for v, is_one in zip(parts.invars, computed, strict=True) if is_one}
    for eqn in parts.eqns:
        known = [not tracing.is_literal(v) and v in products for v in eqn.invars]
        body = inner_of(eqn)
        if eqn.primitive.name == "scan":
            result = _judged(eqn, known)
            yield result
            if not result.multiplies:
                yield from _scans(result.body, known)
        elif body is not None:
            yield from _scans(body, known)
        if any(known) or _multiplies(eqn):
            products.update(eqn.outvars)


def _multiplies(eqn: Equation) -> bool:
    """Return whether there is a product in `eqn`."""
    inside = (one for inner in tracing.subjaxprs(eqn) for one in tracing.equations(inner))
    return eqn.primitive.name in _PRODUCTS or any(one.primitive.name in _PRODUCTS for one in inside)


def _judged(eqn: Equation, computed: Sequence[bool]) -> Found:
    layout = tracing.scan_layout(eqn)
    place = tracing.location(eqn)
    scanned = zip(layout.split(eqn.invars)[2], layout.split(computed)[2], strict=True)
    numbers = [jnp.issubdtype(v.aval.dtype, jnp.inexact) and not is_computed for v, is_computed in scanned]
    if not any(numbers):
        return Found(layout.body, layout.length, place, "it scans no parameters", False)
    masks = [*[0] * layout.constants, *[_CARRIED] * layout.carries, *(_SCANNED * n for n in numbers)]
    if _only_sums(layout):
        return Found(layout.body, layout.length, place, "it carries sums, as over microbatches", False)
    return Found(layout.body, layout.length, place, "", _flow(layout.body, masks)[1])


def _only_sums(layout: tracing.ScanLayout) -> bool:
    """Return whether what the scan carries is only passed on or added to, and nothing else reads it."""
    parts = tracing.opened(layout.body)
    users: dict[Any, list[Equation]] = {}
    for eqn in parts.eqns:
        for v in eqn.invars:
            if not tracing.is_literal(v):
                users.setdefault(v, []).append(eqn)

    def is_sum(v: Any, result: Any) -> bool:
        while v is not result and v in users:
            if len(users[v]) > 1 or users[v][0].primitive.name not in _SUMS:
                return False
            v = users[v][0].outvars[0]
        return True  # or nothing looks at it

    carried = parts.invars[layout.constants : layout.constants + layout.carries]
    return all(is_sum(v, result) for v, result in zip(carried, parts.outvars, strict=False))


def _flow(closed: Closed, masks: Sequence[int]) -> tuple[list[int], bool]:
    """Return what the results depend on, for arguments of these; and whether parameters multiply what is carried."""
    parts = tracing.opened(closed)
    of: dict[Any, int] = dict(zip(parts.invars, masks, strict=True))
    multiplies = False

    def read(atom: Any) -> int:
        return 0 if tracing.is_literal(atom) else of.get(atom, 0)

    for eqn in parts.eqns:
        operands = [read(v) for v in eqn.invars]
        body = applied(eqn)
        if body is not None:
            results, inside = _flow(body, operands)
            multiplies |= inside
            of.update(zip(eqn.outvars, results, strict=True))
            continue
        multiplies |= _SCANNED in operands and any(m & _CARRIED for m in operands) and _multiplies(eqn)
        every = 0
        for mask in operands:
            every |= mask
        of.update(dict.fromkeys(eqn.outvars, every))
    return [read(v) for v in parts.outvars], multiplies
