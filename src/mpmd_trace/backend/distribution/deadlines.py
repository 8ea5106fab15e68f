"""Arrays that come from other processes, or go there: whether they are there, or errors instead."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Deadline", "PendingOp", "is_broken", "is_done", "is_pending", "is_there", "reason"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PendingOp:
    """Something that comes from other processes, or is computed for them.

    Attributes:
        array: what is waited for.
        processes: those that it depends on.
        what: the action in words.
        place: where it is in the order of all processes: what is earlier does not wait for what is later.
    """

    array: Any
    processes: tuple[int, ...]
    what: Callable[[], str]
    place: tuple[int, ...]


def is_there(array: Any) -> bool:
    if array is None:
        return False
    try:
        return bool(array.is_ready())
    except Exception:  # deleted meanwhile
        return True


def reason(array: Any) -> str | None:
    """Return what an array is if it is an error instead of values."""
    if not is_there(array) or array.is_deleted():
        return None
    try:
        array.block_until_ready()
    except Exception as error:
        return None if array.is_deleted() else str(error).strip().splitlines()[0]
    return None


def is_broken(array: Any) -> bool:
    return reason(array) is not None


def is_done(array: Any) -> bool:
    return is_there(array) and not is_broken(array)


def is_pending(array: Any) -> bool:
    """Return whether an array is not there, or never will be."""
    return not is_there(array) or is_broken(array)


class Deadline:
    """Waits for an array until it is there or `end` is called, at no cost while nothing comes.

    XLA's own waiting cannot be broken off: a thread does that.  It stays there when the wait is ended, as happens once
    in a job.
    """

    #: Seconds for which looking again and again is cheaper than another thread.
    _BRIEFLY = 2e-4

    def __init__(self) -> None:
        self._arrays: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._come = threading.Event()

    def until(self, array: Any) -> None:
        """Return when the array is there, is an error or is deleted, or when all waiting has ended."""
        begun = time.monotonic()
        while not is_there(array):
            if time.monotonic() - begun > self._BRIEFLY:
                break
            time.sleep(2e-5)
        else:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="mpmd-wait", daemon=True)
            self._thread.start()
        self._come = come = threading.Event()
        self._arrays.put((array, come))
        if not self._ended:  # `end` sets the event that it finds
            come.wait()

    def end(self) -> None:
        """Whoever waits, now or later, waits no longer."""
        self._ended = True
        self._come.set()

    def _wait(self) -> None:
        while True:
            array, come = self._arrays.get()
            with contextlib.suppress(Exception):  # whoever waits looks at what it is
                array.block_until_ready()
            come.set()
            del array
