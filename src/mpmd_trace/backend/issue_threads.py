"""Issues a plan from one thread for the devices of each mesh, where launching a program takes long.

Python's interpreter lock is free while XLA launches a program, so that several threads launch at the same time.  Each
thread issues what runs on its devices and the transfers that leave them, in the order of the plan: devices get their
programs in that order, as from one thread.  Only a value that comes from other devices makes a thread wait, until the
transfer is issued.  That is earlier in the plan, so the earliest instruction that is not yet issued never waits, and
no threads wait for each other in a circle.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from mpmd_trace.backend.plan import Free, Instruction, Plan, Run, Transfer
from mpmd_trace.backend.steps import Issued, Places, Step, make_steps
from mpmd_trace.jax_compat import runtime as compat

#: Seconds that an instruction takes to issue, on average, from which on threads are worth it: what passes a value from
#: one thread to another takes some ten microseconds.
SLOW = 500e-6


@dataclasses.dataclass(frozen=True)
class Lane:
    """The instructions that one thread issues.

    leading: the slots to drop before the first step.  awaited: for each step the steps of other lanes, as (lane, step),
    that give it values and that no earlier step of this lane has waited for.
    """

    leading: tuple[int, ...]
    steps: tuple[Step, ...]
    awaited: tuple[tuple[tuple[int, int], ...], ...]


def lanes_of(plan: Plan, is_copy: Callable[[Transfer], bool]) -> list[Lane]:
    """Return what the thread of each group of devices issues, in the order of the plan."""
    owner = {mesh: plan.shared.get(mesh, mesh) for mesh in plan.meshes}
    listed: dict[str, list[Instruction]] = {mesh: [] for mesh in plan.meshes if owner[mesh] == mesh}
    numbers: dict[str, list[int]] = {mesh: [] for mesh in listed}
    number = 0
    for instruction in plan.instructions:
        if isinstance(instruction, Free):
            for mesh, own in listed.items():
                slots = tuple(s for s in instruction.slots if owner[plan.slots[s].mesh] == mesh)
                if slots:
                    own.append(Free(slots))
            continue
        mesh = owner[instruction.mesh if isinstance(instruction, Run) else instruction.source]
        listed[mesh].append(instruction)
        numbers[mesh].append(number)
        number += 1
    arriving = {
        slot
        for transfer in plan.transfers
        if owner[transfer.source] != owner[transfer.target]
        for slot in transfer.outputs
    }

    def may_share(transfer: Transfer) -> bool:
        # Together with others, a transfer that waits would hold up those that somebody else waits for.
        return is_copy(transfer) and arriving.isdisjoint(transfer.inputs)

    made = [make_steps(listed[mesh], may_share) for mesh in listed]
    source = {
        slot: (lane, at)
        for lane, (_, steps) in enumerate(made)
        for at, step in enumerate(steps)
        for slot in step.outputs
    }
    lanes = []
    for lane, (mesh, (leading, steps)) in enumerate(zip(listed, made, strict=True)):
        reached = [-1] * len(made)
        awaited = []
        for step in steps:
            wanted: dict[int, int] = {}
            # What arrives from elsewhere is waited for before it is dropped, too.
            for other, at in (source[s] for s in (*step.inputs, *step.frees) if s in source):
                if other != lane and at > reached[other]:
                    wanted[other] = reached[other] = max(at, wanted.get(other, -1))
            awaited.append(tuple(sorted(wanted.items())))
        whole = tuple(dataclasses.replace(s, numbers=tuple(numbers[mesh][n] for n in s.numbers)) for s in steps)
        lanes.append(Lane(leading, whole, tuple(awaited)))
    return lanes


class ThreadedPlan:
    """A plan bound to the calls of its instructions, to be issued by threads.

    Args:
        plan: what to do.
        lanes: what each thread issues.
        issued: a step as it is called, for the places of values.
        chosen: a choice of places.
    """

    def __init__(
        self,
        plan: Plan,
        lanes: Sequence[Lane],
        issued: Callable[[Step, Places], Issued],
        chosen: Callable[[Sequence[int]], Callable[[list[Any]], Sequence[Any]]],
    ) -> None:
        places = Places(plan, [step for lane in lanes for step in lane.steps])
        self._lanes = lanes
        self._issued = [[issued(step, places) for step in lane.steps] for lane in lanes]
        self._leading = places.of(itertools.chain.from_iterable(lane.leading for lane in lanes))
        self._results = chosen(places.of(plan.results))
        self._room = [None] * places.room
        #: The steps that another lane waits for.
        self._told = sorted({one for lane in lanes for wanted in lane.awaited for one in wanted})
        self._pool = ThreadPoolExecutor(max(1, len(lanes) - 1), thread_name_prefix="mpmd-issue")

    def issue(self, args: list[jax.Array]) -> list[jax.Array]:
        """Return the results; the list of arguments is emptied.

        Raises what an instruction raises, with its number in the plan as the attribute `mpmd_instruction`: that of the
        earliest one, if several do.
        """
        slots: list[Any] = [*args, *self._room]
        args.clear()
        for slot in self._leading:
            slots[slot] = None
        told = {one: threading.Event() for one in self._told}
        failed: list[tuple[int, BaseException]] = []

        def stop(number: int, error: BaseException) -> None:
            failed.append((number, error))
            for event in told.values():
                event.set()

        def run(lane: int) -> None:
            steps = self._lanes[lane].steps
            at = 0
            try:
                with compat.issuing():
                    for at, ((call, pick, first, last, frees), awaited) in enumerate(
                        zip(self._issued[lane], self._lanes[lane].awaited, strict=True)
                    ):
                        for one in awaited:
                            told[one].wait()
                        if failed:
                            return
                        slots[first:last] = call(pick(slots))
                        if (lane, at) in told:
                            told[lane, at].set()
                        for slot in frees:
                            slots[slot] = None
            except BaseException as error:
                stop(steps[at].numbers[0], error)

        others = [self._pool.submit(run, lane) for lane in range(1, len(self._lanes))]
        try:
            run(0)
            for other in others:
                other.result()
        except BaseException as interrupt:
            stop(-1, interrupt)
            for other in others:
                other.result()
        if failed:
            number, first = min(failed, key=lambda one: one[0])
            first.mpmd_instruction = number  # type: ignore[attr-defined]
            raise first
        return list(self._results(slots))
