"""Whose a source file is: the user's, this package's, or a library's."""

from __future__ import annotations

import os
import sysconfig

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
