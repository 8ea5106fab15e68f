"""Memory for what arrives, which is kept: of memory that is new the system has to clear every page first."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np

__all__ = ["BufferPool"]

#: Bytes from which on memory is kept.
_KEPT = 1 << 16
#: Bytes of a large page.
_LARGE = 1 << 21


class BufferPool:
    """Lends memory, and takes it back when no array refers to it any more.

    No more is kept than was lent at a time.
    """

    def __init__(self) -> None:
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._lent = self._most = self._kept = 0
        # Memory may come back in whatever thread the collector runs, also in one that is just here.
        self._lock = threading.RLock()

    def acquire(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an array of bytes, on pages of its own where that pays."""
        if size < _KEPT:
            return np.empty(size, np.uint8)
        with self._lock:
            self._lent += size
            self._most = max(self._most, self._lent)
            idle = self._idle.get(size)
            memory = idle.pop() if idle else None
            self._kept -= size if memory is not None else 0
        return np.asarray(_Lease(self, memory or _new(size), size))

    def take_back(self, memory: mmap.mmap, size: int) -> None:
        with self._lock:
            self._lent -= size
            if self._kept + size <= self._most:
                self._kept += size
                self._idle.setdefault(size, []).append(memory)


class _Lease:
    """What keeps memory lent: NumPy's arrays of it refer to this, and arrays of JAX to those."""

    def __init__(self, rooms: BufferPool, memory: mmap.mmap, size: int) -> None:
        self._rooms, self._memory, self._size = rooms, memory, size
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._rooms.take_back(self._memory, self._size)


def _new(size: int) -> mmap.mmap:
    result = mmap.mmap(-1, size)
    if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        result.madvise(mmap.MADV_HUGEPAGE)
    return result
