"""The processes of a program as threads of one process, each with the runtime that it would have.

Every mesh belongs to one of them.  What goes from one to another goes through memory; everything else is as it is with
processes: the order, the steps, the places of values, and what is dropped and donated.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from mpmd_trace.backend.distribution.deadlock import check_order
from mpmd_trace.backend.distribution.order import distribute
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer
from mpmd_trace.backend.distribution.runtime import ProcessRuntime
from mpmd_trace.backend.distribution.transport import Log, Pending, Tags, here
from mpmd_trace.backend.distribution.waits import Waits
from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.plan import Slot

__all__ = ["InOrder", "distributions", "run_in_threads"]

#: Seconds after which a message does not come.
_LATE = 60.0


def distributions(meshes: Sequence[str], processes: int) -> Iterator[dict[str, int]]:
    """Every way to give the meshes to at most so many processes, but for the names of these."""

    def rest(given: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(given) == len(meshes):
            yield given
            return
        for process in range(min(max(given, default=-1) + 2, processes)):
            yield from rest((*given, process))

    for given in rest(()):
        yield dict(zip(meshes, given, strict=True))


def run_in_threads(
    program: LoadedProgram,
    process_of: Mapping[str, int],
    args: Sequence[jax.Array],
    steps: int = 1,
    by_devices: Callable[[int], InOrder] | None = None,
) -> list[list[jax.Array]]:
    """The results of each of some steps for the same arguments, each of them from the process that has it.

    Args:
        program: loaded in one process.
        process_of: the process of each mesh.
        args: exactly what the plan expects; donated ones are copied before.
        steps: how many.
        by_devices: for each process what moves values from device to device, where they fit that.
    """
    plan, placement = program.plan, program.runtime.placement
    order = distribute(plan, {name: (process_of[name],) * mesh.size for name, mesh in placement.meshes.items()})
    check_order(plan, order)
    mailbox = _Mailbox()
    found: dict[int, list[list[Any]]] = {}
    errors: list[BaseException] = []

    def process(number: int, given: list[list[Any]]) -> None:
        try:
            own = [
                e if e is not None and process_of[e.spec.mesh] == number else None for e in program.runtime.executables
            ]
            job = _Job(number, mailbox, None if by_devices is None else by_devices(number))
            runtime: Any = _Alone(plan, order, own, placement, job, 1)  # type: ignore[arg-type]
            runtime.tell_ways()
            found[number] = [runtime.run(mine) for mine in given]
        except BaseException as error:
            errors.append(error)
            mailbox.fail()

    threads = []
    for number in sorted(set(process_of.values())):
        held = [number in order.held[slot] for slot in plan.arguments]
        copies = [
            [_copy(x) if mine else _Elsewhere() for x, mine in zip(args, held, strict=True)] for _ in range(steps)
        ]
        threads.append(threading.Thread(target=process, args=(number, copies), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert mailbox.is_empty, "a message was sent that nobody has taken"
    owner = [order.held[slot][0] for slot in plan.results]
    for number, those in found.items():
        for results in those:
            assert all((x is None) == (owner[i] != number) for i, x in enumerate(results))
    return [[found[owner[i]][step][i] for i in range(len(owner))] for step in range(steps)]


def _copy(x: jax.Array) -> jax.Array:
    copied: jax.Array = jax.device_put(x, x.sharding, may_alias=False)
    return copied


class _Elsewhere:
    """Stands for an array without blocks in this process, which cannot be where every device is of it."""

    def delete(self) -> None: ...


class _Alone(ProcessRuntime):
    """A runtime among threads."""

    def with_all_results(self, found: Sequence[Any]) -> list[Any]:
        return [None if x is None or isinstance(x, _Elsewhere) else here(x) for x in found]

    def _one_to_one(self, before: Slot, after: Slot) -> Any:
        between, prepare = super()._one_to_one(before, after)
        return between, prepare if self.job.process in self.order.held[before.number] else lambda _: _Elsewhere()


class _Mailbox:
    """What was sent and not taken, by receiver and tag."""

    def __init__(self) -> None:
        self._lying: dict[tuple[int, int], list[jax.Array]] = {}
        self._changed = threading.Condition()
        self._failed = False

    @property
    def is_empty(self) -> bool:
        return not self._lying

    def put(self, process: int, tag: int, blocks: list[jax.Array]) -> None:
        with self._changed:
            assert (process, tag) not in self._lying
            self._lying[process, tag] = blocks
            self._changed.notify_all()

    def take(self, process: int, tag: int) -> list[jax.Array]:
        with self._changed:
            assert self._changed.wait_for(lambda: self._failed or (process, tag) in self._lying, _LATE), "too late"
            return self._lying.pop((process, tag))

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


class _Transport:
    def __init__(self, process: int, mailbox: _Mailbox) -> None:
        self.process, self.mailbox = process, mailbox

    def transfer(
        self, tags: Tags, array: jax.Array | None, reshard: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> Pending | jax.Array | None:
        for other, those in reshard.sends.items():
            assert array is not None
            self.mailbox.put(other, tags["to", other], reshard.blocks(array, those, fresh=lent))
        if not reshard.arrives:
            return None
        own = reshard.kept(array)

        def make() -> jax.Array:
            arrived = {}
            for other in reshard.receives:
                blocks = self.mailbox.take(self.process, tags["from", other])
                specs = reshard.incoming(other)
                arrived[other] = [
                    jax.device_put(b, s.sharding, may_alias=False) for b, s in zip(blocks, specs, strict=True)
                ]
            return reshard.assembled(own, arrived)

        return Pending(make) if reshard.receives else make()


class _Peers:
    """Others that never fail."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.waits = Waits(process)

    def check(self) -> None: ...
    def wait(self) -> None: ...

    def telling(self, where: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _InFlight:
    def launched(self, array: Any) -> None: ...


class InOrder:
    """Stands for `jax.device_put` between processes: both ends meet, and what arrives is known by its order alone.

    ends: for each two processes the values under way; all processes share it.
    """

    def __init__(
        self, process: int, ends: dict[tuple[int, int], queue.Queue[Any]], sent: list[tuple[int, ...]]
    ) -> None:
        self.process, self.ends, self.sent = process, ends, sent

    def transfer(
        self, tags: Tags, array: jax.Array | None, reshard: ReshardTransfer, log: Log, *, lent: bool, given: bool
    ) -> jax.Array | None:
        (way, other), tag = next(iter(tags.items()))
        assert len(tags) == 1, "a mesh of several processes"
        if way == "to":
            taken = threading.Event()
            self.sent.append((self.process, other, *log.place))
            moved = jax.device_put(array, reshard.target, may_alias=False)
            self.ends.setdefault((self.process, other), queue.Queue()).put((tag, moved, taken))
            assert taken.wait(_LATE), "nobody takes it"
            return None
        known, moved, taken = self.ends.setdefault((other, self.process), queue.Queue()).get(timeout=_LATE)
        taken.set()
        assert known == tag, "values arrive in another order"
        return moved


class _Job:
    must_go_by_devices = False

    def __init__(self, process: int, mailbox: _Mailbox, by_devices: InOrder | None = None) -> None:
        self.by_devices = by_devices
        self.process = process
        self.peers = _Peers(process)
        self.transport = _Transport(process, mailbox)
        self.in_flight = _InFlight()
