"""Walks over whatever leads from one thing to others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reachable(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """Return the starts and all that follows from them, each once, depth first and from the last to the first."""
    result: dict[T, None] = {}
    pending = list(starts)
    while pending:
        one = pending.pop()
        if one not in result:
            result[one] = None
            pending += following(one)
    return result
