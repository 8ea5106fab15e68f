"""The connections of process 0 of a job with each other process, over which they say that they are there."""

from __future__ import annotations

import dataclasses
import json
import secrets
import socket
import time
from typing import Protocol

from mpmd_trace.backend.distribution.faults import PeerError

__all__ = ["Link", "Store", "connected"]


class Store(Protocol):
    """Names and values that all processes see; see `jax_compat.distributed.Store`."""

    def put(self, name: str, value: bytes) -> None: ...
    def get(self, name: str, seconds: float) -> bytes | None: ...
    def drop(self, name: str) -> None: ...


@dataclasses.dataclass(eq=False)
class Link:
    """A connection with a process, and when it was last used."""

    socket: socket.socket
    rest: bytes = b""
    heard: float = 0.0
    said: float = 0.0


def connected(store: Store, process: int, count: int, host: str, timeout: float) -> dict[int, Link]:
    """The connections of this process, by the other end: process 0 listens at `host`, the others connect.

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
    with socket.create_server((host, 0), family=family) as server:
        token = secrets.token_hex(16)
        place = {"host": host, "port": server.getsockname()[1], "token": token}
        store.put("mpmd_trace/peers", json.dumps(place).encode())
        until = time.monotonic() + timeout
        while len(links) < count - 1:
            server.settimeout(max(0.01, until - time.monotonic()))
            try:
                found, _ = server.accept()
                found.settimeout(5.0)
                hello = json.loads(found.makefile("rb").readline(1000))
                known = secrets.compare_digest(str(hello["token"]), token)
            except TimeoutError:
                if time.monotonic() < until:
                    continue
                missing = [p for p in range(1, count) if p not in links]
                text = f"did not connect to process 0 within {timeout:g} s"
                raise PeerError(f"process {missing[0]} {text}", missing[0]) from None
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a stranger
            if known:
                links[int(hello["process"])] = Link(found)
            else:
                found.close()
    return links


def _first(store: Store, process: int, timeout: float) -> Link:
    """The connection with process 0."""
    value = store.get("mpmd_trace/peers", timeout)
    if value is None:
        raise PeerError(f"process 0 did not come up within {timeout:g} s", 0)
    place = json.loads(value)
    found = socket.create_connection((place["host"], place["port"]), timeout=timeout)
    found.sendall(json.dumps({"process": process, "token": place["token"]}).encode() + b"\n")
    return Link(found)
