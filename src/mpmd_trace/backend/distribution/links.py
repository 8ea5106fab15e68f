"""The connections of process 0 of a job with each other process, over which they say that they are there."""

from __future__ import annotations

import dataclasses
import json
import secrets
import selectors
import socket
import time

from mpmd_trace.backend.distribution.faults import PeerError
from mpmd_trace.jax_compat.distributed import Store

#: Seconds in which who connects must say who it is, and the bytes of that.
_GREETING, _LONGEST = 5.0, 1000


@dataclasses.dataclass(eq=False)
class Link:
    """A connection with a process, and when it was last used."""

    socket: socket.socket
    rest: bytes = b""
    heard: float = 0.0
    said: float = 0.0


def connected(store: Store, process: int, count: int, host: str, timeout: float) -> dict[int, Link]:
    """Return the connections of this process, by the other end: process 0 listens at `host`, the others connect.

    Who is who is known before anything else happens.

    Raises:
        PeerError: when a process is not there within `timeout` seconds.
    """
    links = _accepted(store, count, host, timeout) if process == 0 else {0: _first(store, process, timeout)}
    for link in links.values():
        link.socket.setblocking(False)
        link.heard = time.monotonic()
    return links


def _accepted(store: Store, count: int, host: str, timeout: float) -> dict[int, Link]:
    links: dict[int, Link] = {}
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=128) as server, selectors.DefaultSelector() as selector:
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ)
        token = secrets.token_hex(16)
        place = {"host": host, "port": server.getsockname()[1], "token": token}
        store.put("mpmd_trace/peers", json.dumps(place).encode())
        until = time.monotonic() + timeout
        greetings: dict[socket.socket, _Greeting] = {}
        while len(links) < count - 1:
            now = time.monotonic()
            if now > until:
                missing = [p for p in range(1, count) if p not in links]
                text = f"did not connect to process 0 within {timeout:g} s"
                raise PeerError(f"process {missing[0]} {text}", missing[0])
            next_end = min((one.until for one in greetings.values()), default=until)
            for key, _ in selector.select(max(0.0, min(until, next_end) - now)):
                if key.fileobj is server:
                    try:
                        connection, _ = server.accept()
                        connection.setblocking(False)
                        greetings[connection] = _Greeting(time.monotonic() + _GREETING)
                        selector.register(connection, selectors.EVENT_READ)
                    except OSError:  # such as too many open files: it stays readable
                        time.sleep(0.1)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                greeting = greetings[connection]
                process = greeting.process(connection, token)
                if process is not None:
                    selector.unregister(connection)
                    del greetings[connection]
                    if 0 < process < count and process not in links:
                        links[process] = Link(connection, greeting.rest)
                    else:
                        connection.close()
            for connection in [one for one, greeting in greetings.items() if time.monotonic() > greeting.until]:
                selector.unregister(connection)
                del greetings[connection]
                connection.close()
        for connection in greetings:
            connection.close()
    return links


@dataclasses.dataclass(eq=False)
class _Greeting:
    """Reads what a new connection sends first: one line of a process of the job, or the bytes of a stranger.

    Attributes:
        until: when it must have come.
        rest: what has come behind that line.
    """

    until: float
    rest: bytes = b""

    def process(self, link: socket.socket, token: str) -> int | None:
        """Return the number of the process; -1 for a stranger, None when more must come."""
        try:
            received = link.recv(_LONGEST)
        except BlockingIOError:
            return None
        except OSError:
            return -1
        line, end, self.rest = (self.rest + received).partition(b"\n")
        if received and not end and len(line) < _LONGEST:
            self.rest = line
            return None
        try:
            hello = json.loads(line)
            return int(hello["process"]) if secrets.compare_digest(str(hello["token"]), token) else -1
        except (ValueError, KeyError, TypeError, RecursionError):
            return -1


def _first(store: Store, process: int, timeout: float) -> Link:
    """Return the connection with process 0."""
    value = store.get("mpmd_trace/peers", timeout)
    if value is None:
        raise PeerError(f"process 0 did not come up within {timeout:g} s", 0)
    place = json.loads(value)
    connection = socket.create_connection((place["host"], place["port"]), timeout=timeout)
    connection.sendall(json.dumps({"process": process, "token": place["token"]}).encode() + b"\n")
    return Link(connection)
