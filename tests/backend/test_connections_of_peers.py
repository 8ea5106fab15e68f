"""What processes ask each other: here some of them in one process, on connections of their own."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpmd_trace.api import exit as leaving
from mpmd_trace.backend.distribution import job as jobs
from mpmd_trace.backend.distribution import links
from mpmd_trace.backend.distribution.clock import offset_of
from mpmd_trace.backend.distribution.faults import Fault, PeerError
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.backend.distribution.pending_ops import PendingOp
from mpmd_trace.diagnostics.messages import MpmdWarning
from mpmd_trace.jax_compat.distributed import is_from_elsewhere


class Store:
    """Names and values, as JAX's coordination service has them for all processes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, name: str, value: bytes) -> None:
        with self.changed:
            self.values[name] = value
            self.changed.notify_all()

    def get(self, name: str, seconds: float) -> bytes | None:
        with self.changed:
            self.changed.wait_for(lambda: name in self.values, seconds)
            return self.values.get(name)

    def drop(self, name: str) -> None:
        with self.changed:
            self.values.pop(name, None)


@pytest.fixture
def peers() -> Iterator[Callable[..., list[Peers]]]:
    """Makes some processes with a timeout."""
    made: list[Peers] = []

    def make(timeout: float, count: int = 2) -> list[Peers]:
        store = Store()
        _together(*(lambda p=p: made.append(Peers(store, p, count, "127.0.0.1", timeout)) for p in range(count)))
        made.sort(key=lambda p: p.process)
        return made

    yield make
    _together(*(p.close for p in made))


