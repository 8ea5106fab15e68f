"""Arrays that come from other processes, or go there: whether they are there, or errors instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Wait", "is_broken", "is_done", "is_pending", "is_there", "reason"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Wait:
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
    """What an array is if it is an error instead of values."""
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
    """Whether an array is not there, or never will be."""
    return not is_there(array) or is_broken(array)
