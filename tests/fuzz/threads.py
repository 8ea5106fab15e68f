"""Carries out the parts of processes with threads and bounded buffers, to see whether they end.

Each process is a thread that knows nothing of the others but what it sends, receives and meets at collectives.  Values
are numbers, made of the numbers that a program reads, so that a wrong message gives a wrong result.  The watchdog knows
a hang when every thread that is left waits, and nothing has changed since it looked.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from mpmd_trace.backend.distribution.deadlock import Parts
from mpmd_trace.backend.distribution.order import Action, LocalCopy, Order, Receive, RunProgram, Send
from mpmd_trace.backend.plan import Free, Plan, Transfer

__all__ = ["play", "values_of_one_process"]

#: What a device without a part of a value holds.
EMPTY = -1
#: A hang that the watchdog does not see is a fault of the watchdog.
SECONDS = 60.0


class _Hangs(Exception):
    """All threads that are left wait."""


class _Wrong(Exception):
    """A process has no such value, or not the same one as others."""


def values_of_one_process(plan: Plan) -> dict[int, int]:
    """The value of every slot when one process carries out the plan."""
    values = {slot: _made("argument", slot) for slot in plan.arguments}
    for at, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Transfer):
            values.update(zip(instruction.outputs, map(values.__getitem__, instruction.inputs), strict=True))
        elif not isinstance(instruction, Free):
            read = tuple(map(values.__getitem__, instruction.inputs))
            values.update({slot: _made(at, slot, *read) for slot in instruction.outputs})
    return values


def play(plan: Plan, order: Order, parts: Parts, buffers: int | None, seed: int = 0) -> str:
    """What becomes of it: "ends" with the results of one process, "hangs", or "fails"."""
    return _Play(plan, order, parts, buffers, seed).run()


def _made(*parts: object) -> int:
    return hash(parts) & 0xFFFFFFFF


class _Play:
    def __init__(self, plan: Plan, order: Order, parts: Parts, buffers: int | None, seed: int) -> None:
        self.plan, self.order, self.parts, self.buffers, self.seed = plan, order, parts, buffers, seed
        self.changed = threading.Condition()
        self.version = 0
        self.alive = len(parts)
        self.waiting: dict[int, int] = {}  # process, and the version that it looked at
        self.hangs = False
        self.errors: list[BaseException] = []
        self.mail: dict[tuple[int, int], dict[int, int]] = {}  # from process to process: tag, value
        self.taken: set[int] = set()
        self.met: dict[int, dict[int, list[int]]] = {}  # collective, member, what it brings
        self.results: dict[int, dict[int, int]] = {}

    def run(self) -> str:
        threads = [threading.Thread(target=self.process, args=(p,), daemon=True) for p in self.parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "the watchdog sleeps"
        if self.errors:
            return "fails"
        if self.hangs:
            return "hangs"
        wanted = values_of_one_process(self.plan)
        for process, values in self.results.items():
            for slot in self.plan.results:
                if process in self.order.held[slot]:
                    assert values[slot] in (wanted[slot], EMPTY), f"process {process} has a wrong %{slot}"
        return "ends"

    def process(self, process: int) -> None:
        rng = random.Random(self.seed * 1000 + process)
        values = {s: _made("argument", s) for s in self.plan.arguments if process in self.order.held[s]}
        arrived: dict[int, int] = {}
        try:
            for action in self.parts[process]:
                if rng.random() < 0.02:
                    time.sleep(0)  # another thread's turn
                self.action(process, action, values, arrived)
            self.results[process] = values
        except _Hangs:
            pass
        except (KeyError, _Wrong) as error:
            self.errors.append(error)
        finally:
            with self.changed:
                self.alive -= 1
                self.waiting.pop(process, None)
                self.look()

    def action(self, process: int, action: Action, values: dict[int, int], arrived: dict[int, int]) -> None:
        if isinstance(action, Free):
            for slot in action.slots:
                values.pop(slot, None)
        elif isinstance(action, Send):
            message = action.message
            self.send(process, message.destination, message.tag, values[message.slot])
        elif isinstance(action, Receive):
            message = action.message
            box = self.mail.setdefault((message.source, process), {})
            with self.changed:
                self.wait(process, lambda: message.tag in box)
                arrived[message.tag] = box.pop(message.tag)
                self.taken.add(message.tag)
                self.change()
        elif isinstance(action, LocalCopy):
            found = [arrived[tag] for tag in action.tags] + ([values[action.slot]] if action.pieces else [])
            values[action.value] = _same(found)
        else:
            read = [values[slot] for slot in action.inputs]
            if len(action.members) > 1:
                read = self.meet(process, action, read)
            if isinstance(action.instruction, Transfer):
                made: Sequence[int] = read
            else:
                made = [_made(action.at, slot, *read) for slot in action.outputs]
                for position in action.instruction.donated:
                    values.pop(action.inputs[position])
            values.update(zip(action.outputs, made, strict=True))

    def send(self, process: int, target: int, tag: int, value: int) -> None:
        box = self.mail.setdefault((process, target), {})
        with self.changed:
            if self.buffers:
                self.wait(process, lambda: len(box) < (self.buffers or 0))
            box[tag] = value
            self.change()
            if self.buffers == 0:
                self.wait(process, lambda: tag in self.taken)

    def meet(self, process: int, action: RunProgram, read: list[int]) -> list[int]:
        """What all members bring to a collective, put together."""
        with self.changed:
            there = self.met.setdefault(action.at, {})
            there[process] = read
            self.change()
            self.wait(process, lambda: there.keys() >= set(action.members))
        return [_same(one) for one in zip(*there.values(), strict=True)]

    # The watchdog.

    def wait(self, process: int, ready: Callable[[], bool]) -> None:
        while not ready():
            self.waiting[process] = self.version
            self.look()
            if self.hangs:
                raise _Hangs
            self.changed.wait()
        self.waiting.pop(process, None)

    def change(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def look(self) -> None:
        """Whether everybody waits and has seen how things are."""
        if self.alive and sum(seen == self.version for seen in self.waiting.values()) == self.alive:
            self.hangs = True
            self.changed.notify_all()


def _same(found: Sequence[int]) -> int:
    different = set(found) - {EMPTY}
    if len(different) > 1:
        raise _Wrong
    return different.pop() if different else EMPTY
