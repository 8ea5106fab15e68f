"""The arrays that this process waits for, and since when none of them has come."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from mpmd_trace.backend.distribution.pending_ops import PendingOp, is_done, is_pending, is_there, reason

#: The place in the order, the process that should send, and what in words.
Awaited = tuple[tuple[int, ...], int, str]
#: The place of agreements, behind all others: who does not come to one may wait for what should have come before.
LAST = (1 << 62,)


@dataclasses.dataclass(eq=False)
class Missing:
    """A process that has not come to an agreement, and since when this one waits for it (or has asked why)."""

    awaited: Awaited
    since: float


class Waits:
    """The arrays that must come from other processes, or are computed for them, and the agreement that waits.

    Args:
        process: the number of this process.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._ops: collections.deque[PendingOp] = collections.deque()
        self._inside: PendingOp | None = None
        self._pending = 0  # how many of them had not come, and when that changed
        self._progress = time.monotonic()
        self._sound = time.monotonic()  # when none of them was an error, for the last time
        self._lock = threading.Lock()
        self.missing: Missing | None = None

    def watch(self, op: PendingOp) -> None:
        """Count this among what must come within the timeout."""
        with self._lock:
            while self._ops and is_done(self._ops[0].array):
                self._ops.popleft()  # and the memory with it
            self._ops.append(op)

    @contextlib.contextmanager
    def inside(self, op: PendingOp) -> Iterator[None]:
        """Count something that may not return before others have come, and whose array is not there until then."""
        self._inside = op
        try:
            yield
        finally:
            self._inside = None

    @property
    def watched(self) -> Sequence[PendingOp]:
        """The names of what is watched and has not come yet, in order."""
        return self._ops

    def came(self) -> None:
        """Forget the first of what is watched."""
        self._ops.popleft()

    def all(self) -> list[PendingOp]:
        inside = self._inside
        return [*self._ops, *([inside] if inside is not None else [])]

    def take(self) -> list[PendingOp]:
        """Return what is watched, which then is not any more."""
        result, self._ops = list(self._ops), collections.deque()
        return result

    def awaited(self) -> Awaited | None:
        """Return what this process waits for first, in the order of all processes."""
        for op in sorted(self.all(), key=lambda op: op.place):
            others = [p for p in op.processes if p != self._process]
            if others and is_pending(op.array):
                return op.place, others[0], op.what()
        missing = self.missing
        return missing.awaited if missing is not None else None

    def are_late(self, time_for: Callable[[Awaited | None], float]) -> bool:
        """Return whether nothing has come for too long; then the time starts again.

        time_for: the seconds that something may take.
        """
        pending = sum(not is_there(op.array) for op in self.all())
        now = time.monotonic()
        result = False
        if not pending or pending != self._pending:
            self._pending, self._progress = pending, now
        elif now - self._progress > time_for(self.awaited()):
            self._progress, result = now, True
        missing = self.missing
        if missing is not None and now - missing.since > time_for(missing.awaited):
            missing.since, result = now, True
        return result

    def broken(self) -> tuple[dict[PendingOp, str], float]:
        """Return what is an error instead of a value, with the reason, and for how many seconds something has been."""
        result = {op: why for op in self.all() if (why := reason(op.array)) is not None}
        now = time.monotonic()
        if not result:
            self._sound = now
        return result, now - self._sound
