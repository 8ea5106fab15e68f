"""One order of everything that the processes of a plan do, and each process's part of it.

The order is that of the plan, which is a linearization of its data flow.  A transfer between processes becomes
messages: for each value and each pair of processes one, with the parts of the value that go between them.  Their
tags number them through.  Since each process issues its part in this one order, whatever is first among all that has
not happened can happen: nothing waits in a cycle, even where a message blocks its sender until it is received.

Everything here is data: `runtime.py` carries it out, and a checker can play it through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mpmd_trace.backend.distribution.shard_slices import ShardSlice, SliceOverlap, by_process, shard_slices
from mpmd_trace.backend.plan import Free, Plan, Run, Slot, Transfer, parse_mesh

#: Bits for the number of a message in the order of a step, and how many messages there may be.
MESSAGE_BITS = 20
MESSAGES = 1 << MESSAGE_BITS


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message from one process to another for one value of a transfer.

    Attributes:
        tag: its number in the order of the step.
        at: the number of the transfer among the plan's instructions.
        slot: the value that is sent, on the source mesh.
        value: the value that arrives, on the target mesh.
        source: the process that sends.
        destination: the process that receives.
        pieces: the parts of the value, in the order in which they go.
    """

    tag: int
    at: int
    slot: int
    value: int
    source: int
    destination: int
    pieces: tuple[SliceOverlap, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RunProgram:
    """Something that needs no other process than those of its mesh: a run, or a transfer among their own devices.

    With several `members` it is collective: each of these processes issues it, and none is done before all have.
    """

    at: int
    instruction: Run | Transfer
    members: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.instruction.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.instruction.outputs


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    message: Message

    @property
    def at(self) -> int:
        return self.message.at


class Send(_End):
    """The source process of a message sends it, as soon as it has the slot."""

    __slots__ = ()


class Receive(_End):
    """The destination of a message receives it."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class LocalCopy:
    """A process has its part of the value that arrives with a transfer.

    It is assembled from the parts that its own devices have (`slice_overlaps`) and those of the messages with these
    `tags`, all of which the process receives before.
    """

    at: int
    slot: int
    value: int
    process: int
    pieces: tuple[SliceOverlap, ...]
    tags: tuple[int, ...]


Action = RunProgram | Send | Receive | LocalCopy | Free


@dataclasses.dataclass(frozen=True)
class Order:
    """All that happens in a step.

    Attributes:
        owners: for each mesh the process of each of its devices.
        actions: what happens, in an order that all processes follow.
        messages: by tag.
        held: for each slot the processes that hold a part of it.
    """

    owners: Mapping[str, tuple[int, ...]]
    actions: tuple[Action, ...]
    messages: tuple[Message, ...]
    held: tuple[tuple[int, ...], ...]

    def parts(self) -> dict[int, tuple[Action, ...]]:
        """Return what each process issues, in this order.  A `Free` names only what the process holds."""
        parts: dict[int, list[Action]] = {p: [] for p in sorted({p for own in self.owners.values() for p in own})}
        for action in self.actions:
            if isinstance(action, Free):
                mine: dict[int, list[int]] = {}
                for slot in action.slots:
                    for process in self.held[slot]:
                        mine.setdefault(process, []).append(slot)
                for process, slots in mine.items():
                    parts[process].append(Free(tuple(slots)))
            else:
                for process in processes_of(action):
                    parts[process].append(action)
        return {process: tuple(actions) for process, actions in parts.items()}

    def of(self, process: int) -> tuple[Action, ...]:
        """Return the part of one process, empty where it holds no mesh."""
        return self.parts().get(process, ())


def processes_of(action: RunProgram | Send | Receive | LocalCopy) -> tuple[int, ...]:
    """Return the processes that issue an action."""
    if isinstance(action, RunProgram):
        return action.members
    if isinstance(action, LocalCopy):
        return (action.process,)
    return (action.message.source if isinstance(action, Send) else action.message.destination,)


def distribute(plan: Plan, owners: Mapping[str, Sequence[int]]) -> Order:
    """Return the order in which processes carry out a plan.

    Args:
        plan: what to do.
        owners: for each mesh of the plan the process of each of its devices, in the order of the mesh.
    """
    return _Distributor(plan, owners).order()


class _Distributor:
    def __init__(self, plan: Plan, owners: Mapping[str, Sequence[int]]) -> None:
        self.plan = plan
        self.owners = {name: tuple(owners[name]) for name in plan.meshes}
        self.members = {name: tuple(sorted(set(processes))) for name, processes in self.owners.items()}
        self.meshes = {name: parse_mesh(body) for name, body in plan.meshes.items()}
        self.boxes: dict[object, tuple[ShardSlice, ...]] = {}
        #: For two types, what goes from process to process.
        self.between: dict[object, dict[tuple[int, int], tuple[SliceOverlap, ...]]] = {}
        self.messages: list[Message] = []

    def order(self) -> Order:
        actions: list[Action] = []
        for at, instruction in enumerate(self.plan.instructions):
            if isinstance(instruction, Free):
                actions.append(instruction)
            elif isinstance(instruction, Run):
                actions.append(RunProgram(at, instruction, self.members[instruction.mesh]))
            else:
                actions += self.transfer(at, instruction)
        held = tuple(self.members[slot.mesh] for slot in self.plan.slots)
        return Order(self.owners, tuple(actions), tuple(self.messages), held)

    def transfer(self, at: int, transfer: Transfer) -> list[Action]:
        source, target = self.members[transfer.source], self.members[transfer.target]
        if transfer.source == transfer.target or (source == target and len(source) == 1):
            return [RunProgram(at, transfer, source)]
        result: list[Action] = []
        for slot, value in zip(transfer.inputs, transfer.outputs, strict=True):
            result += self.value(at, slot, value)
        return result

    def value(self, at: int, slot: int, value: int) -> list[Action]:
        """Return the messages for one value, in the order of their processes, and then the value itself."""
        before, after = self.plan.slots[slot], self.plan.slots[value]
        result: list[Action] = []
        tags: dict[int, list[int]] = {}
        own: dict[int, tuple[SliceOverlap, ...]] = {}
        for (source, destination), those in self.exchange(before, after).items():
            if source == destination:
                own[source] = those
                continue
            message = Message(len(self.messages), at, slot, value, source, destination, those)
            self.messages.append(message)
            tags.setdefault(destination, []).append(message.tag)
            result += [Send(message), Receive(message)]
        for process in self.members[after.mesh]:
            result.append(LocalCopy(at, slot, value, process, own.get(process, ()), tuple(tags.get(process, ()))))
        return result

    def exchange(self, before: Slot, after: Slot) -> dict[tuple[int, int], tuple[SliceOverlap, ...]]:
        """Return what goes from process to process, where a value has these places."""
        key = before.type, after.type
        if key not in self.between:
            owners, wanted = self.owners[before.mesh], self.owners[after.mesh]
            self.between[key] = by_process(self.of_slot(before), self.of_slot(after), owners, wanted)
        return self.between[key]

    def of_slot(self, slot: Slot) -> tuple[ShardSlice, ...]:
        key = slot.type
        if key not in self.boxes:
            tensor = slot.type.tensor
            self.boxes[key] = shard_slices(tensor.shape or (), slot.type.sharding, self.meshes[slot.mesh])
        return self.boxes[key]


def describe(plan: Plan, action: Action) -> str:
    """Return an action in words, for people."""
    if isinstance(action, Free):
        return "free " + ", ".join(f"%{s}" for s in action.slots)
    if isinstance(action, RunProgram):
        where = "" if len(action.members) == 1 else f", with processes {', '.join(map(str, action.members))}"
        if isinstance(action.instruction, Run):
            callee = plan.programs[action.instruction.program].callee
            return f"run @{callee} ({action.instruction.label}) on mesh '{action.instruction.mesh}'{where}"
        values = ", ".join(f"%{s} {plan.slots[s]}" for s in action.outputs)
        return f"transfer of {values} from mesh '{action.instruction.source}' to '{action.instruction.target}'{where}"
    if isinstance(action, LocalCopy):
        return f"have %{action.value} {plan.slots[action.value]} on mesh '{plan.slots[action.value].mesh}'"
    message = action.message
    value = f"%{message.value} {plan.slots[message.value]}"
    link = f"from mesh '{plan.slots[message.slot].mesh}' to '{plan.slots[message.value].mesh}'"
    if isinstance(action, Send):
        return f"send {value} {link}, to process {message.destination}, tag {message.tag}"
    return f"receive {value} {link}, from process {message.source}, tag {message.tag}"
