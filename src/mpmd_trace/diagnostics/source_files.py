"""Whose a source file is: the user's, this package's, or a library's; and how errors show places in it."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Sequence
from types import TracebackType

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_BESIDE = tuple(f"{os.sep}{name}{os.sep}" for name in ("mpmd_trace_cli", "mpmd_trace_devtools"))
_TYPED = ("<ipython-input-", "<stdin>")
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib", "scripts")})


def is_ours(file: str, part: str = "") -> bool:
    """Return whether a source file is part of this package or of those beside it; or of one `part` of the package."""
    if part:
        return file.startswith(os.path.join(_OURS, part) + os.sep)
    return file.startswith(_OURS) or any(name in file for name in _BESIDE)


def is_users(file: str) -> bool:
    """Return whether a source file is a user's: not of this package, those beside it, or an installed library.

    What is typed into Python or IPython is a user's, too.
    """
    return file.startswith(_TYPED) or (not is_ours(file) and not file.startswith((*_LIBRARIES, "<")))


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
