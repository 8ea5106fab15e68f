"""The steps of a runtime: which instructions share a call, and where the values are kept meanwhile.

Pure data: `runtime.py` and `distribution/runtime.py` carry it out, and `distribution/deadlock.py` plays it through.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpmd_trace.backend.plan import Free, Instruction, Plan, Run, Transfer

#: Runs a program, or moves values: returns arrays for arrays.
Call = Callable[[Sequence[Any]], Sequence[Any]]
#: Call, choice of its inputs, first and last+1 place of its results, places to empty afterwards.
Issued = tuple[Call, Callable[[list[Any]], Sequence[Any]], int, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Instructions that are issued with one call.

    Attributes:
        numbers: their places among the instructions that take time (without counting `Free`).
        instructions: one, or transfers that are plain copies of values that exist before.
        frees: the slots to drop afterwards.
    """

    numbers: tuple[int, ...]
    instructions: tuple[Run | Transfer, ...]
    frees: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(i.inputs for i in self.instructions))

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(i.outputs for i in self.instructions))


def make_steps(
    instructions: Iterable[Instruction], is_copy: Callable[[Transfer], bool]
) -> tuple[tuple[int, ...], list[Step]]:
    """Return the slots to drop before the first step, and the steps.

    Args:
        instructions: what one process issues, in order.
        is_copy: whether a transfer is plain copies, which others may share a call with.
    """
    leading: list[int] = []
    frees = leading
    groups: list[tuple[list[int], list[Run | Transfer], list[int]]] = []
    made: set[int] | None = None  # by the copies of the last group, if it may grow
    number = -1
    for instruction in instructions:
        if isinstance(instruction, Free):
            frees += instruction.slots
            continue
        number += 1
        copies = isinstance(instruction, Transfer) and is_copy(instruction)
        if copies and made is not None and made.isdisjoint(instruction.inputs):
            groups[-1][0].append(number)
            groups[-1][1].append(instruction)
            made.update(instruction.outputs)
        else:
            frees = []
            groups.append(([number], [instruction], frees))
            made = set(instruction.outputs) if copies else None
    return tuple(leading), [Step(*map(tuple, group)) for group in groups]  # type: ignore[arg-type]


class Places:
    """The places of the values of a process during a step: arguments first, then what each step gives, in order.

    A process of several has no value for slots of other processes alone; these share the last place, which is empty.

    Args:
        plan: all slots.
        steps: of this process.
    """

    def __init__(self, plan: Plan, steps: Sequence[Step]) -> None:
        made = itertools.chain.from_iterable(step.outputs for step in steps)
        self._of = {slot: place for place, slot in enumerate((*plan.arguments, *made))}
        #: How many places there are beside those of the arguments.
        self.room = len(self._of) + 1 - len(plan.arguments)

    def of(self, slots: Iterable[int]) -> tuple[int, ...]:
        """Return the places of slots."""
        nowhere = len(self._of)
        return tuple(self._of.get(slot, nowhere) for slot in slots)
