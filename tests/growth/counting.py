"""Counting the work of this package in calls: the same in every run, whatever else the machine does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mpmd_trace

__all__ = ["calls_of"]

_FOLDER = str(Path(mpmd_trace.__file__).parent)


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """Return how often each function of the package was called, or went on, and called functions written in C."""
    counts: dict[CodeType, int] = {}

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            code = frame.f_code
            counts[code] = counts.get(code, 0) + 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    calls: Counter[str] = Counter()
    for code, number in counts.items():
        if code.co_filename.startswith(_FOLDER):
            calls[f"{Path(code.co_filename).relative_to(_FOLDER)}:{code.co_qualname}"] += number
    return calls
