"""Transports of arrays from one process to another.

A transport has one method, `transfer`, which takes tags, an array and its destination.  Who calls it, and in which
order, says the plan (`order.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from mpmd_trace.backend.distribution.in_flight import InFlight
from mpmd_trace.backend.distribution.order import MESSAGE_BITS, MESSAGES
from mpmd_trace.backend.distribution.peers import Peers
from mpmd_trace.backend.distribution.pending_ops import PendingOp
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, sample
from mpmd_trace.diagnostics.internal import in_words
from mpmd_trace.jax_compat.distributed import transfer_server

#: For each message of a process its way (`"to"` or `"from"`), its other end, and its tag.
Tags = Mapping[tuple[str, int], int]
#: Bits for a program and for a step in a tag; beyond that they start again.
_PROGRAM, _STEP = 16, 28


def tag_of(program: int, step: int, message: int) -> int:
    """Return a number that no other message on its way has: 16 bits program, 28 bits step, 20 bits message."""
    assert 0 <= message < MESSAGES
    return (program % (1 << _PROGRAM) << _STEP | step % (1 << _STEP)) << MESSAGE_BITS | message


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """Words for a transfer, and its place in the order of the job.

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
            PeerError: when it does not come.
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
        self, tags: Tags, array: jax.Array | None, reshard: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> Pending | jax.Array | None:
        """Return this process's part of the array after the reshard.

        Every process that has a device of the source or of the target calls this, all of them in one order.  Returns
        at once.  What was sent lives until it is on its way.

        Args:
            tags: of the message to (`"to"`) and from (`"from"`) each other process.
            array: where it is; None in a process that has none of its devices.
            reshard: what goes where.
            log: what it is called when it does not come.
            lent: whether the buffers of the array may be reused before it has arrived.
            given: whether the buffers of what arrives may be.
        """


class Pull:
    """With JAX's transfer servers: who needs an array fetches it from who has it, as soon as it is computed.

    Only the two ends of a message take part, in whatever order, and neither waits for the other: whoever needs what
    has not come waits for it.

    Args:
        peers: the other processes.
        in_flight: the programs of this one.
        host: the address of the interface to listen at.

    Raises:
        MpmdError: where JAX has no transfer servers.
    """

    def __init__(self, peers: Peers, in_flight: InFlight, host: str) -> None:
        self.peers = peers
        self.in_flight = in_flight
        self._server = transfer_server(host)
        told = peers.allgather("addresses of transfers", [self._server.address(), secrets.randbits(64)])
        #: Where each process listens.
        self.addresses: list[str] = [address for address, _ in told]
        # Whoever asks for an array must know its number, and servers ask for nothing else.
        self._secret: int = told[0][1]
        self._connections: dict[int, Any] = {}

    def transfer(
        self, tags: Tags, array: jax.Array | None, reshard: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> Pending | jax.Array | None:
        me = self.peers.process
        if reshard.sends:  # what is only received may be posted ahead of what is sent before
            self.peers.reach(log.place)
        for process, those in reshard.sends.items():
            assert array is not None
            # JAX's servers hang for what has no elements, so it does not go.
            blocks = [block for block in reshard.blocks(array, those, fresh=lent) if block.size]
            if blocks:
                self.offer(tags["to", process], blocks)
            for block in blocks:
                self.in_flight.launched(block)
                self.peers.waits.watch(log.wait(block, (me,), "to", process))
        arrivals: dict[int, list[_Arrival]] = {}
        for process in reshard.receives:
            specs = [spec for spec in reshard.incoming(process) if math.prod(spec.shape)]
            arrivals[process] = [_Arrival(array) for array in self._pull(process, tags["from", process], specs)]
            for arrival in arrivals[process]:
                self.peers.waits.watch(log.wait(arrival, (process,), "from", process))
        if not reshard.arrives:
            return None
        own = reshard.kept(array)
        if not arrivals:
            return reshard.assembled(own, {})

        def make() -> jax.Array:
            blocks: dict[int, list[jax.Array]] = {}
            for process, coming in arrivals.items():
                for arrival in coming:
                    self.peers.wait_for(arrival)
                arrived = (arrival.take() for arrival in coming)
                specs = reshard.incoming(process)
                blocks[process] = [next(arrived) if math.prod(spec.shape) else _empty(spec) for spec in specs]
            return reshard.assembled(own, blocks)

        return Pending(make)

    def offer(self, tag: int, blocks: Sequence[jax.Array]) -> None:
        """Keep the blocks, under this tag, until the other process has fetched them."""
        self._server.await_pull(tag ^ self._secret, list(blocks))

    def _pull(self, process: int, tag: int, specs: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        if not specs:
            return []
        try:
            if process not in self._connections:
                self._connections[process] = self._server.connect(self.addresses[process])
            result: list[jax.Array] = self._connections[process].pull(tag ^ self._secret, list(specs))
        except Exception as error:
            raise OSError(f"Error while transferring the array with tag {tag:#x}: {in_words(error)}") from error
        return result


class _Arrival:
    """An array that is fetched, which whoever watches it does not keep."""

    __slots__ = ("_array",)

    def __init__(self, array: jax.Array) -> None:
        self._array: jax.Array | None = array

    def is_ready(self) -> bool:
        array = self._array  # taken meanwhile, perhaps
        return array is None or array.is_ready()

    def is_deleted(self) -> bool:
        array = self._array
        return array is None or array.is_deleted()

    def block_until_ready(self) -> None:
        if (array := self._array) is not None:
            array.block_until_ready()

    def take(self) -> jax.Array:
        """Return the array; nothing waits for it any more.  Raises what it is instead of values."""
        result, self._array = self._array, None
        assert result is not None
        return result


def _empty(spec: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(np.zeros(spec.shape, spec.dtype), spec.sharding)


class DevicePut:
    """With JAX's own `device_put` between processes, which GPUs and TPUs have.

    It pairs blocks of equal meshes one to one, and matches by order.
    """

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def transfer(
        self, tags: Tags, array: jax.Array | None, reshard: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        self.peers.reach(log.place)
        moved: jax.Array = jax.device_put(array, reshard.target)  # type: ignore[arg-type]
        for process in reshard.receives:
            self.peers.waits.watch(log.wait(sample(moved) if given else moved, (process,), "from", process))
        return moved if reshard.arrives else None
