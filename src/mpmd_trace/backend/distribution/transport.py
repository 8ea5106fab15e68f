"""How arrays get from one process to another.

A transport has one method, `transfer`, which takes tags, an array and its destination.  Who calls it, and in which
order, says the plan (`order.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from mpmd_trace.backend.distribution.deadlines import PendingOp
from mpmd_trace.backend.distribution.faults import Fault
from mpmd_trace.backend.distribution.in_flight import InFlight
from mpmd_trace.backend.distribution.order import MESSAGE_BITS, MESSAGES
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, sample
from mpmd_trace.backend.distribution.tcp import RecvFuture, TcpTransport
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.jax_compat.runtime import from_memory

__all__ = ["DevicePut", "Log", "Pending", "Posting", "Transport", "here", "tag_of"]

#: For each message of a process its way (`"to"` or `"from"`), its other end, and its tag.
Tags = Mapping[tuple[str, int], int]
#: Bits for a program and for a step in a tag; beyond that they start again.
_PROGRAM, _STEP = 16, 28


def tag_of(program: int, step: int, message: int) -> int:
    """The number of a message, as no other one that is on its way: 16 bits program, 28 bits step, 20 bits message."""
    assert 0 <= message < MESSAGES
    return (program % (1 << _PROGRAM) << _STEP | step % (1 << _STEP)) << MESSAGE_BITS | message


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """How to speak of a transfer.

    Attributes:
        what: a message, by its way and its other end, in words.
        place: of the transfer in the order of all processes.
    """

    what: Callable[[str, int], str]
    place: tuple[int, ...]

    def wait(self, array: Any, processes: tuple[int, ...], way: str, process: int) -> PendingOp:
        return PendingOp(array, processes, functools.partial(self.what, way, process), self.place)


class Pending:
    """An array that other processes send, or parts of it; it is made when somebody asks for it.

    Args:
        make: waits for what comes.
    """

    __slots__ = ("_array", "_make")

    def __init__(self, make: Callable[[], jax.Array]) -> None:
        self._make: Callable[[], jax.Array] | None = make
        self._array: jax.Array | None = None

    def get(self) -> jax.Array:
        """Return the array.

        Raises:
            OSError: when it does not come.
        """
        if self._make is not None:
            self._array, self._make = self._make(), None
        assert self._array is not None
        return self._array


def here(value: Any) -> Any:
    """Return what a transport gave, once it is there: not pending any more."""
    return value.get() if isinstance(value, Pending) else value


class Transport(Protocol):
    """Moves arrays between processes."""

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> Pending | jax.Array | None:
        """Return the array where the parcel says, for the part of this process.

        Every process that has a device of the source or of the target calls this, all of them in one order.  Returns
        at once.  What was sent lives until it is on its way.

        Args:
            tags: of the message to (`"to"`) and from (`"from"`) each other process.
            array: where it is; None in a process that has none of its devices.
            parcel: what goes where.
            log: what it is called when it does not come.
            lent: whether the buffers of the array may be reused before it has arrived.
            given: whether the buffers of what arrives may be.
        """


class Posting:
    """Through host memory, over connections of our own (`tcp.py`).

    Only the two ends of a message take part, in whatever order, and neither waits for the other: whoever needs what
    has not come waits for it.

    Args:
        post: of this process.
        peers: the other processes.
        in_flight: the programs of this one.
    """

    def __init__(self, post: TcpTransport, peers: Peers, in_flight: InFlight) -> None:
        self.post = post
        self.peers = peers
        self.in_flight = in_flight
        post.addresses = [a.decode() for a in peers.allgather_bytes("addresses of transfers", post.address.encode())]
        peers.on_fault.append(post.break_off)
        post.on_failure = lambda text: peers.report(Fault(peers.process, text))
        peers.has_sent_all = lambda: post.has_sent_all

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> Pending | jax.Array | None:
        me = self.peers.process
        for process, those in parcel.sends.items():
            assert array is not None
            blocks = parcel.blocks(array, those, fresh=lent)
            self.post.send(process, tags["to", process], blocks)
            for block in blocks:
                self.in_flight.launched(block)
                self.peers.watch(log.wait(block, (me,), "to", process))
        arrivals: dict[int, list[RecvFuture]] = {}
        for process in parcel.receives:
            specs = parcel.incoming(process)
            arrivals[process] = self.post.expect(process, tags["from", process], len(specs))
            for arrival in arrivals[process]:
                self.peers.watch(log.wait(arrival, (process,), "from", process))
        if not parcel.arrives:
            return None
        own = parcel.kept(array)
        if not arrivals:
            return parcel.assembled(own, {})

        def make() -> jax.Array:
            return parcel.assembled(
                own,
                {
                    process: [
                        from_memory(_as(arrival.take(), spec), spec, copied=given)
                        for arrival, spec in zip(received, parcel.incoming(process), strict=True)
                    ]
                    for process, received in arrivals.items()
                },
            )

        return Pending(make)


def _as(data: np.ndarray[Any, Any], spec: jax.ShapeDtypeStruct) -> np.ndarray[Any, Any]:
    if data.nbytes != math.prod(spec.shape) * np.dtype(spec.dtype).itemsize:
        raise MpmdError(f"another process sent {data.nbytes} bytes, which do not form a {spec.dtype}{list(spec.shape)}")
    result: np.ndarray[Any, Any] = data.view(spec.dtype).reshape(spec.shape)
    return result


class DevicePut:
    """With JAX's own `device_put` between processes, which GPUs and TPUs have.

    It pairs blocks of equal meshes one to one, and matches by order.
    """

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        peers.has_sent_all = lambda: False  # JAX does not say

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        moved: jax.Array = jax.device_put(array, parcel.target)  # type: ignore[arg-type]
        for process in parcel.receives:
            self.peers.watch(log.wait(sample(moved) if given else moved, (process,), "from", process))
        return moved if parcel.arrives else None
