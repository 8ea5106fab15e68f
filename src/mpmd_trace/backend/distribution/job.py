"""The job that this process is part of, if there are several processes."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Literal

import jax

from mpmd_trace.backend.distribution.in_flight import InFlight
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.backend.distribution.transport import DevicePut, Pull, Transport
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.distributed import sends_between_processes

#: How arrays go between processes: through host memory, with JAX's transfer servers, or with `jax.device_put`.
Transfers = Literal["host", "device_put"]


class Job:
    """The processes that run one script together.

    Attributes:
        peers: the other processes.
        process: the number of this one.
        count: how many there are.
        host: the address of this process for others.
    """

    def __init__(self, peers: Peers, transfers: Transfers | None, host: str) -> None:
        self.peers = peers
        self.process, self.count = peers.process, peers.count
        self.host = host
        self._transfers = transfers
        self._transport: Transport | None = None
        self._programs = itertools.count(1)
        self._moves = itertools.count()

    @property
    def transport(self) -> Transport:
        """The transport between hosts, where arrays do not go from device to device; all processes must ask for it."""
        if self._transport is None:
            if self._transfers == "device_put":
                self._transport = DevicePut(self.peers)
            else:
                self._transport = Pull(self.peers, self.in_flight, self.host)
        return self._transport

    @functools.cached_property
    def by_devices(self) -> Transport | None:
        """The transport between devices, for meshes and shardings that fit it; None if it is not used."""
        transport = self.transport
        if isinstance(transport, DevicePut):
            return transport
        can = sends_between_processes(jax.local_devices()[0])
        return DevicePut(self.peers) if self._transfers is None and can else None

    @property
    def must_go_by_devices(self) -> bool:
        """True if nothing may go through host memory."""
        return self._transfers == "device_put"

    @functools.cached_property
    def in_flight(self) -> InFlight:
        """The programs of this process; known when it knows its devices."""
        devices = jax.local_devices()
        return InFlight(len(devices) > 1 and devices[0].platform == "cpu")

    def next_program(self) -> int:
        """Return the number of a program: the same in all processes, since they compile theirs in one order."""
        return next(self._programs)

    def next_move(self) -> int:
        """Return the number of an array that is moved outside of a program; likewise."""
        return next(self._moves)


_CURRENT: list[Job] = []
_ENDED: list[int] = []  # the number that this process had


def begin(job: Job) -> None:
    _CURRENT[:] = [job]


def end() -> None:
    """Leave the job for good: this process is alone now."""
    _ENDED.extend(job.process for job in _CURRENT)
    _CURRENT.clear()


def has_ended() -> bool:
    """Return whether this process was part of a job and has left it."""
    return bool(_ENDED)


def _forget() -> None:
    """In a forked child: the connections are its parent's, and so is the place in the job."""
    for job in _CURRENT:
        job.peers.forget()
    _CURRENT.clear()


os.register_at_fork(after_in_child=_forget)


def current() -> Job | None:
    """Return the job of this process, if it has joined one."""
    return _CURRENT[0] if _CURRENT else None


def joined() -> Job:
    """Return the job that runs programs on devices of other processes, too.

    Raises:
        MpmdError: when `mpmd_trace.initialize` was not called.
    """
    result = current()
    if result is None:
        raise MpmdError(
            "the topology has devices of other processes, and this process has not joined them: call "
            "mpmd_trace.initialize() at the start of the script, in the place of jax.distributed.initialize()"
        )
    result.peers.check()
    return result
