"""Counting the work of this package in calls: the same in every run, whatever else the machine does."""

from __future__ import annotations

import cProfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import mpmd_trace

__all__ = ["calls_of"]

_FOLDER = str(Path(mpmd_trace.__file__).parent)


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """Return how often each function of the package was called, or went on, and called functions written in C."""
    with cProfile.Profile() as profile:
        run()
    calls: Counter[str] = Counter()
    for entry in profile.getstats():
        if isinstance(code := entry.code, CodeType) and code.co_filename.startswith(_FOLDER):
            of_c = sum(call.callcount for call in entry.calls or () if isinstance(call.code, str))
            calls[f"{Path(code.co_filename).relative_to(_FOLDER)}:{code.co_qualname}"] += entry.callcount + of_c
    return calls
