"""Bytes from one process to another, over TCP connections of our own.

Who sends does not wait for who receives: a thread for each process that gets something sends one message after the
other, and one for each process that sends reads them, into memory that is kept (`buffer_pool.py`), whether they are
expected yet or not.  So a sender may be ahead of a receiver, by `AHEAD` bytes, and by any number while the receiver
waits for what is behind them.  Whoever connects sends a secret, which is in the address, and its process number.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mpmd_trace.backend.distribution.buffer_pool import BufferPool
from mpmd_trace.diagnostics.internal import in_words

__all__ = ["AHEAD", "HEAD", "RecvFuture", "TcpTransport"]

#: Bytes that may lie at the receiver before it asks for them.
AHEAD = 256 << 20
#: Seconds for a connection to be made, and for a stranger to say who it is.
_PATIENCE = 10.0
_HELLO = struct.Struct("=16sL")  # secret, number of the process
#: What is before each part: its tag, its number, and its bytes; if less than 0, of a text that says why there is none.
HEAD = struct.Struct("=QLq")
#: Bytes that wait for the receiver, on each side, where both are on one host: they stay in the processor's cache.
_ON_THE_WAY = 1 << 18

#: Errors of the system that have nothing to do with the other end.
_OWN_FAULTS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_Key = tuple[int, int]


class RecvFuture:
    """A part of a message: there when it has come, or an error instead.  It answers what is asked of arrays of JAX."""

    __slots__ = ("_data", "_key", "_post", "_process", "_text", "_there")

    def __init__(self, post: TcpTransport, process: int, key: _Key) -> None:
        self._post, self._process, self._key = post, process, key
        self._there = False
        self._data: np.ndarray[Any, Any] | None = None
        self._text: str | None = None  # what is wrong

    def is_ready(self) -> bool:
        return self._there

    def is_deleted(self) -> bool:
        return False

    def block_until_ready(self) -> RecvFuture:
        """Return when it has come.

        Raises:
            OSError: when it does not come.
        """
        self._post.wait_for(self)
        if self._text is not None:
            raise OSError(f"Error while transferring the array with tag {self._key[0]:#x}: {self._text}")
        return self

    def take(self) -> np.ndarray[Any, Any]:
        """Return the bytes, once it has come.  Raises as `block_until_ready`."""
        self.block_until_ready()
        return self._post.hand_out(self)


class TcpTransport:
    """This process's end.

    Args:
        host: the address of the interface to listen at.
        process: the number of this process.
    """

    def __init__(self, host: str, process: int) -> None:
        self._process = process
        self._secret = secrets.token_bytes(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family)
        self.address = f"{host}|{self._server.getsockname()[1]}|{self._secret.hex()}"
        #: Of each process, by its number; everybody has one.
        self.addresses: Sequence[str] = ()
        self._rooms = BufferPool()
        self._queues: dict[int, queue.SimpleQueue[tuple[int, Sequence[Any]]]] = {}
        self._links: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._arrivals: dict[_Key, RecvFuture] = {}  # that were not expected yet, or have not come
        self._lying = 0  # bytes that nobody has taken
        self._awaited: dict[int, int] = {}  # for each process how many wait for what it sends
        self._ended: dict[int, str] = {}  # why no more comes from it
        self._broken: str | None = None
        self._unsent = 0  # messages
        #: Called, with what cannot be done and why, when this process cannot send or receive any more.
        self.on_failure: Callable[[str], None] = lambda text: None
        threading.Thread(target=self._accept, name="mpmd-post", daemon=True).start()

    def send(self, process: int, tag: int, parts: Sequence[Any]) -> None:
        """Send arrays of JAX to a process that expects as many under this tag, when they are computed; returns at once.

        They go behind what was given before.  Instead of one that is an error its text goes.
        """
        with self._changed:
            self._unsent += 1
            outgoing = self._queues.get(process)
            if outgoing is None:
                outgoing = self._queues[process] = queue.SimpleQueue()
                threading.Thread(target=self._send, args=(process, outgoing), name="mpmd-send", daemon=True).start()
        outgoing.put((tag, parts))

    @property
    def has_sent_all(self) -> bool:
        """Whether everything that was given is on its way."""
        return self._unsent == 0

    def expect(self, process: int, tag: int, count: int) -> list[RecvFuture]:
        """Return the parts of the message with this tag that a process sends; returns at once."""
        with self._changed:
            result = []
            for number in range(count):
                arrival = self._arrivals.get((tag, number)) or RecvFuture(self, process, (tag, number))
                if not arrival._there:
                    self._arrivals[tag, number] = arrival
                else:
                    del self._arrivals[tag, number]
                why = self._broken or self._ended.get(process)
                if why is not None and not arrival._there:
                    self._fail(arrival, why)
                result.append(arrival)
            return result

    def wait_for(self, arrival: RecvFuture) -> None:
        """Return when it has come, or is an error."""
        if arrival._there:
            return
        process = arrival._process
        with self._changed:
            self._awaited[process] = self._awaited.get(process, 0) + 1
            self._changed.notify_all()
            try:
                while not arrival._there:
                    self._changed.wait()
            finally:
                self._awaited[process] -= 1

    def hand_out(self, arrival: RecvFuture) -> np.ndarray[Any, Any]:
        with self._changed:
            data, arrival._data = arrival._data, None
            assert data is not None, "taken already"
            self._lying -= data.nbytes
            self._changed.notify_all()
            return data

    def break_off(self) -> None:
        """What has not come becomes an error, here and at the other ends."""
        with self._changed:
            self._broken = "connections with other processes have been broken off"
            for link in (self._server, *self._links):  # closed by who waits for them
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            for arrival in list(self._arrivals.values()):
                if not arrival._there:
                    self._fail(arrival, self._broken)
            self._changed.notify_all()

    def _fail(self, arrival: RecvFuture, why: str) -> None:
        self._arrivals.pop(arrival._key, None)
        arrival._text, arrival._there = why, True

    # The side that sends.

    def _send(self, process: int, waiting: queue.SimpleQueue[tuple[int, Sequence[Any]]]) -> None:
        link: socket.socket | None = None
        with self._telling(f"send to process {process}"):
            while True:
                tag, parts = waiting.get()
                link = link or self._connected(process)
                for number, part in enumerate(parts):
                    self.send_part(link, (tag, number), part)
                tag, parts, part = 0, (), None  # what has been sent must not stay
                with self._changed:
                    self._unsent -= 1
        if link is not None:
            self._forget(link)
        while True:
            waiting.get()

    def send_part(self, link: socket.socket, key: _Key, part: Any) -> None:
        """Wait for one array, and send it."""
        try:  # a view that keeps the buffer
            data = np.asarray(part).reshape(-1).view(np.uint8)
        except Exception as error:
            text = str(error).strip().partition("\n")[0].encode() or b"?"
            link.sendall(HEAD.pack(*key, -len(text)) + text)
            return
        head = HEAD.pack(*key, data.nbytes)
        sent = link.sendmsg([head, data.data])
        if sent < len(head) + data.nbytes:
            rest = max(0, sent - len(head))
            link.sendall(head[sent:])
            link.sendall(data.data[rest:])

    def _connected(self, process: int) -> socket.socket:
        host, port, secret = self.addresses[process].split("|")
        link = socket.create_connection((host, int(port)), _PATIENCE)
        link.settimeout(None)
        _tune(link)
        self._remember(link)
        link.sendall(_HELLO.pack(bytes.fromhex(secret), self._process))
        return link

    # The side that receives.

    def _accept(self) -> None:
        failing = 0.0  # since when
        with self._telling("accept connections of other processes"):
            while self._broken is None:
                try:
                    link, _ = self._server.accept()
                except OSError as error:  # there are too many open files, say: whoever wants to connect waits
                    now = time.monotonic()
                    failing = failing or now
                    if now - failing > _PATIENCE and self._broken is None:
                        self.on_failure(f"cannot accept connections of other processes: {in_words(error)}")
                        break
                    time.sleep(0.1)
                    continue
                failing = 0.0
                try:
                    threading.Thread(target=self._receive, args=(link,), name="mpmd-receive", daemon=True).start()
                except RuntimeError:  # no more threads
                    link.close()
                    raise
        self._server.close()

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Run the work of a thread and report its errors, but for a connection that ended, which others notice."""
        try:
            yield
        except Exception as error:
            if self._broken is None and (not isinstance(error, OSError) or error.errno in _OWN_FAULTS):
                self.on_failure(f"cannot {what}: {in_words(error)}")

    def _receive(self, link: socket.socket) -> None:
        process = None
        with self._telling("receive from another process"), link:
            self._remember(link)
            _tune(link)
            link.settimeout(_PATIENCE)
            secret, number = _HELLO.unpack(_read(link, _HELLO.size))
            if secrets.compare_digest(secret, self._secret):
                link.settimeout(None)
                process = number
                self._read_messages(link, process)
        self._forget(link)
        if process is not None:
            self._end(process, "the connection ended")

    def _read_messages(self, link: socket.socket, process: int) -> None:
        key: _Key | None = None
        try:
            while True:
                tag, number, size = HEAD.unpack(_read(link, HEAD.size))
                key = tag, number
                if size < 0:
                    self._deliver(process, key, None, _read(link, -size).decode())
                else:
                    self._wait_for_room(process, size)
                    room = self._rooms.acquire(size)
                    _read_into(link, room.data)
                    self._deliver(process, key, room, None)
                    del room
                key = None
        except Exception as error:
            if key is not None:
                self._deliver(process, key, None, str(error) or in_words(error))
            raise

    def _wait_for_room(self, process: int, size: int) -> None:
        with self._changed:
            while self._lying and self._lying + size > AHEAD and not self._awaited.get(process):
                if self._broken is not None:
                    raise OSError(self._broken)
                self._changed.wait()

    def _deliver(self, process: int, key: _Key, data: np.ndarray[Any, Any] | None, why: str | None) -> None:
        with self._changed:
            arrival = self._arrivals.pop(key, None)
            if arrival is None:  # not expected yet
                arrival = self._arrivals[key] = RecvFuture(self, process, key)
            arrival._data, arrival._text, arrival._there = data, why, True
            self._lying += 0 if data is None else data.nbytes
            self._changed.notify_all()

    def _end(self, process: int, why: str) -> None:
        """Nothing more comes from a process."""
        with self._changed:
            self._ended[process] = why
            for arrival in list(self._arrivals.values()):
                if arrival._process == process and not arrival._there:
                    self._fail(arrival, why)
            self._changed.notify_all()

    # Both.

    def _remember(self, link: socket.socket) -> None:
        with self._changed:
            if self._broken is not None:
                link.close()
                raise OSError(self._broken)
            self._links.add(link)

    def _forget(self, link: socket.socket) -> None:
        with self._changed:
            self._links.discard(link)
        link.close()


def _tune(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if link.getsockname()[0] == link.getpeername()[0]:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ON_THE_WAY)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ON_THE_WAY)


def _read(link: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    _read_into(link, memoryview(buffer))
    return bytes(buffer)


def _read_into(link: socket.socket, room: memoryview) -> None:
    at = 0
    while at < len(room):
        count = link.recv_into(room[at:], 0, socket.MSG_WAITALL)
        if not count:
            raise OSError(f"the connection ended after {at} of {len(room)} bytes")
        at += count
