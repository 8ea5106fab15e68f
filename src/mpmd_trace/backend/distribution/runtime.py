"""Executes one process's part of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from mpmd_trace.backend.distribution.deadlock import check_order
from mpmd_trace.backend.distribution.job import Job
from mpmd_trace.backend.distribution.order import (
    Action,
    LocalCopy,
    Message,
    Order,
    Receive,
    RunProgram,
    Send,
    describe,
    distribute,
)
from mpmd_trace.backend.distribution.parts import Exchanged, part_of, value_of
from mpmd_trace.backend.distribution.pending_ops import PendingOp
from mpmd_trace.backend.distribution.reshard_transfer import ReshardTransfer, owners_of, sample
from mpmd_trace.backend.distribution.transport import Log, here, tag_of
from mpmd_trace.backend.executables import Executable
from mpmd_trace.backend.placement import Placement
from mpmd_trace.backend.plan import Free, Plan, Run, Slot, Transfer
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.backend.steps import Call
from mpmd_trace.diagnostics.messages import MpmdError
from mpmd_trace.diagnostics.progress import LOG
from mpmd_trace.jax_compat.layouts import put
from mpmd_trace.jax_compat.runtime import from_shards


class ProcessRuntime(Runtime):
    """The part of a plan that this process carries out.

    Values on meshes of other processes alone are None here, and arrays without blocks among the results.

    Args:
        plan: of all processes.
        order: what happens in which order.
        executables: one for each program on a mesh of this process, None for others.
        placement: the meshes.
        job: the processes.
        program: the number of the program in the job.
    """

    def __init__(
        self,
        plan: Plan,
        order: Order,
        executables: Sequence[Executable | None],
        placement: Placement,
        job: Job,
        program: int,
    ) -> None:
        self.order, self.job, self.program, self.step = order, job, program, 0
        #: What this process issues.
        self.part = part_of(plan, order, job.process, ahead=bool(program) and job.by_devices is None)
        #: The numbers of its instructions in the plan.
        self.numbers = list(self.part.actions)
        #: The values whose buffers programs reuse, and those whose buffers may be reused while they are sent.
        self._given = frozenset(run.inputs[position] for run in plan.runs for position in run.donated)
        self._lent = self._given.union(plan.arguments, plan.results)
        slots = (plan.slots[s] for s in plan.results)
        #: For each two meshes why values do not go from device to device, None for those that do.
        self.ways: dict[tuple[str, str], dict[str | None, None]] = {}
        #: For each result what makes its array where no device of it is this process's.
        self._elsewhere = [from_shards(placement.spec(*slot.place)) for slot in slots]
        super().__init__(dataclasses.replace(plan, instructions=self.part.instructions), executables, placement)
        self.may_use_threads = False  # processes agree on one order of what they send and receive

    def from_all(self, what: str, mine: dict[str, int]) -> list[dict[str, int]]:
        """Return these numbers of each process that has a part in the program; all of them call this."""
        if not self.program:
            return [mine]
        return self.job.peers.allgather(what, mine)

    def run(self, args: list[jax.Array]) -> list[jax.Array]:
        """As `Runtime.run`; returns when what comes from other processes has come.

        Raises:
            PeerError: when another process is at fault.
        """
        peers = self.job.peers
        peers.check()
        with peers.telling(f"in step {self.step} of {self.plan.name}"):
            results = super().run(args)
            peers.wait()
        self.step += 1
        return self.with_all_results(results)

    def with_all_results(self, results: Sequence[Any]) -> list[jax.Array]:
        """Return the results, where those of other processes are arrays without blocks."""
        return [self._elsewhere[i]([]) if x is None else here(x) for i, x in enumerate(results)]

    def _call(self, instruction: Run | Transfer) -> Call:
        actions = self.part.actions[self.numbers[len(self.instructions) - 1]]
        first = actions[0]
        if not isinstance(first, RunProgram):
            assert isinstance(instruction, Transfer)
            return self._waiting(instruction, self._exchange(instruction, actions))
        return self._waiting(instruction, self._work(instruction, first))

    def _waiting(self, instruction: Run | Transfer, call: Call) -> Call:
        """Return the call, which waits for those of its inputs that are not there yet."""
        if self.part.arriving.isdisjoint(instruction.inputs):
            return call
        return lambda arrays: call([here(array) for array in arrays])

    def _work(self, instruction: Run | Transfer, first: RunProgram) -> Call:
        call = super()._call(instruction)
        if not isinstance(instruction, Run) or not instruction.outputs:
            return call
        lasting = next((i for i, s in enumerate(instruction.outputs) if s not in self._given), None)
        peers, in_flight = self.job.peers, self.job.in_flight

        def last(outputs: Sequence[Any]) -> Any:
            """Something that is there when the program has run, and that nothing takes the buffer of."""
            return sample(outputs[0]) if lasting is None else outputs[lasting]

        if len(first.members) == 1:
            if len(self.placement.meshes[instruction.mesh].local_devices) == 1:
                return call

            def counted(arrays: Sequence[Any]) -> Sequence[Any]:
                outputs = call(arrays)
                in_flight.launched(last(outputs))
                return outputs

            return counted

        def collective(arrays: Sequence[Any]) -> Sequence[Any]:
            step, place = self.step, (self.program, self.step, first.at)
            wait = PendingOp(None, first.members, lambda: self._what(first, step), place)
            peers.reach(place)
            with peers.waits.inside(wait):
                outputs = call(arrays)
            array = last(outputs)
            in_flight.launched(array)
            peers.waits.watch(dataclasses.replace(wait, array=array))
            return outputs

        return collective

    def _is_copy(self, transfer: Transfer) -> bool:
        return transfer in self.part.copies and super()._is_copy(transfer)

    def _what(self, action: Action, step: int) -> str:
        """Return an action in words, with its place in the step."""
        assert not isinstance(action, Free)
        number = ""
        if isinstance(action, Send | Receive):
            number = f" ({tag_of(self.program, step, action.message.tag):#x})"
        return f"{describe(self.plan, action)}{number}, instruction {action.at} of step {step} of {self.plan.name}"

    # Values that go between processes.

    def _exchange(self, transfer: Transfer, actions: Sequence[Action]) -> Call:
        """Return the calls for the values of a transfer one after the other, each with its part of the actions."""
        calls = []
        parts = [a for a in actions if isinstance(a, Send | Receive | LocalCopy)]
        for slot, value in zip(transfer.inputs, transfer.outputs, strict=True):
            mine = [a for a in parts if value_of(a) == value]
            calls.append(self._value_call(self.plan.slots[slot], self.plan.slots[value], mine) if mine else _nothing)
        return lambda arrays: [call(array) for call, array in zip(calls, arrays, strict=True)]

    def _value_call(self, before: Slot, after: Slot, actions: Sequence[Exchanged]) -> Callable[[Any], Any]:
        messages: dict[tuple[str, int], Message] = {}
        said: dict[tuple[str, int], Exchanged] = {}
        own: LocalCopy | None = None
        for action in actions:
            if isinstance(action, Send):
                key = "to", action.message.destination
            elif isinstance(action, Receive):
                key = "from", action.message.source
            else:
                own = action
                continue
            messages[key], said[key] = action.message, action
        unusual = before.layout is not None or after.layout is not None
        usual = self.placement.spec(before.type, before.memory_kind)
        wanted = self.placement.spec(after.type, after.memory_kind)
        source = self.movers.sharding(before.place)
        prepare: Callable[[Any], Any] | None = None
        transport = self.job.transport
        if (by_devices := self.job.by_devices) is not None:
            reason = self._why_not_by_devices(before, after)
            if reason is None:
                transport = by_devices
                source, prepare = self._one_to_one(before, after)
            elif self.job.must_go_by_devices:
                raise MpmdError(
                    f"jax.device_put between processes cannot send {before} from mesh '{before.mesh}' to "
                    f"'{after.mesh}': {reason}. Leave initialize(transfers='device_put') out: such values then go "
                    "through host memory"
                )
            self.ways.setdefault((before.mesh, after.mesh), {}).setdefault(reason)
        reshard = ReshardTransfer(
            wanted,
            source,
            sends={p: m.pieces for (way, p), m in messages.items() if way == "to"},
            receives={p: m.pieces for (way, p), m in messages.items() if way == "from"},
            own=own.pieces if own is not None else (),
            arrives=own is not None,
        )
        lent, given = before.number in self._lent, after.number in self._given
        is_here = self.job.process in self.order.held[before.number]

        def call(array: Any) -> Any:
            step = self.step
            tags = {key: tag_of(self.program, step, m.tag) for key, m in messages.items()}
            if is_here and unusual:
                array = put(array, usual)
            if prepare is not None:
                array = prepare(array)
            log = Log(lambda way, p: self._what(said[way, p], step), (self.program, step, actions[0].at))
            result = transport.transfer(tags, array, reshard, log, lent=lent, given=given)
            if unusual and result is not None:
                result = put(here(result), self.placement.spec(*after.place))
            return result

        return call

    def _why_not_by_devices(self, before: Slot, after: Slot) -> str | None:
        """Return why `jax.device_put` does not move a value between these processes, None if it does.

        It wants as many devices of one kind, another set of processes, and device memory on both sides.  Other tiles
        are no reason: they are made on the source first.
        """
        source, target = self.movers.sharding(before.place), self.movers.sharding(after.place)
        if source.num_devices != target.num_devices:
            return f"it goes from {source.num_devices} to {target.num_devices} devices"
        kinds = list(dict.fromkeys(d.device_kind for s in (source, target) for d in s.mesh.devices.flat))
        if len(kinds) > 1:
            return f"the devices are of several kinds ({', '.join(kinds)})"
        if set(self.order.held[before.number]) == set(self.order.held[after.number]):
            return "both meshes have devices of the same processes"
        if "pinned_host" in (source.memory_kind, target.memory_kind):
            return "it is in host memory"
        return None

    def tell_ways(self) -> None:
        """Say how values go from mesh to mesh, where they may go from device to device."""
        for (source, target), reasons in self.ways.items():
            for reason in reasons:
                if reason is None:
                    LOG.info("values go from mesh '%s' to '%s' from device to device", source, target)
                else:
                    text = "values go from mesh '%s' to '%s' through host memory, which is slower: %s"
                    LOG.warning(text, source, target, reason)

    def _one_to_one(self, before: Slot, after: Slot) -> tuple[NamedSharding, Callable[[Any], Any] | None]:
        """Return the sharding on the source mesh whose blocks are those of the target, and what has to make it."""
        between, program = self.movers.sharding(before.place), None
        if self.movers.copy(before.place, after.place) is None:
            between, program = self.movers.to_tiles(before.place, after.place)
        if self.job.process not in self.order.held[before.number]:
            make = from_shards(self.placement.spec(*before.place).update(sharding=between))
            return between, lambda _: make([])
        return between, None if program is None else lambda array: program([array])[0]


def process_runtime(
    plan: Plan, executables: Sequence[Executable], placement: Placement, job: Job, program: int
) -> ProcessRuntime:
    """Return the runtime of this process, `program` of its job; `executables` are those of its own programs."""
    order = distribute(plan, {name: owners_of(mesh) for name, mesh in placement.meshes.items()})
    check_order(plan, order)
    if program:
        _ = job.by_devices  # all processes set it up together, also those that send nothing
    made = {e.spec.number: e for e in executables}
    runtime = ProcessRuntime(plan, order, [made.get(p.number) for p in plan.programs], placement, job, program)
    runtime.tell_ways()
    return runtime


def _nothing(array: Any) -> None:
    return None
