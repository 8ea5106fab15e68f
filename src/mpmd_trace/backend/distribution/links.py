"""The connections of process 0 of a job with each other process, over which they say that they are there."""

from __future__ import annotations

import dataclasses
import json
import queue
import secrets
import socket
import threading
import time

from mpmd_trace.backend.distribution.faults import PeerError
from mpmd_trace.jax_compat.distributed import Store

#: Seconds in which who connects must say who it is, and the bytes of that; and between looks at who has.
_GREETING, _LONGEST, _GLANCE = 5.0, 1000, 0.05


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
    greeted: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=128) as server:
        server.settimeout(_GLANCE)
        token = secrets.token_hex(16)
        place = {"host": host, "port": server.getsockname()[1], "token": token}
        store.put("mpmd_trace/peers", json.dumps(place).encode())
        until = time.monotonic() + timeout
        while len(links) < count - 1:
            if time.monotonic() > until:
                missing = next(p for p in range(1, count) if p not in links)
                raise PeerError(f"process {missing} did not connect to process 0 within {timeout:g} s", missing)
            try:
                connection, _ = server.accept()
                # A thread for each, so that a silent stranger keeps nobody waiting.
                threading.Thread(target=_greet, args=(connection, token, greeted), daemon=True).start()
            except TimeoutError:
                pass
            except OSError:  # such as too many open files
                time.sleep(_GLANCE)
            while not greeted.empty():
                process, connection = greeted.get()
                if 0 < process < count and process not in links:
                    links[process] = Link(connection)
                else:
                    connection.close()
    return links


def _greet(connection: socket.socket, token: str, greeted: queue.SimpleQueue[tuple[int, socket.socket]]) -> None:
    """Read the first line of a new connection; if it is that of a process of the job, add its number to `greeted`."""
    line, until = b"", time.monotonic() + _GREETING
    try:
        while not line.endswith(b"\n") and len(line) < _LONGEST:  # byte by byte: what comes behind is for others
            connection.settimeout(max(1e-3, until - time.monotonic()))
            line += connection.recv(1) or b"\n"
        hello = json.loads(line)
        if secrets.compare_digest(str(hello["token"]), token):
            greeted.put((int(hello["process"]), connection))
            return
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # a stranger
    connection.close()


def _first(store: Store, process: int, timeout: float) -> Link:
    """Return the connection with process 0."""
    value = store.get("mpmd_trace/peers", timeout)
    if value is None:
        raise PeerError(f"process 0 did not come up within {timeout:g} s", 0)
    place = json.loads(value)
    connection = socket.create_connection((place["host"], place["port"]), timeout=timeout)
    connection.sendall(json.dumps({"process": process, "token": place["token"]}).encode() + b"\n")
    return Link(connection)
