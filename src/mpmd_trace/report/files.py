"""Writing a folder of results whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mpmd_trace.diagnostics.files import check_writable, replace_folder

#: Folders that we made carry this file; others are never replaced.
MARKER = ".mpmd_trace"


def check_folder(folder: str) -> None:
    """Raise `OSError` or `MpmdError` when `folder` cannot or must not be replaced: a file, a folder of others.

    Called before the work, so that it is not lost, and again before the folder is replaced.
    """
    folder = os.path.realpath(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise FileExistsError(f"{folder} is a file; choose a folder to write to")
    if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(os.path.join(folder, MARKER)):
        raise FileExistsError(
            f"{folder} is not empty and was not written by mpmd-trace; choose another folder or empty it"
        )
    # The folder is replaced by a new one, which a shell or a mount that sits in the old one would not see.
    if os.path.isdir(folder) and (os.path.ismount(folder) or f"{os.getcwd()}{os.sep}".startswith(f"{folder}{os.sep}")):
        what = "a mount point" if os.path.ismount(folder) else "where you are"
        raise FileExistsError(f"{folder} is {what} and cannot be replaced; choose a folder inside of it")
    above = os.path.dirname(folder)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise FileExistsError(f"{above} is a file, so there can be no folder {folder}")
    check_writable(above)


def write_folder(folder: str, files: Iterable[tuple[str, str | bytes]]) -> None:
    """Write `files` (relative names and contents) to `folder`, replacing what an earlier run left there.

    Everything goes to a new folder beside it first, which is then renamed; a link stays, and what it points to
    is replaced.  Raises `OSError` as `check_folder` does; the folder then is what it was.
    """
    check_folder(folder)
    folder = os.path.realpath(folder)
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    fresh = tempfile.mkdtemp(prefix=os.path.basename(folder) + ".", dir=parent)
    try:
        for name, content in files:
            path = Path(fresh, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        Path(fresh, MARKER).write_text("written by mpmd-trace; replaced by the next run\n", encoding="utf-8")
        os.chmod(fresh, 0o755)
        replace_folder(fresh, folder, f"{fresh}.old")
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
