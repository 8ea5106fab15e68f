"""What passes remember of a program between them, for as long as one run of passes lasts.

A cache that outlived the run would hand places in one program to the next one, which merely looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_caches: list[dict[Any, Any]] = []


def run_cache() -> dict[Any, Any]:
    """Return a dictionary, for a module to keep, that is empty when a run of passes begins and when it has ended."""
    cache: dict[Any, Any] = {}
    _caches.append(cache)
    return cache


@contextmanager
def caches_of_a_run() -> Iterator[None]:
    """Forget what passes remember, before and after a run of them."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for cache in _caches:
        cache.clear()
