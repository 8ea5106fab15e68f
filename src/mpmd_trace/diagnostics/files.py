"""Writing files and folders whole or not at all: what was there stays until the new one is complete."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator

from mpmd_trace.diagnostics.messages import MpmdError


class FileError(MpmdError):
    """A file or folder that cannot be written."""


def check_output(path: str, *, folders: bool = False) -> None:
    """Raise `MpmdError` when a file cannot be written there, before there is work that would be lost.

    folders: whether those that are not there yet will be made.
    """
    if os.path.isdir(path):
        raise FileError(f"cannot write {path}: it is a folder; name a file in it")
    if _written_directly(path):
        return
    folder = os.path.dirname(os.path.realpath(path))
    while folders and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise FileError(f"cannot write {path}: there is no folder {folder}")
    check_writable(folder)


def _written_directly(path: str) -> bool:
    """Return whether this is a device, a pipe, or a name of an open file such as `/dev/stdout`."""
    is_open_file = os.path.dirname(os.path.abspath(path)) in ("/dev", "/dev/fd")
    return os.path.exists(path) and (is_open_file or not os.path.isfile(path))


def check_writable(folder: str) -> None:
    """Raise `MpmdError` when nothing can be written in `folder`: no permission, a read-only or a full file system."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FileError(f"cannot write in {folder}: {reason}; choose another folder") from None


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file: readers see the old content or the new one, also when the disk is full or the process is killed.

    Raises `MpmdError`.
    """
    check_output(os.fspath(path))
    data = content.encode() if isinstance(content, str) else content
    target = os.path.realpath(path)
    try:
        if _written_directly(os.fspath(path)):
            with open(path, "ab") as file:  # behind what an open file holds already
                file.write(data)
            return
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        part = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.part")
        with _locked(part) as number:
            try:
                with open(number, "wb", closefd=False) as file:
                    file.truncate(0)  # what a process that was killed has left
                    file.write(data)
                os.fsync(number)
                if mode is not None:
                    os.chmod(part, stat.S_IMODE(mode))
                os.replace(part, target)
            except BaseException:
                os.unlink(part)
                raise
    except OSError as error:
        raise FileError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    """Open a file that no other process writes to meanwhile, and give its descriptor."""
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if sys.platform != "win32":
                import fcntl  # not everywhere

                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(number, fcntl.LOCK_EX)
            if _is_at(path, number):  # the one before us may have moved it to its place while we waited
                yield number
                return
        finally:
            os.close(number)


def _is_at(path: str, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def folder_beside(path: str) -> Iterator[str]:
    """Make an empty folder next to `path`, to write there what `path` will be; it is removed at the end.

    Those that killed processes have left are removed first, those of processes that write at the same time are not.
    Raises `OSError`.
    """
    for left in folders_beside(path):
        with claimed(left) as is_ours:
            if is_ours:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        folder = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.new-", dir=os.path.dirname(path))
        with claimed(folder) as is_ours:
            if not is_ours:  # another process took it for one that was left
                continue
            try:
                yield folder
            finally:
                _remove(folder)
            return


def folders_beside(path: str) -> list[str]:
    """Return the folders next to `path` that `folder_beside` has made for it."""
    parent, name = os.path.split(path)
    made = re.compile(rf"\.{re.escape(name)}\.new-\w{{8}}")
    names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
    return [os.path.join(parent, entry) for entry in names if made.fullmatch(entry)]


@contextlib.contextmanager
def claimed(folder: str) -> Iterator[bool]:
    """Lock a folder; whether it is there, and no other process has it.

    Where folders cannot be locked, none has.
    """
    if sys.platform == "win32":
        yield True
        return
    import fcntl  # not everywhere

    try:
        number = os.open(folder, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        yield False
        return
    try:
        is_free = True
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
        yield is_free and _is_at(folder, number)
    finally:
        os.close(number)


def _remove(folder: str) -> None:
    """Remove a folder to which threads of what has failed may still write."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.1)


def replace_folder(new: str, folder: str, aside: str) -> None:
    """Put the folder `new` in the place of `folder`, if there is one, and remove that.

    Where the system can exchange folders, there is the old one or the new one at any moment.  Elsewhere a process that
    is killed in the middle leaves the old one as `aside`, the complete new one as `new`, and no `folder`.

    Args:
        new: a folder beside `folder`.
        folder: what it is to be.
        aside: a name beside them for what is to be removed.  Nothing may be there.

    Raises:
        OSError: when it cannot be done; `folder` is what it was.
    """
    if not os.path.lexists(folder):
        os.rename(new, folder)
        return
    if _exchange(new, folder):
        with contextlib.suppress(OSError):  # the exchange is done; the next save takes away what is left
            os.rename(new, aside)  # `new` is always a complete new one
    else:
        os.rename(folder, aside)
        try:
            os.rename(new, folder)
        except OSError:
            os.rename(aside, folder)
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: str, other: str) -> bool:
    """Exchange two folders in one moment; whether the system can."""
    import ctypes  # few commands need it

    call = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    at_here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call is not None and call(at_here, os.fsencode(one), at_here, os.fsencode(other), exchange) == 0
