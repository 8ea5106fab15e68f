"""Deadlock detection: do the processes of a plan all terminate, or wait for each other in a cycle?

Processes do their actions one after the other.  A collective waits until each of its members is there, a receive
until the message was sent, and a send until a buffer is free: without buffers until it is received, with `buffers` of
them until fewer than that many messages to the same process lie there unreceived.  What each process does next never
depends on time, so an action that can happen can happen until it does, whatever else happens before: all ways to play
the plan end in the same place (a marked graph; Commoner, Holt, Even, Pnueli: Marked directed graphs, J. Comput. Syst.
Sci. 5, 1971; for what the values are, Kahn: The semantics of a simple language for parallel programming, 1974).  So
one play decides, in time linear in the actions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from mpmd_trace.backend.distribution.order import (
    MESSAGES,
    Action,
    LocalCopy,
    Order,
    Receive,
    RunProgram,
    Send,
    describe,
)
from mpmd_trace.backend.distribution.parts import issued
from mpmd_trace.backend.plan import Free, Plan, Run
from mpmd_trace.diagnostics.messages import raise_errors

#: What each process does, in order.
Parts = Mapping[int, Sequence[Action]]


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """A process stands before an action that cannot happen before another process does something.

    Attributes:
        process: who waits.
        place: the place of the action in the part of the process.
        peer: for whom it waits.
        peer_place: the place of what the peer has to do in its part; None where it never does.
    """

    process: int
    place: int
    peer: int
    peer_place: int | None


@dataclasses.dataclass(frozen=True)
class Deadlock:
    """Processes that do not terminate.

    Attributes:
        waits: the shortest cycle, each waiting for the next one and the last for the first; or, where there is
            none, a chain whose last one waits for what never happens.
        stuck: the place at which each process that does not terminate is stuck.
        buffers: how many messages fit between two processes; None for any number.
    """

    waits: tuple[Wait, ...]
    stuck: Mapping[int, int]
    buffers: int | None

    @property
    def is_cycle(self) -> bool:
        return self.waits[-1].peer == self.waits[0].process and self.waits[-1].peer_place is not None

    def text(self, plan: Plan, parts: Parts, notes: Mapping[int, str] | None = None) -> str:
        """Return what waits for what, in lines.

        Args:
            plan: what the processes carry out.
            parts: what was checked.
            notes: what more to say of instructions, such as their microbatch; by their place in the plan.
        """
        names = _Names(plan, parts, notes or {})
        count = len(self.waits)
        if not self.is_cycle:
            head = f"process {self.waits[0].process} waits for what never happens"
        elif count == 1:
            head = f"process {self.waits[0].process} waits for itself"
        else:
            head = f"{count} processes wait for each other in a cycle"
        room = {None: "with any number of buffers", 0: "without buffers"}.get(
            self.buffers, f"with {self.buffers} buffer{'s' * (self.buffers != 1)} from each process to each other"
        )
        lines = [f"{head} ({room}):"]
        for wait in self.waits:
            lines += names.wait(wait)
        return "\n".join(lines)


def find_deadlock(parts: Parts, buffers: int | None = 0) -> Deadlock | None:
    """Return what keeps processes from coming to their end; None where all do, however long anything takes.

    Args:
        parts: what each process does, as from `Order.parts`.
        buffers: how many messages from one process to another may lie there unreceived: 0 where a send waits
            until it is received, None for any number.  What ends with fewer also ends with more.
    """
    model = _Model(parts, buffers)
    done = model.play()
    stuck = {process: place for process, place in done.items() if place < len(parts[process])}
    if not stuck:
        return None
    return Deadlock(_shortest({p: model.waits(p, place, done) for p, place in stuck.items()}), stuck, buffers)


def least_buffers(parts: Parts) -> int | None:
    """Return the least number of buffers with which all processes terminate; None where no number does."""
    if find_deadlock(parts, None) is not None:
        return None
    sends: dict[tuple[int, int], int] = {}
    for process, actions in parts.items():
        for action in actions:
            if isinstance(action, Send):
                link = process, action.message.destination
                sends[link] = sends.get(link, 0) + 1
    low, high = 0, max(sends.values(), default=0)
    while low < high:
        middle = (low + high) // 2
        if find_deadlock(parts, middle) is None:
            high = middle
        else:
            low = middle + 1
    return low


class _Model:
    """Play the parts of all processes: actions wait until others have come to places of their parts, or are beyond."""

    def __init__(self, parts: Parts, buffers: int | None) -> None:
        self.parts, self.buffers = parts, buffers
        #: The place of each action, by its kind, its number and its process.
        self.place: dict[tuple[type, int, int], int] = {}
        #: The places of the receives, from process to process; and how many sends come before each one.
        self.receives: dict[tuple[int, int], list[int]] = {}
        self.sent_before: dict[tuple[int, int], int] = {}
        sent = Counter[tuple[int, int]]()
        for process, actions in parts.items():
            for place, action in enumerate(actions):
                if isinstance(action, RunProgram):
                    self.place.setdefault((RunProgram, action.at, process), place)
                elif isinstance(action, Send | Receive):
                    self.place.setdefault((type(action), action.message.tag, process), place)
                if isinstance(action, Receive):
                    self.receives.setdefault((action.message.source, process), []).append(place)
                elif isinstance(action, Send):
                    link = process, action.message.destination
                    self.sent_before[process, place] = sent[link]
                    sent[link] += 1

    def play(self) -> dict[int, int]:
        """Return how far each process comes: the number of actions that it has done."""
        done = dict.fromkeys(self.parts, 0)
        waiting: dict[int, list[int]] = {}  # for each process those that wait for it
        queue = deque(self.parts)
        while queue:
            process = queue.popleft()
            begin = done[process]
            while done[process] < len(self.parts[process]):
                waits = self.waits(process, done[process], done)
                if waits:
                    waiting.setdefault(waits[0].peer, []).append(process)
                    break
                done[process] += 1
            if done[process] > begin:
                queue.extend(waiting.pop(process, ()))
        return done

    def waits(self, process: int, place: int, done: Mapping[int, int]) -> list[Wait]:
        """Return whom a process still waits for at a place, when each of them has done so many actions."""
        action = self.parts[process][place]
        wanted: list[tuple[int, int | None]] = []
        beyond = self.buffers != 0
        if isinstance(action, RunProgram):
            wanted = [(m, self.place.get((RunProgram, action.at, m))) for m in action.members if m != process]
            beyond = False
        elif isinstance(action, Receive):
            peer = action.message.source
            wanted = [(peer, self.place.get((Send, action.message.tag, peer)))]
        elif isinstance(action, Send) and self.buffers == 0:
            peer = action.message.destination
            wanted = [(peer, self.place.get((Receive, action.message.tag, peer)))]
        elif isinstance(action, Send) and self.buffers is not None:  # for any message that frees a buffer
            peer = action.message.destination
            number = self.sent_before[process, place] - self.buffers
            if number >= 0:
                wanted = [(peer, next(iter(self.receives.get((process, peer), [])[number:]), None))]
        return [
            Wait(process, place, peer, there) for peer, there in wanted if there is None or done[peer] < there + beyond
        ]


def _shortest(waits: Mapping[int, list[Wait]]) -> tuple[Wait, ...]:
    """Return the shortest cycle; where there is none, the shortest chain to what never happens."""
    best: tuple[Wait, ...] = ()
    ends: tuple[Wait, ...] = ()
    for start in sorted(waits):
        before: dict[int, tuple[Wait, ...]] = {start: ()}
        queue = deque([start])
        while queue:
            process = queue.popleft()
            path = before[process]
            if best and len(path) + 1 >= len(best):
                break
            for wait in waits[process]:
                if wait.peer_place is None:
                    ends = min(ends or (*path, wait), (*path, wait), key=len)
                elif wait.peer == start:
                    best = (*path, wait)
                    queue.clear()
                    break
                elif wait.peer not in before:
                    before[wait.peer] = (*path, wait)
                    queue.append(wait.peer)
    return best or ends


def find_faults(plan: Plan, order: Order, parts: Parts) -> list[str]:
    """Return what is wrong with parts apart from waiting: ends that miss each other, values used before they are there.

    Where there is none, and no deadlock, each process ends with the values that one process alone would have.

    Args:
        plan: what is carried out.
        order: says who holds which value.
        parts: what each process does.
    """
    faults = [*_unmatched(plan, parts)]
    for process, actions in parts.items():
        faults += _unready(plan, order, process, actions)
    return faults


def find_faults_of_runtime(plan: Plan, order: Order) -> list[str]:
    """Return what is wrong with what the runtimes of processes make of their parts (`parts.issued`).

    They give away what they send and go on, so any number of messages may lie there.
    """
    faults = [*_unsendable(plan, order)]
    parts = issued(plan, order)
    for process, actions in parts.items():
        faults += _unready(plan, order, process, actions)
    deadlock = find_deadlock(parts, None)
    return faults if deadlock is None else [*faults, deadlock.text(plan, parts)]


def find_all_faults(plan: Plan, order: Order, parts: Parts) -> list[str]:
    """Return what is wrong with parts, and with what runtimes make of them, but for deadlocks; each fault once."""
    return list(dict.fromkeys([*find_faults(plan, order, parts), *find_faults_of_runtime(plan, order)]))


def check_order(plan: Plan, order: Order) -> None:
    """Raise `MpmdError` unless every process terminates with the right values, even without any buffers."""
    parts = order.parts()
    problems = find_all_faults(plan, order, parts)
    deadlock = find_deadlock(parts)
    if deadlock is not None:
        problems.append(deadlock.text(plan, parts))
    raise_errors(f"the plan does not work on these processes: {problem}" for problem in problems)


def _unsendable(plan: Plan, order: Order) -> Iterator[str]:
    """Values that cannot be sent."""
    if len(order.messages) > MESSAGES:
        yield f"a step has {len(order.messages)} messages between processes, and there may be {MESSAGES}"
    for message in order.messages:
        slot = plan.slots[message.slot]
        if slot.type.sharding is not None and slot.type.sharding.unreduced:
            yield f"%{slot.number} {slot} is not reduced, and cannot go to another process like that; reduce it before"


def _unmatched(plan: Plan, parts: Parts) -> Iterator[str]:
    """Messages without their other end, collectives without a member, and what somebody does twice."""
    wanted: dict[tuple[str, int, int], Action] = {}  # what happens, its number, and who does it
    done: set[tuple[str, int, int]] = set()
    for process, actions in parts.items():
        for action in actions:
            if isinstance(action, RunProgram):
                what, number, ends = "work", action.at, [("work", member) for member in action.members]
            elif isinstance(action, Send | Receive):
                what, number = "send" if isinstance(action, Send) else "receive", action.message.tag
                ends = [("send", action.message.source), ("receive", action.message.destination)]
            else:
                continue
            for end, member in ends:
                wanted.setdefault((end, number, member), action)
            key = what, number, process
            if key in done:
                yield f"process {process} does twice: {describe(plan, action)}"
            elif (what, process) not in ends:
                yield f"process {process} has no part in what it does: {describe(plan, action)}"
            done.add(key)
    for (end, number, member), action in wanted.items():
        if (end, number, member) not in done:
            yield f"process {member} leaves out its part (to {end}): {describe(plan, action)}"


def _unready(plan: Plan, order: Order, process: int, actions: Sequence[Action]) -> Iterator[str]:
    """Yield what a process uses before it has it, or after it has given it away or dropped it."""
    have = {slot for slot in plan.arguments if process in order.held[slot]}
    came: set[int] = set()
    for action in actions:
        missing: list[int] = []
        if isinstance(action, Free):
            have.difference_update(action.slots)
        elif isinstance(action, Receive):
            came.add(action.message.tag)
        elif isinstance(action, Send):
            missing = [action.message.slot]
        elif isinstance(action, RunProgram):
            missing = list(action.inputs)
        else:
            missing = [action.slot] if action.pieces else []
            if not came.issuperset(action.tags):
                yield f"process {process} uses a message before it comes: {describe(plan, action)}"
        for slot in missing:
            if slot not in have:
                yield f"process {process} has no %{slot} {plan.slots[slot]} when it comes to: {describe(plan, action)}"
        if isinstance(action, RunProgram):
            if isinstance(action.instruction, Run):
                have.difference_update(action.inputs[i] for i in action.instruction.donated)
            have.update(action.outputs)
        elif isinstance(action, LocalCopy):
            have.add(action.value)
    for slot in plan.results:
        if process in order.held[slot] and slot not in have:
            yield f"process {process} has no %{slot} {plan.slots[slot]} to return"


class _Names:
    """Words for what processes wait for."""

    def __init__(self, plan: Plan, parts: Parts, notes: Mapping[int, str]) -> None:
        self.plan, self.parts, self.notes = plan, parts, notes
        self.makers = {
            slot: at for at, i in enumerate(plan.instructions) if not isinstance(i, Free) for slot in i.outputs
        }

    def wait(self, wait: Wait) -> list[str]:
        action = self.parts[wait.process][wait.place]
        does = (
            "come to it"
            if isinstance(action, RunProgram)
            else "send it"
            if isinstance(action, Receive)
            else "receive it"
        )
        if wait.peer_place is None:
            does += ", which it never does"
        else:
            there = self.parts[wait.peer][wait.peer_place]
            if isinstance(action, Send) and isinstance(there, Receive) and there.message.tag != action.message.tag:
                does = f"make room, and {describe(self.plan, there)}"
            does += f" (its action {wait.peer_place})"
        return [
            f"  process {wait.process} waits (at its action {wait.place}) to {self.action(action)}",
            f"    for process {wait.peer} to {does}",
        ]

    def action(self, action: Action) -> str:
        """Return an action, and what made the value that it is about."""
        words = describe(self.plan, action)
        if isinstance(action, RunProgram):
            return f"{words}{self.note(action.at)}"
        assert isinstance(action, Send | Receive)
        maker = self.makers.get(action.message.slot)
        if maker is None:
            return f"{words}, an argument {self.plan.slots[action.message.slot].name}".rstrip()
        instruction = self.plan.instructions[maker]
        made = self.plan.programs[instruction.program].callee if isinstance(instruction, Run) else "a transfer"
        return f"{words}, made by {'@' * isinstance(instruction, Run)}{made}{self.note(maker)}"

    def note(self, at: int) -> str:
        return f" ({self.notes[at]})" if at in self.notes else ""
