"""Constants that are too large to be written into a program: they become inputs of it, and of each body with them."""

from __future__ import annotations

from typing import Any

from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, opened

#: Constants of more bytes become inputs of the program; smaller ones are written into it.
LARGE_CONSTANT_BYTES = 16 * 1024


@tracing.per_jaxpr
def large_constants(closed: Closed) -> dict[int, Any]:
    """Return the large constants anywhere in `closed`, by identity."""
    parts = opened(closed)
    result = {id(c): c for c in parts.consts if is_large(c)}
    for eqn in parts.eqns:
        result.update({id(v.val): v.val for v in eqn.invars if tracing.is_literal(v) and is_large(v.val)})
        for inner in tracing.subjaxprs(eqn):
            result.update(large_constants(inner))
    return result


def is_large(value: Any) -> bool:
    """Return whether a constant becomes an input."""
    return getattr(value, "nbytes", 0) > LARGE_CONSTANT_BYTES
