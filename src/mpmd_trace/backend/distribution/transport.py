"""How arrays get from one process to another.

A transport has one method, `transfer`, which takes tags, an array and its destination.  Who calls it, and in which
order, says the plan (`order.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from mpmd_trace.backend.distribution.in_flight import InFlight
from mpmd_trace.backend.distribution.parcels import Parcel, sample
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.backend.distribution.waits import Wait

__all__ = ["MESSAGES", "DevicePut", "Endpoint", "Log", "Pulling", "Transport", "tag_of"]

#: For each message of a process its way (`"to"` or `"from"`), its other end, and its tag.
Tags = Mapping[tuple[str, int], int]
#: Bits of the three parts of a tag.
_STEP, _MESSAGE = 28, 20
#: How many messages a step may have.
MESSAGES = 1 << _MESSAGE


def tag_of(program: int, step: int, message: int) -> int:
    """The number of a message, as no other one of the job has it: 16 bits program, 28 bits step, 20 bits message."""
    assert 0 <= message < 1 << _MESSAGE
    assert 0 <= step < 1 << _STEP
    assert 0 <= program < 1 << 16
    return (program << _STEP | step) << _MESSAGE | message


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """How to speak of a transfer.

    Attributes:
        what: a message, by its way and its other end, in words.
        place: of the transfer in the order of all processes.
    """

    what: Callable[[str, int], str]
    place: tuple[int, ...]

    def wait(self, array: jax.Array, processes: tuple[int, ...], way: str, process: int) -> Wait:
        return Wait(array, processes, functools.partial(self.what, way, process), self.place)


class Endpoint(Protocol):
    """See `jax_compat.distributed.Endpoint`."""

    @property
    def address(self) -> str: ...
    def offer(self, tag: int, arrays: Any) -> None: ...
    def fetch(self, address: str, tag: int, specs: Any) -> list[jax.Array]: ...
    def break_off(self) -> None: ...


class Transport(Protocol):
    """Moves arrays between processes."""

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: Parcel, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        """The array where the parcel says, for the part of this process.

        Every process that has a device of the source or of the target calls this, all of them in one order.  Returns
        at once.  What was sent lives until it has arrived.

        Args:
            tags: of the message to (`"to"`) and from (`"from"`) each other process.
            array: where it is; None in a process that has none of its devices.
            parcel: what goes where.
            log: what it is called when it does not come.
            lent: whether the buffers of the array may be reused before it has arrived.
            given: whether the buffers of what arrives may be.
        """


class Pulling:
    """Only the two ends of a message take part, in whatever order.

    A sender offers blocks under a tag; the receiver fetches them.  Neither waits for the other.

    Args:
        endpoint: of this process.
        peers: the other processes.
        in_flight: the programs of this one.
    """

    def __init__(self, endpoint: Endpoint, peers: Peers, in_flight: InFlight) -> None:
        self.endpoint = endpoint
        self.peers = peers
        self.in_flight = in_flight
        self.addresses = [a.decode() for a in peers.agree("addresses of transfers", endpoint.address.encode())]
        peers.on_fault.append(endpoint.break_off)
        self._senders: dict[int, queue.SimpleQueue[tuple[int, list[jax.Array]]]] = {}

    def _sender(self, process: int) -> queue.SimpleQueue[tuple[int, list[jax.Array]]]:
        """What goes to a process, in the order of the plan.

        A thread offers it when it is computed: XLA copies only so many arrays at a time, counting those that are asked
        for and not there yet, so that they would keep others from going, for which they may wait themselves.
        """
        found = self._senders.get(process)
        if found is None:
            found = self._senders[process] = queue.SimpleQueue()
            threading.Thread(target=self._send, args=(found,), name=f"mpmd-send-{process}", daemon=True).start()
        return found

    def _send(self, waiting: queue.SimpleQueue[tuple[int, list[jax.Array]]]) -> None:
        while True:
            tag, blocks = waiting.get()
            with contextlib.suppress(Exception):  # an error goes to the receiver
                jax.block_until_ready(blocks)
            self.endpoint.offer(tag, blocks)
            del blocks

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: Parcel, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        me = self.peers.process
        for process, those in parcel.sends.items():
            assert array is not None
            blocks = parcel.blocks(array, those, fresh=lent)
            self._sender(process).put((tags["to", process], blocks))
            for block in blocks:
                self.in_flight.launched(block)
                self.peers.watch(log.wait(block, (me,), "to", process))
        arrived: dict[int, list[jax.Array]] = {}
        for process in parcel.receives:
            tag = tags["from", process]
            blocks = self.endpoint.fetch(self.addresses[process], tag, parcel.incoming(process))
            arrived[process] = blocks
            for block in blocks:
                seen = sample(block) if given else block
                self.in_flight.launched(seen)
                self.peers.watch(log.wait(seen, (process,), "from", process))
        return parcel.assembled(array, arrived)


class DevicePut:
    """With JAX's own `device_put` between processes, which GPUs and TPUs have.

    It pairs blocks of equal meshes one to one, and matches by order.
    """

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def transfer(
        self, tags: Tags, array: jax.Array | None, parcel: Parcel, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        found: jax.Array = jax.device_put(array, parcel.target)  # type: ignore[arg-type]
        for process in parcel.receives:
            self.peers.watch(log.wait(sample(found) if given else found, (process,), "from", process))
        return found if parcel.arrives else None
