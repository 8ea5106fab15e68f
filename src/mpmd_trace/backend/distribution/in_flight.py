"""A limit on the programs of this process that run or wait for their arguments at a time."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import jax

#: Half of XLA's own limit (`max_inflight_computations_per_device` of its CPU client), for those that are not counted.
_MOST = 16


class InFlight:
    """The programs that were launched and are not known to have ended.

    XLA:CPU launches a program on several devices from the threads that also compute, and lets them wait where 32
    programs are in flight on a device.  Where there are no more threads than devices nothing computes any more then,
    while the programs in flight wait for what other processes make of the results.  So this thread waits before that:
    for what is earlier in the order of the job, and thus does not wait for what is later.

    Args:
        counts: whether this process launches programs on several devices of such a kind.
    """

    def __init__(self, counts: bool = True) -> None:
        self._launched: collections.deque[Any] = collections.deque()
        self._counts = counts

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """While the threads that launch programs wait for each of them."""
        counts, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = counts

    def launched(self, array: Any) -> None:
        """Count a launched program that makes this array, whose buffer nothing may take.  Waits for an old one."""
        if self._counts:
            self._launched.append(array)
        while len(self._launched) > _MOST:
            with contextlib.suppress(Exception):  # deleted since, or an error, which `Peers` finds
                jax.block_until_ready(self._launched.popleft())
