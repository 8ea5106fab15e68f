"""Places in the user's files of what a program computes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.ir.core import Op


def written_in(ops: Iterable[Op], most: int = 8) -> list[str]:
    """Return the first places (`file:line`, seen from here) in the user's files that the ops come from."""
    files: dict[str, None] = {}
    for op in ops:
        for file, line, _ in list(op.loc.files)[:4]:
            if is_users(file):
                files[f"{os.path.relpath(file)}:{line}"] = None
        if len(files) >= most:
            break
    return list(files)[:most]
