"""The processes of a job: signs of life, who has failed, what this process waits for, and agreements.

Process 0 has a connection with each other process.  Over it both sides say every now and then that they are there,
and a process that fails says so; process 0 tells all others.  No array goes this way.
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpmd_trace.backend.distribution.faults import Fault, PeerError
from mpmd_trace.backend.distribution.links import Link, connected
from mpmd_trace.backend.distribution.pending_ops import Deadline, PendingOp, is_broken, is_pending, is_there
from mpmd_trace.backend.distribution.waits import LAST, Awaited, Missing, Waits
from mpmd_trace.diagnostics.internal import in_words
from mpmd_trace.diagnostics.messages import MpmdWarning
from mpmd_trace.jax_compat.distributed import Store, is_from_elsewhere

#: Seconds after which what a process that has ended had not begun to send does not come.
_AFTER_THE_END = 3.0
#: Seconds that a process which has ended waits for the others, at least its timeout.
_LAST_TO_END = 3600.0


class Peers:
    """This process's connection with the others of its job.

    Args:
        store: what all processes see.
        process: the number of this process.
        count: how many there are.
        host: the address of the interface at which process 0 listens.
        timeout: seconds without a sign of life, or without the value that is waited for, that make a fault.
    """

    def __init__(self, store: Store, process: int, count: int, host: str, timeout: float) -> None:
        self.store = store
        self.process = process
        self.count = count
        self.host = host
        self.timeout = timeout
        self.fault: Fault | None = None
        #: Whether this process itself has said so, for an error of its own.
        self.is_ours = False
        #: Whether the user has got an error for it.
        self.is_told = False
        #: Called again and again by the listening thread when there is a fault, or others have come to their end.
        self.guard: Callable[[], None] = lambda: None
        self._known_since = math.inf
        #: Called once when there is a fault: must end whatever waits for other processes.
        self.on_fault: list[Callable[[], None]] = []
        #: For each program the last place in the order that this process has come to.
        self._reached: dict[int, tuple[int, ...]] = {}
        self.waits = Waits(process)
        self._answers: dict[int, Awaited | None] = {}
        self._asked = 0.0
        self._agreements: dict[str, int] = {}
        self._patience = Deadline()
        self._lock = threading.RLock()
        self._beat = max(0.02, min(1.0, timeout / 10))
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._gone: set[int] = set()  # said goodbye
        self._ended_at: dict[int, dict[int, tuple[int, ...]]] = {}  # what these had reached, by program
        self._all_gone = threading.Event()
        self._answered, self._time = threading.Event(), 0.0
        self._closed = self._leaves = False
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        if count > 1:
            self._links = connected(store, process, count, host, timeout)
            for other, link in self._links.items():
                self._selector.register(link.socket, selectors.EVENT_READ, other)
            self._thread = threading.Thread(target=self._listen_or_tell, name="mpmd-peers", daemon=True)
            self._thread.start()

    # What the others are asked.

    def allgather_bytes(self, what: str, mine: bytes, *, patient: bool = False) -> list[bytes]:
        """Return the bytes that each process gives for `what`, by process.  All processes must call this in one order.

        Args:
            what: in words.
            mine: the bytes of this one.
            patient: whether a process may take any time, as long as it gives signs of life; the others warn.

        Raises:
            PeerError: when there is a fault, or one of them does not come within the timeout.  The fault is that of a
                third process if that one waits for it.
        """
        number = self._agreements[what] = self._agreements.get(what, -1) + 1
        name = f"mpmd_trace/{what}/{number}"
        self.store.put(f"{name}/{self.process}", mine)
        result = []
        for process in range(self.count):
            text = f"did not come to the {what}"
            missing = Missing((LAST, process, text), time.monotonic())
            until = missing.since + self.timeout
            while True:
                value = mine if process == self.process else self.store.get(f"{name}/{process}", self._beat)
                if value is not None:
                    break
                self.check()
                if not patient or process in self._ended_at:
                    self.waits.missing = missing
                elif time.monotonic() > until:
                    late = f"process {process} {text} within {self.timeout:g} s; still waiting"
                    warnings.warn(late, MpmdWarning, stacklevel=2)
                    until = math.inf
            self.waits.missing = None
            result.append(value)
        if number > 1:  # everybody is beyond the one before the last
            self.store.drop(f"mpmd_trace/{what}/{number - 2}/{self.process}")
        return result

    def allgather(self, what: str, mine: Any, *, patient: bool = False) -> list[Any]:
        """Return the values that each process gives; as `allgather_bytes`, for what can be written as JSON."""
        return list(map(json.loads, self.allgather_bytes(what, json.dumps(mine).encode(), patient=patient)))

    def clock(self) -> float:
        """Return what process 0 has for `time.perf_counter()`.

        Raises:
            PeerError: when there is a fault, or no answer within the timeout.
        """
        if self.process == 0:
            return time.perf_counter()
        self._answered.clear()
        self._send(0, {"time?": True})
        if not self._answered.wait(self.timeout):
            self.report(Fault(0, f"does not say what time it is within {self.timeout:g} s"))
        self.check()
        return self._time

    # Faults.

    def check(self) -> None:
        """Raise the `PeerError` if there is a fault."""
        if self.fault is not None:
            raise self.error()

    def report(self, fault: Fault, *, ours: bool = False) -> None:
        """Tell all processes that the job cannot go on; the first fault counts.

        `ours`: this process has an error of its own, which it raises.
        """
        if self._set(fault, ours):
            self._send_all({"fault": [fault.process, fault.text]})

    def error(self, waits: Iterable[PendingOp] = ()) -> PeerError:
        """Return the error for the fault there is, with what this process waits for."""
        fault = self.fault
        assert fault is not None
        self.is_told = True
        text = f"process {self.process} cannot go on: {fault}"
        pending = [w for w in (*waits, *self.waits.all()) if is_pending(w.array)]
        pending = [w for w in pending if set(w.processes) != {self.process}] or pending
        first = next((w for w in pending if fault.process in w.processes), pending[0] if pending else None)
        if first is not None and first.what() not in fault.text:
            text += f"\nit waits to {first.what()}"
        return PeerError(text, fault.process)

    def _set(self, fault: Fault, ours: bool = False) -> bool:
        with self._lock:
            if self.fault is not None:
                return False
            self.fault, self.is_ours, self._known_since = fault, ours, time.monotonic()
        self._answered.set()
        self._patience.end()
        for call in self.on_fault:
            call()
        return True

    @property
    def age_of_fault(self) -> float:
        """Seconds since this process knows of the fault; 0 where there is none."""
        return max(0.0, time.monotonic() - self._known_since)

    @property
    def ended(self) -> list[int]:
        """The processes that have come to their end."""
        return sorted(self._gone - {self.process})

    # What is waited for.

    def reach(self, place: tuple[int, ...]) -> None:
        """Know that what this process gives to others at this place of the order, and before, is on its way."""
        program = place[0]
        self._reached[program] = max(place, self._reached.get(program, place))

    def wait(self) -> None:
        """Wait until everything that was watched is there.

        Raises:
            PeerError: when there is a fault before.
            Exception: of JAX, when something cannot be computed, or its source is gone.  See `failed`.
        """
        while self.waits.watched:
            array = self.waits.watched[0].array
            self.wait_for(array)
            if not array.is_deleted():
                array.block_until_ready()  # raises what it is instead of a value
            self.waits.came()
        self.check()

    def wait_for(self, array: Any) -> None:
        """Wait until the array is there, or an error.

        Raises:
            PeerError: when there is a fault before.
        """
        while not is_there(array):
            self.check()
            self._patience.until(array)

    @contextlib.contextmanager
    def telling(self, where: str) -> Iterator[None]:
        """While this process works on a step; what fails there is raised as `failed` has it."""
        try:
            yield
        except BaseException as error:
            own = self.failed(error, where)
            if own is error:
                raise
            raise own from error

    def failed(self, error: BaseException, where: str) -> BaseException:
        """Return what to raise for an error: the fault of a peer, or the error itself, which the others then know.

        Args:
            error: what was raised.
            where: in words.
        """
        until = time.monotonic() + 1.0 + 3 * self._beat
        elsewhere = is_from_elsewhere(str(error)) or any(is_broken(w.array) for w in self.waits.watched)
        if not isinstance(error, PeerError) and elsewhere:
            while self.fault is None and time.monotonic() < until:  # `_look` will find out whose fault it is
                time.sleep(0.01)
        waits = self.waits.take()
        if isinstance(error, PeerError):
            return error
        self.report(Fault(self.process, f"failed {where}: {in_words(error)}"), ours=True)
        self.is_told = True
        return error if self.is_ours else self.error(waits)

    def _look(self) -> None:
        """Make it a fault if nothing has come for too long, or something of this process has failed."""
        if self.waits.are_late(self._time_for):
            self._say_late()
        broken, seconds = self.waits.broken()
        for wait, why in broken.items():
            if not is_from_elsewhere(why):  # the others need not wait for what would be computed of it
                self.report(Fault(self.process, f"failed to {wait.what()}: {why}"), ours=True)
            elif seconds > max(0.5, 2 * self._beat):  # the fault is still unknown
                others = [p for w in broken for p in w.processes if p != self.process]
                text = f"does not send what process {self.process} waits for: {why}"
                self.report(Fault(others[0] if others else self.process, text))

    def _time_for(self, awaited: Awaited | None) -> float:
        """Return the seconds that it may take; few where a process has ended before it would have sent that."""
        if awaited is None or awaited[1] not in self._ended_at:
            return self.timeout
        place, process, _ = awaited
        is_on_its_way = place <= self._ended_at[process].get(place[0], ())
        return self.timeout if is_on_its_way else min(self.timeout, _AFTER_THE_END)

    # When something does not come, everybody says what it waits for: the first of that, in the order of all, is why.

    def _say_late(self) -> None:
        if self.process == 0:
            self._ask_all()
        else:
            self._send(0, {"late": True})

    def _ask_all(self) -> None:
        if self.fault is None and not self._answers:
            self._answers[0] = self.waits.awaited()
            self._asked = time.monotonic()
            self._send_all({"ask": True})

    def _judge(self) -> None:
        """Find the process that keeps the others waiting, when all have answered or had time to."""
        if not self._answers or self.fault is not None:
            return
        missing = [p for p in self._links if p not in self._answers and p not in self._gone]
        if missing and time.monotonic() - self._asked < max(1.0, 3 * self._beat):
            return
        waiting = sorted((position, p) for p, position in self._answers.items() if position is not None)
        self._answers = {}
        if missing:
            self.report(Fault(missing[0], f"has not answered for {self.timeout:g} s"))
        elif waiting:
            (place, culprit, what), process = waiting[0]
            if place != LAST:
                what = f"process {process} has waited to {what}"
            if culprit in self._gone:
                text = f"has ended, and {what}"
            elif place == LAST:
                text = f"{what} within {self.timeout:g} s"
            else:
                text = f"keeps others waiting: for {self.timeout:g} s {what}"
            self.report(Fault(culprit, text))

    # The connections.

    def _listen_or_tell(self) -> None:
        try:
            self._listen()
        except Exception as error:
            traceback.print_exc()
            self.report(Fault(self.process, f"cannot listen to the others: {in_words(error)}"), ours=True)

    def _listen(self) -> None:
        while not self._closed:
            begun = time.monotonic()
            for key, _ in self._selector.select(self._beat):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        key.fileobj.recv(100)  # type: ignore[union-attr]
                elif key.data in self._links:
                    self._read(key.data, self._links[key.data])
            now = time.monotonic()
            for process, link in list(self._links.items()):
                if now - link.said > self._beat:
                    self._send(process, {})
                # A process that was stopped itself first reads what the others have said meanwhile.
                if begun - link.heard > self.timeout and process not in self._gone:
                    self.report(Fault(process, f"has given no sign of life for {self.timeout:g} s"))
            self._look()
            self._judge()
            if (self.fault is not None or self._gone) and not self._leaves:
                self.guard()

    def _read(self, process: int, link: Link) -> None:
        try:
            received = link.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(process)
            return
        link.heard = time.monotonic()
        *lines, link.rest = (link.rest + received).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "fault" in message:
                number, text = message["fault"]
                fault = Fault(int(number), str(text))
                if self._set(fault) and self.process == 0:
                    self._send_all({"fault": [fault.process, fault.text]})
            if "time?" in message:
                self._send(process, {"time": time.perf_counter()})
            if "time" in message:
                self._time = float(message["time"])
                self._answered.set()
            if "late" in message:
                self._ask_all()
            if "ask" in message:
                self._send(process, {"awaits": self.waits.awaited()})
            if "awaits" in message and self._answers:
                awaited = message["awaits"]
                self._answers[process] = (
                    None if awaited is None else (tuple(awaited[0]), int(awaited[1]), str(awaited[2]))
                )
            if "bye" in message:
                self._gone.add(process)
                self._see_whether_all_are_gone()
            if "ended" in message:
                places = (tuple(place) for place in message["reached"])
                self._ended_at[int(message["ended"])] = {place[0]: place for place in places}
                if self.process == 0:
                    self._send_all(message)
            if "end" in message:
                self._gone.add(process)
                self._all_gone.set()

    def _drop(self, process: int) -> None:
        link = self._links.pop(process)
        self._selector.unregister(link.socket)
        link.socket.close()
        if process not in self._gone:
            self.report(Fault(process, "has ended without an error message (it crashed, or was killed)"))
        self._gone.add(process)
        self._see_whether_all_are_gone()

    def _see_whether_all_are_gone(self) -> None:
        if self.process == 0 and len(self._gone) == self.count:
            self._send_all({"end": True})
            self._all_gone.set()
        elif not self._links:
            self._all_gone.set()

    def _send_all(self, message: dict[str, Any]) -> None:
        for process in list(self._links):
            self._send(process, message)

    def _send(self, process: int, message: dict[str, Any]) -> None:
        link = self._links.get(process)
        if link is None:
            return
        link.said = time.monotonic()
        # A peer that does not read has stopped, which its silence tells.
        with self._lock, contextlib.suppress(OSError):
            link.socket.send(json.dumps(message).encode() + b"\n")

    def forget(self) -> None:
        """Say nothing to the others any more; for a forked child, whose parent does."""
        for link in self._links.values():
            link.socket.close()  # else the others would not see the connection end with the parent
        self._links, self._closed = {}, True
        self.on_fault.clear()  # breaking off a connection is for all who have it

    def close(
        self, disconnect: Callable[[], None] = lambda: None, *, hosts: bool = False, patience: float = 15.0
    ) -> None:
        """Wait until every process has ended, since they may still fetch what this one offers.

        Args:
            disconnect: leaves what all share with JAX.
            hosts: whether that ends with this process, which then lets the others leave it first.
            patience: seconds that they have for it.
        """
        if self._closed:
            return
        if self.count > 1:
            self._wait_for_the_end()
            until = time.monotonic() + patience
            while hosts and self._links and time.monotonic() < until:
                time.sleep(min(0.05, self._beat))
        disconnect()
        if self.count > 1:
            self._disconnect()

    def _wait_for_the_end(self) -> None:
        self._leaves = True
        self._gone.add(self.process)
        self._send_all({"bye": True})
        self._send_all({"ended": self.process, "reached": list(self._reached.values())})
        self._see_whether_all_are_gone()
        late = time.monotonic() + self.timeout
        last = time.monotonic() + max(_LAST_TO_END, self.timeout)
        while self.fault is None and not self._all_gone.wait(self._beat):
            if time.monotonic() > late:
                late = math.inf
                print(f"mpmd_trace: process {self.process} has ended, and waits for the others", file=sys.stderr)
            if time.monotonic() > last:
                print(f"mpmd_trace: process {self.process} waits for the others no longer, and ends", file=sys.stderr)
                break

    def _disconnect(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(1.0)
        for link in self._links.values():
            link.socket.close()
        if not self._thread.is_alive():
            self._selector.close()
            self._wake.close()
            self._woken.close()
