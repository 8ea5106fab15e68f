"""The part of a plan that one process issues, as data: `runtime.py` binds it, `deadlock.py` plays it through."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mpmd_trace.backend.distribution.order import Action, LocalCopy, Order, Receive, RunProgram, Send
from mpmd_trace.backend.plan import Free, Instruction, Plan, Run, Transfer
from mpmd_trace.backend.steps import make_steps

#: What a process does for a value that goes between processes.
Exchanged = Send | Receive | LocalCopy


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of one process.

    Attributes:
        instructions: those of the plan that the process has a part in, in order; a `Free` names only what it holds.
        actions: what it does for each of them that is no `Free`, by its number in the plan; in the same order.
        arriving: the values that may be pending, as they come from other processes.
        copies: the transfers that may be plain copies: among its own devices, of values that are there.
    """

    instructions: tuple[Instruction, ...]
    actions: Mapping[int, tuple[Action, ...]]
    arriving: frozenset[int]
    copies: frozenset[Transfer]


def part_of(plan: Plan, order: Order, process: int, *, ahead: bool = False) -> Part:
    """Return the part of a process in a plan.

    With `ahead`, receives are posted before what the order has between them and the program that makes their value,
    on another process: while this one waits for the inputs of a program, those of the next are on their way.  That is
    for transports whose receives match by tag and wait for no other process.
    """
    part = _part(plan, order.of(process))
    return _posted_ahead(plan, part) if ahead else part


def _posted_ahead(plan: Plan, part: Part) -> Part:
    made = {slot: at for at, one in enumerate(plan.instructions) if isinstance(one, Run) for slot in one.outputs}
    numbers = iter(part.actions)
    at = -1
    #: Each with the place in the plan behind which it is issued, and its number if it is no `Free`.
    placed: list[tuple[int, Instruction, int | None]] = []
    for instruction in part.instructions:
        if isinstance(instruction, Free):
            placed.append((at, instruction, None))
            continue
        at = next(numbers)
        receives = all(isinstance(action, Receive | LocalCopy) for action in part.actions[at])
        known = [made.get(slot, at) for slot in instruction.inputs] if receives else []
        placed.append((max(known, default=at), instruction, at))
    placed.sort(key=lambda one: one[0])
    actions = {number: part.actions[number] for _, _, number in placed if number is not None}
    return dataclasses.replace(part, instructions=tuple(one for _, one, _ in placed), actions=actions)


def _part(plan: Plan, those: Sequence[Action]) -> Part:
    actions: dict[int, list[Action]] = {}
    instructions: list[Instruction] = []
    arriving: set[int] = set()
    for action in those:
        if isinstance(action, Free):
            instructions.append(action)
            continue
        if action.at not in actions:
            instructions.append(plan.instructions[action.at])
        actions.setdefault(action.at, []).append(action)
        if isinstance(action, LocalCopy) and action.tags:
            arriving.add(action.value)
    in_turn = {at: tuple(sorted(own, key=_turn)) for at, own in actions.items()}
    own = (action.instruction for action in those if isinstance(action, RunProgram))
    copies = (one for one in own if isinstance(one, Transfer) and arriving.isdisjoint(one.inputs))
    return Part(tuple(instructions), in_turn, frozenset(arriving), frozenset(copies))


def issued(plan: Plan, order: Order) -> dict[int, tuple[Action, ...]]:
    """Return what the runtime of each process does, in order.

    Copies that share a call are one after the other, as many as may, and what is dropped between them is dropped
    after them.
    """
    result: dict[int, tuple[Action, ...]] = {}
    for process, those in order.parts().items():
        part = _part(plan, those)
        leading, steps = make_steps(part.instructions, part.copies.__contains__)
        actions: list[Action] = [Free(leading)] if leading else []
        groups = iter(part.actions.values())
        for step in steps:
            for _ in step.numbers:
                actions += next(groups)
            if step.frees:
                actions.append(Free(step.frees))
        result[process] = tuple(actions)
    return result


def value_of(action: Exchanged) -> int:
    """Return the value that an action is for, on the mesh where it arrives."""
    return action.value if isinstance(action, LocalCopy) else action.message.value


def _turn(action: Action) -> tuple[int, int]:
    """Return when the transport takes a value: first those that are sent, then those that are received."""
    if not isinstance(action, Send | Receive | LocalCopy):
        return 0, 0
    return value_of(action), (Send, Receive, LocalCopy).index(type(action))
