"""Timelines of a plan: when each instruction runs on each mesh, as planned and as measured."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import jax

from mpmd_trace.backend.plan import Plan, Run, Transfer
from mpmd_trace.backend.runtime import Runtime
from mpmd_trace.jax_compat import runtime as compat


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One run or transfer; times are seconds since the start of the step.

    `lane` is a mesh, or `source -> target` for a transfer; `program` is None for a transfer.
    """

    instruction: int
    lane: str
    label: str
    program: int | None
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The entries in the order of the plan, and the time of the whole step."""

    plan: Plan
    entries: tuple[TimelineEntry, ...]
    seconds: float

    def busy(self) -> dict[str, float]:
        """For each mesh, the part of the step in which a program of it ran."""
        times = dict.fromkeys(self.plan.meshes, 0.0)
        for entry in self.entries:
            if entry.program is not None:
                times[entry.lane] += entry.end - entry.start
        return {mesh: used / self.seconds if self.seconds else 0.0 for mesh, used in times.items()}


def planned_runs(plan: Plan, costs: Sequence[float]) -> list[tuple[int, float, float]]:
    """Return the place of each run in the plan, its start and its end, if program `i` takes the time `costs[i]`.

    Transfers take no time.  Each mesh runs its programs in the order of the plan, each as soon as its inputs are
    there; meshes that share devices take turns.
    """
    ready: dict[int, float] = {}
    free: dict[str, float] = {}
    result = []
    for place, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Transfer):
            for source, target in zip(instruction.inputs, instruction.outputs, strict=True):
                ready[target] = ready.get(source, 0.0)
        elif isinstance(instruction, Run):
            owner = plan.shared.get(instruction.mesh, instruction.mesh)
            start = max([free.get(owner, 0.0), *(ready.get(slot, 0.0) for slot in instruction.inputs)])
            end = free[owner] = start + costs[instruction.program]
            ready.update(dict.fromkeys(instruction.outputs, end))
            result.append((place, start, end))
    return result


def measure(runtime: Runtime, args: Sequence[jax.Array]) -> tuple[list[jax.Array], Timeline]:
    """Run the plan with one thread per mesh and per link, each of which waits for what it starts."""
    result = Measurement(runtime, args).run()
    for array in runtime.donated(args):
        array.delete()
    return result


class Measurement:
    """One step, with a thread for each lane that waits for each of its programs or transfers."""

    def __init__(self, runtime: Runtime, args: Sequence[jax.Array]) -> None:
        self.runtime = runtime
        self.plan = runtime.plan
        self.values: list[Future[Any]] = [Future() for _ in self.plan.slots]
        for future, value in zip(self.values, args, strict=False):
            future.set_result(value)
        self.finished = [threading.Event() for _ in runtime.instructions]
        self.entries: list[TimelineEntry | None] = [None] * len(runtime.instructions)
        self.before = self._order()
        self.errors: list[BaseException] = []
        self.origin = 0.0
        # Programs over several devices must be launched in the same order on each of them, or collectives of
        # two programs wait for each other.
        self.launch = threading.Lock()

    def _order(self) -> list[list[int]]:
        """For each instruction the earlier users of what it donates: they must be done first."""
        users: dict[int, list[int]] = {}
        before: list[list[int]] = []
        for at, instruction in enumerate(self.runtime.instructions):
            waits: list[int] = []
            if isinstance(instruction, Run):
                for position in instruction.donated:
                    waits += users.get(instruction.inputs[position], [])
            before.append(waits)
            for slot in instruction.inputs:
                users.setdefault(slot, []).append(at)
        return before

    def shares_devices(self, at: int) -> bool:
        """Return whether an instruction is launched on several devices."""
        return bool(self.runtime.placement.meshes[self.runtime.instructions[at].meshes[0]].devices.size > 1)

    def finish(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Return what an instruction gives, once it is there."""
        jax.block_until_ready(outputs)
        return outputs

    def join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the lanes."""
        for thread in threads:
            thread.join()

    def run(self) -> tuple[list[jax.Array], Timeline]:
        """Return the results, and when everything ran."""
        lanes: dict[str, list[int]] = {}
        for at, instruction in enumerate(self.runtime.instructions):
            lanes.setdefault(lane_of(instruction), []).append(at)
        threads = [
            threading.Thread(target=self._lane, args=(name, work), name=f"mpmd-{name}", daemon=True)
            for name, work in lanes.items()
        ]
        self.origin = time.perf_counter()
        for thread in threads:
            thread.start()
        self.join(threads)
        seconds = time.perf_counter() - self.origin
        if self.errors:
            raise self.errors[0]
        results = [self.values[slot].result() for slot in self.plan.results]
        entries = tuple(e for e in self.entries if e is not None)
        return results, Timeline(self.plan, entries, seconds)

    def _lane(self, name: str, work: Sequence[int]) -> None:
        at = -1
        try:
            with compat.issuing():
                for at in work:
                    self._one(name, at)
        except BaseException as error:
            if not isinstance(error, _Stopped):
                error.add_note(f"while measuring instruction {at}: {self.runtime.describe(at)}")
                self.errors.append(error)
            for later in self.runtime.instructions:  # no thread may wait forever
                for slot in later.outputs:
                    with contextlib.suppress(InvalidStateError):  # there already, or of another lane that stopped
                        self.values[slot].set_exception(_Stopped())
            for event in self.finished:
                event.set()

    def _one(self, lane: str, at: int) -> None:
        instruction = self.runtime.instructions[at]
        inputs = [self.values[slot].result() for slot in instruction.inputs]
        for earlier in self.before[at]:
            self.finished[earlier].wait()
        call = self.runtime.calls[at]
        start = time.perf_counter()
        if self.shares_devices(at):
            with self.launch:
                outputs = call(inputs)
        else:
            outputs = call(inputs)
        outputs = self.finish(outputs)
        end = time.perf_counter()
        for slot, value in zip(instruction.outputs, outputs, strict=True):
            self.values[slot].set_result(value)
        self.finished[at].set()
        program = instruction.program if isinstance(instruction, Run) else None
        self.entries[at] = TimelineEntry(at, lane, instruction.label, program, start - self.origin, end - self.origin)


class _Stopped(Exception):
    """Another lane failed."""


def lane_of(instruction: Run | Transfer) -> str:
    """Return the mesh of a run, or `source -> target`."""
    if isinstance(instruction, Run):
        return instruction.mesh
    return f"{instruction.source} -> {instruction.target}"
