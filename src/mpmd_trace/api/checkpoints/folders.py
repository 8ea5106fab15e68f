"""The folder of a checkpoint: written beside its place by all processes, then put there whole by process 0."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax

from mpmd_trace.api.checkpoints.safetensors_format import state_of
from mpmd_trace.backend.distribution.job import current
from mpmd_trace.diagnostics.files import folder_beside, folders_beside, replace_folder, write_file
from mpmd_trace.diagnostics.messages import MpmdError, listed

_T = TypeVar("_T")

#: The file with the checksum of each other one.
_SUMS = "_CHECKSUMS"
#: Files of which each checkpoint has one: those of `save`, of orbax, and of one that is damaged.
_MARKS = {_SUMS, "_METADATA", "_CHECKPOINT_METADATA"}
#: The checkpoint in the folder beside its place.
_TREE = "tree"
#: How often a checkpoint is read that another one replaces each time.
_TRIES = 10
#: Bytes that a thread reads at a time.
_CHUNK = 1 << 20


def complete(path: str) -> str:
    """Return the folder with the last complete checkpoint of `path`.

    It is `path`, unless a process was killed in the middle of an exchange that the system does not do in one moment.
    """
    if os.path.lexists(path):
        return path
    # The checksums are written last, so a folder without them is not complete.
    beside = [os.path.join(folder, _TREE) for folder in folders_beside(path)]
    beside.append(os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.new"))  # by older versions
    return max(filter(has_checksums, beside), key=os.path.getmtime, default=path)


def has_checksums(path: str) -> bool:
    """Return whether `path` is a folder that `replacing` has put there."""
    return os.path.isfile(os.path.join(path, _SUMS))


@contextlib.contextmanager
def replacing(path: str, *, overwrite: bool) -> Iterator[str]:
    """Give the name of a folder to write, which gets to `path` when that is done.  All processes call this.

    Raises `MpmdError` in all of them when there can be none.
    """

    def prepare() -> str:
        last = complete(path)
        if os.path.lexists(last) and not overwrite:
            raise MpmdError(f"{path} exists; save to another folder, or with overwrite=True")
        if os.path.lexists(path) and not os.path.isdir(path):
            raise MpmdError(f"cannot save to {path}: it is a file; name a folder")
        there = sorted(os.listdir(path)) if os.path.isdir(path) else []
        if there and _MARKS.isdisjoint(there):  # such as the folder of all steps
            raise MpmdError(
                f"cannot save to {path}: it is no checkpoint, and would be removed with what it has "
                f"({listed(there, 3)}); name another folder"
            )
        with saving(path):
            if last != path:
                os.rename(last, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return stack.enter_context(folder_beside(path))

    with contextlib.ExitStack() as stack:
        beside = once("path to save to", prepare)
        folder = os.path.join(beside, _TREE)
        yield folder
        names = _listed("files of the checkpoint", folder)
        sums = dict(zip(names, _shared("checksums", lambda mine: _sums(folder, mine), names), strict=True))
        unread = [name for name, one in sums.items() if one is None]
        if unread:
            raise MpmdError(f"cannot save to {path}: {unread[0]} cannot be read back")

        def replace() -> None:
            write_file(os.path.join(folder, _SUMS), json.dumps(sums, indent=1) + "\n")
            with saving(path):
                replace_folder(folder, path, os.path.join(beside, "old"))
            stack.close()  # before the others go on

        once("end of the saving", replace, patient=True)


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
    files: list[str] = job.peers.allgather(what, _files(folder) if job.process == 0 else [], patient=True)[0]
    return files


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


def once(what: str, action: Callable[[], str | None], *, patient: bool = False) -> str:
    """Let process 0 do it; its result or error is that of all processes, and they go on when it is done."""
    job = current()
    if job is None:
        if jax.process_count() > 1:
            raise MpmdError(
                "this process has not joined the others: call mpmd_trace.initialize() at the start of the script, in "
                "the place of jax.distributed.initialize()"
            )
        return action() or ""
    problem = result = ""
    if job.process == 0:
        try:
            result = action() or ""
        except MpmdError as error:
            problem = error.diagnostics[0].message
    problem, result = map(str, job.peers.allgather(what, [problem, result], patient=patient)[0])
    if problem:
        raise MpmdError(problem)
    return result


def unmixed(path: str, read: Callable[[], _T]) -> _T:
    """Return what `read` reads from a checkpoint, again if another one took its place meanwhile."""
    for _ in range(_TRIES):
        before = _sign(path)
        try:
            result = read()
        except MpmdError:
            if current() is not None or _sign(path) == before:
                raise
        else:
            if _is_one(before, _sign(path)):
                return result
    raise MpmdError(f"{path} was replaced {_TRIES} times while it was read: read it when nothing saves to it")


def _sign(path: str) -> tuple[bytes, list[tuple[str, int, int]]]:
    """Return what tells a checkpoint of `save` from any other, and the state of a model of safetensors."""
    try:
        with open(os.path.join(path, _SUMS), "rb") as file:
            return file.read(), []
    except OSError:
        return b"", state_of(path)


def _is_one(before: tuple[bytes, object], after: tuple[bytes, object]) -> bool:
    """Return whether all processes have seen one checkpoint from the beginning to the end."""
    job = current()
    if job is None or not before[0]:
        return before == after
    mine = [zlib.crc32(sums) for sums, _ in (before, after)]
    seen = job.peers.allgather("checkpoint that was read", mine, patient=True)
    return len({sign for signs in seen for sign in signs}) == 1
