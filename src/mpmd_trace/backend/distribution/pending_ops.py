"""Arrays that come from other processes, or go there: whether they are there, or errors instead."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any


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
    """Waits for arrays until they are there, or `end` is called.

    XLA's own waiting cannot be broken off, and a thread in it ends the process with SIGABRT when Python ends.  So this
    looks again and again, the longer it takes the more seldom: a twentieth of the time that has passed is lost at most.
    """

    #: Seconds between two looks, at least and at most.
    _FIRST, _LAST = 2e-5, 2e-3

    def __init__(self) -> None:
        self._ended = False

    def until(self, array: Any) -> None:
        """Wait until the array is there, is an error or is deleted, or when all waiting has ended."""
        begun = time.monotonic()
        while not self._ended and not is_there(array):
            time.sleep(min(self._LAST, max(self._FIRST, (time.monotonic() - begun) / 20)))

    def end(self) -> None:
        """Whoever waits, now or later, waits no longer."""
        self._ended = True
