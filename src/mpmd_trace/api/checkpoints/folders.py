"""The folder of a checkpoint: written beside its place by all processes, then put there whole by process 0."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from mpmd_trace.backend.distribution.job import current
from mpmd_trace.diagnostics.files import replace_folder, write_file
from mpmd_trace.diagnostics.messages import MpmdError

#: The file with the checksum of each other one.
_SUMS = "_CHECKSUMS"
#: Bytes that a thread reads at a time.
_CHUNK = 1 << 20


def complete(path: str) -> str:
    """Return the folder with the last complete checkpoint of `path`.

    It is `path`, unless a process was killed in the middle of an exchange that the system does not do in one moment.
    """
    beside = _beside(path, "new")
    # The checksums are written last, so a folder without them is not complete.
    return beside if not os.path.lexists(path) and os.path.isfile(os.path.join(beside, _SUMS)) else path


def has_checksums(path: str) -> bool:
    """Return whether `path` is a folder that a `Replacement` has put there."""
    return os.path.isfile(os.path.join(path, _SUMS))


class Replacement:
    """A new folder for `path`, which gets there when it is complete.  All processes call its methods.

    Raises `MpmdError` in all of them when there can be none.
    """

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path = path
        #: Where to write it.
        self.folder = _beside(path, "new")
        once("path to save to", lambda: self._prepare(overwrite))

    def _prepare(self, overwrite: bool) -> None:
        """Finish, or take away, what was left by a process that was killed."""
        path = self.path
        last = complete(path)
        if os.path.lexists(last) and not overwrite:
            raise MpmdError(f"{path} exists; save to another folder, or with overwrite=True")
        if os.path.lexists(path) and not os.path.isdir(path):
            raise MpmdError(f"cannot save to {path}: it is a file; name a folder")
        with saving(path):
            if last != path:
                os.rename(last, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.clear()

    def clear(self) -> None:
        """Remove what is left next to the path.  Raises `OSError`."""
        parent = os.path.dirname(self.path)
        name = os.path.basename(self.folder)
        for entry in sorted(os.listdir(parent)):
            is_partial = entry.startswith(f"{name}.orbax-checkpoint-tmp")
            if is_partial or entry in (name, os.path.basename(_beside(self.path, "old"))):
                _remove(os.path.join(parent, entry))

    def put(self) -> None:
        """Put the new folder, in which everything is, in its place."""
        names = _listed("files of the checkpoint", self.folder)
        sums = dict(zip(names, _shared("checksums", lambda mine: _sums(self.folder, mine), names), strict=True))
        unread = [name for name, one in sums.items() if one is None]
        if unread:
            raise MpmdError(f"cannot save to {self.path}: {unread[0]} cannot be read back")

        def replace() -> None:
            write_file(os.path.join(self.folder, _SUMS), json.dumps(sums, indent=1) + "\n")
            with saving(self.path):
                replace_folder(self.folder, self.path, _beside(self.path, "old"))

        once("end of the saving", replace, patient=True)


def _remove(folder: str, tries: int = 20) -> None:
    """Remove a folder to which threads of a save that has failed may still write.  Raises `OSError`."""
    for last in range(tries):
        try:
            shutil.rmtree(folder)
            return
        except FileNotFoundError:
            return
        except OSError:
            if last == tries - 1:
                raise
            time.sleep(0.1)


def _beside(path: str, what: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{what}")


@contextlib.contextmanager
def saving(path: str) -> Iterator[None]:
    """While files are written; errors of the system become `MpmdError`."""
    try:
        yield
    except OSError as error:
        raise MpmdError(f"cannot save to {path}: {error.strerror or error}") from None


def check(path: str) -> None:
    """Raise `MpmdError` when a file in the folder is not what was written.  All processes call this.

    What has no checksums (older folders, those of orbax's own) is not checked.
    """
    try:
        with open(os.path.join(path, _SUMS), "rb") as file:
            wanted: dict[str, int] = dict(json.load(file))
        names = sorted(wanted)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        raise MpmdError(f"the checkpoint {path} is damaged: {_SUMS}: {error}") from None
    now = _shared("comparison of checksums", lambda mine: _sums(path, mine), names)
    damaged = [name for name, one in zip(names, now, strict=True) if one is None or one != wanted[name]]
    if damaged:
        more = f", nor have {len(damaged) - 1} more files" if len(damaged) > 1 else ""
        raise MpmdError(
            f"the checkpoint {path} is damaged: the file {damaged[0]} has not the bytes that were written{more}; take "
            "another checkpoint, or read what is left with restore(..., verify=False)"
        )


def _files(folder: str) -> list[str]:
    """Return the names of all files in a folder and those below, in order, but for that of the checksums."""
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return sorted({os.path.relpath(path, folder) for path in paths} - {_SUMS})


def _listed(what: str, folder: str) -> list[str]:
    """Return `_files` as process 0 sees them: others may see a shared file system a moment later."""
    job = current()
    if job is None:
        return _files(folder)
    listed: list[str] = job.peers.allgather(what, _files(folder) if job.process == 0 else [], patient=True)[0]
    return listed


def _sums(folder: str, names: Sequence[str]) -> list[int | None]:
    """Return the checksum of each file; None where it cannot be read."""

    def one(name: str) -> int | None:
        result = 0
        try:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    result = zlib.crc32(chunk, result)
        except OSError:
            return None
        return result

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, names))


def _shared(what: str, work: Callable[[Sequence[str]], list[int | None]], names: Sequence[str]) -> list[int | None]:
    """Return the result of `work` for each name; each process of the job works on some of them."""
    job = current()
    if job is None:
        return work(names)
    parts = job.peers.allgather(what, work(names[job.process :: job.count]), patient=True)
    return [parts[i % job.count][i // job.count] for i in range(len(names))]


def once(what: str, action: Callable[[], None], *, patient: bool = False) -> None:
    """Let process 0 do it; its error is that of all processes, and they go on when it is done."""
    job = current()
    if job is None:
        if jax.process_count() > 1:
            raise MpmdError(
                "this process has not joined the others: call mpmd_trace.initialize() at the start of the script, in "
                "the place of jax.distributed.initialize()"
            )
        action()
        return
    problem = ""
    if job.process == 0:
        try:
            action()
        except MpmdError as error:
            problem = error.diagnostics[0].message
    problem = job.peers.allgather(what, problem, patient=patient)[0]
    if problem:
        raise MpmdError(problem)
