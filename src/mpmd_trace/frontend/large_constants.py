"""Constants that are too large to be written into a program: they become inputs of it, and of each body with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


class LargeConstants:
    """What stands for large constants in the traces that are being made."""

    def __init__(self) -> None:
        self._given: list[dict[int, Any]] = []

    @contextmanager
    def given(self, values: dict[int, Any]) -> Iterator[None]:
        """Inside, these values of the trace stand for the constants."""
        self._given.append(values)
        try:
            yield
        finally:
            self._given.pop()

    def read(self, value: Any) -> Any:
        """Return what stands for a constant."""
        return self._given[-1].get(id(value), value)


def is_large(value: Any) -> bool:
    """Return whether a constant becomes an input."""
    return getattr(value, "nbytes", 0) > LARGE_CONSTANT_BYTES