def _together(*calls: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def _wait_until(true: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not true() and time.monotonic() < until:
        time.sleep(0.01)


def test_the_clock_of_process_0(peers: Callable[..., list[Peers]]) -> None:
    first, second = peers(60.0)
    found = offset_of(second.clock)
    assert abs(found.seconds) <= found.error + 1e-4, "both read the same clock here"
    assert offset_of(first.clock).error < 1e-2


def test_who_is_late_is_waited_for(peers: Callable[..., list[Peers]]) -> None:
    """Longer than the timeout, with a warning, because there are signs of life."""
    first, second = peers(1.0)
    found: list[list[bytes]] = []

    def late() -> None:
        _wait_until(lambda: warned)
        found.append(second.allgather_bytes("end of compiling", b"2", patient=True))

    text = "process 1 did not come to the end of compiling within 1 s; still waiting"
    with pytest.warns(MpmdWarning, match=text) as warned:
        thread = threading.Thread(target=late)
        thread.start()
        found.append(first.allgather_bytes("end of compiling", b"1", patient=True))
    thread.join(60)
    assert found == [[b"1", b"2"]] * 2
    assert first.fault is None and second.fault is None


def test_who_does_not_come_is_at_fault(peers: Callable[..., list[Peers]]) -> None:
    first, second = peers(0.5)
    with pytest.raises(PeerError, match=r"process 1 did not come to the vote within 0\.5 s"):
        first.allgather_bytes("vote", b"1")
    with pytest.raises(PeerError, match="process 1 cannot go on: process 1 did not come to the vote"):
        second.clock()


def test_an_error_that_is_raised_while_another_process_dies_is_that_process_s(
    peers: Callable[..., list[Peers]],
) -> None:
    """A program over several processes may fail where it is launched, before anybody has told that one is gone."""
    first, second = peers(60.0)
    dies = threading.Timer(0.3, lambda: second.report(Fault(1, "has ended")))
    dies.start()
    found = first.failed(RuntimeError("Gloo all-reduce failed: Connection closed by peer"), "in step 2")
    dies.join()
    assert isinstance(found, PeerError)
    assert found.process == 1


class _Never:
    """An array that does not come."""

    def is_ready(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("INTERNAL: -1 = recv() failed errno: 107 err: Transport endpoint is not connected", True),
        ("INTERNAL: -1 = send() failed errno: 32 err: Broken pipe", True),
        ("INTERNAL: fd failed with hup: errno: 104 err: Connection reset by peer", True),
        ("INTERNAL: SocketServer: Connection closed recv() == 0.", True),
        ("UNKNOWN: Gloo AllGather failed: Connection closed by peer [127.0.0.1]:23949", True),
        ("INTERNAL: CpuCallback error: ValueError: no more of this", False),
    ],
)
def test_errors_of_connections_are_those_of_other_processes(reason: str, wanted: bool) -> None:
    assert is_from_elsewhere(reason) == wanted


def test_who_is_late_because_it_waits_is_not_at_fault(peers: Callable[..., list[Peers]]) -> None:
    """Process 2 waits for 1 at an agreement, and 1 for what 0 should have sent before."""
    first, second, third = peers(1.0, 3)
    second.waits.watch(PendingOp(_Never(), (0,), lambda: "receive x", (1, 0, 5)))
    errors: list[str] = []

    def waits(process: Peers) -> None:
        with pytest.raises(PeerError) as caught:
            process.allgather_bytes("vote", b"")
        errors.append(str(caught.value).partition("\n")[0])

    _together(lambda: waits(first), lambda: waits(third))
    wanted = "process 0 keeps others waiting: for 1 s process 1 has waited to receive x"
    assert sorted(errors) == [f"error: process {p} cannot go on: {wanted}" for p in (0, 2)]


def test_a_listening_thread_that_fails_says_so(
    peers: Callable[..., list[Peers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others wait for the whole timeout, and do not know why; nor does the process end with status 0."""
    first, second = peers(30.0)

    def fails() -> None:
        raise MemoryError

    second._look = fails  # type: ignore[method-assign]
    _wait_until(lambda: first.fault)
    assert first.fault == second.fault == Fault(1, "cannot listen to the others: MemoryError")
    statuses: list[int] = []
    monkeypatch.setattr(leaving, "_exit", statuses.append)
    monkeypatch.setattr(leaving, "_end_soon", lambda: None)
    monkeypatch.setattr(jobs, "_CURRENT", [jobs.Job(second, None, "127.0.0.1")])
    monkeypatch.setattr(jobs, "_ENDED", [])
    leaving._leave_at_exit(launched=False)
    assert statuses == [1]


def test_who_was_stopped_does_not_blame_others_for_it(peers: Callable[..., list[Peers]]) -> None:
    """As by a signal, or on a busy machine: it has not heard of them for long, but they have said something."""
    first, second = peers(1.0)
    second.timeout = 60.0
    select, stopped = first._selector.select, threading.Event()

    def stops(seconds: float) -> Any:
        if not stopped.is_set():
            time.sleep(2.0)
            stopped.set()
            return []
        return select(seconds)

    first._selector.select = stops  # type: ignore[method-assign, assignment]
    assert stopped.wait(60)
    assert offset_of(second.clock).error < 60  # process 0 has listened since
    assert first.fault is None


def test_strangers_do_not_keep_processes_from_each_other() -> None:
    """Silent ones, one that talks for ever, one that says something else; they come before process 1."""
    store = Store()
    made: list[Peers] = []
    strangers: list[socket.socket] = []
    enough = threading.Event()

    def talk(stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not enough.wait(0.2):
                stranger.sendall(b"x")

    def others() -> None:
        value = store.get("mpmd_trace/peers", 60)
        assert value is not None
        place = json.loads(value)
        for _ in range(20):
            strangers.append(socket.create_connection((place["host"], place["port"])))
        threading.Thread(target=talk, args=(strangers[0],)).start()
        for stranger, text in zip(
            strangers[1:], (b"GET / HTTP/1.1\r\n\r\n", b"[" * 2000, b"[1]\n", b"{}\n"), strict=False
        ):
            stranger.sendall(text)
        strangers[5].sendall(json.dumps({"process": 1, "token": "guessed"}).encode() + b"\n")
        made.append(Peers(store, 1, 2, "127.0.0.1", 20.0))

    _together(lambda: made.append(Peers(store, 0, 2, "127.0.0.1", 20.0)), others)
    assert len(made) == 2
    first, second = sorted(made, key=lambda one: one.process)
    assert abs(offset_of(second.clock).seconds) < 20
    assert first.fault is None
    enough.set()
    _together(first.close, second.close)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    ("greeting", "seconds"),
    [
        (b"", 0.2),
        (b"{", 0.2),
        (b"x" * 1000, 60.0),
        *((f'{{"process": {p}, "token": "T"}}\n', 60.0) for p in (-1, 0, 2)),
    ],
)
def test_strangers_are_hung_up_on(greeting: bytes | str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing in time, too much, or has a number that nobody or another one has."""
    monkeypatch.setattr(links, "_GREETING", seconds)
    store = Store()
    found: list[dict[int, links.Link]] = []
    listens = threading.Thread(target=lambda: found.append(links.connected(store, 0, 2, "127.0.0.1", 30.0)))
    listens.start()
    value = store.get("mpmd_trace/peers", 30)
    assert value is not None
    place = json.loads(value)
    with socket.create_connection((place["host"], place["port"]), timeout=20) as stranger:
        stranger.sendall(greeting if isinstance(greeting, bytes) else greeting.replace("T", place["token"]).encode())
        assert stranger.recv(1) == b""
    second = links.connected(store, 1, 2, "127.0.0.1", 30.0)
    listens.join(30)
    assert [list(one) for one in found] == [[1]]
    for link in (found[0][1], second[0]):
        link.socket.close()


class _Slow:
    """An array that comes when `arrives` is set."""

    def __init__(self) -> None:
        self.arrives = False

    def is_ready(self) -> bool:
        return self.arrives

    def is_deleted(self) -> bool:
        return False

    def block_until_ready(self) -> None: ...


def test_what_is_on_its_way_at_the_end_of_its_sender_may_take_its_time(
    peers: Callable[..., list[Peers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was not sent before that does not come."""
    monkeypatch.setattr("mpmd_trace.backend.distribution.peers._AFTER_THE_END", 0.05)
    first, second = peers(60.0)
    for place in ((1, 0, 5), (2, 0, 9), (1, 1, 5)):
        second.reach(place)
    ends = threading.Thread(target=second.close)
    ends.start()
    slow = _Slow()
    first.waits.watch(PendingOp(slow, (1,), lambda: "receive x", (1, 0, 7)))  # on its way before step 1
    _wait_until(lambda: first.ended == [1])
    time.sleep(0.6)  # ten times as long as what was not sent is waited for
    first.check()
    slow.arrives = True
    first.wait()
    first.waits.watch(PendingOp(_Never(), (1,), lambda: "receive y", (1, 1, 6)))
    _wait_until(lambda: first.fault)
    ends.join(60)
    assert first.fault == Fault(1, "has ended, and process 0 has waited to receive y")
