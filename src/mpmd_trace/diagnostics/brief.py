"""Places in errors, for the command line and for notebooks."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Sequence
from types import TracebackType

from mpmd_trace.diagnostics.source_files import is_users


def from_here(text: str) -> str:
    """Return the text with files relative to the current folder."""
    here = os.getcwd() + os.sep
    return text.replace(here, "") if here != os.sep * 2 else text


def with_users_line(name: str, lines: Sequence[str], trace: TracebackType | None) -> list[str]:
    """Return what a notebook shows of an error: the line of the user's code that raised it, and the message."""
    own = [frame for frame in traceback.extract_tb(trace) if is_users(frame.filename)]
    shown = [name]
    if own:
        where, number = own[-1].filename, own[-1].lineno or 0
        shown = [f"{name} in {from_here(where)}:{number}", f"    {linecache.getline(where, number).strip()}"]
    return [*shown, "", *lines]
