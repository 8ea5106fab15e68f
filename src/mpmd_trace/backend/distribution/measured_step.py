"""A measured step of several processes: when each instruction ran on each mesh, on the clock of process 0."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax

from mpmd_trace.backend.distribution.clock import Span, merged, offset_of
from mpmd_trace.backend.distribution.order import RunProgram
from mpmd_trace.backend.distribution.runtime import ProcessRuntime
from mpmd_trace.backend.distribution.transport import here
from mpmd_trace.backend.plan import Free, Plan, Run
from mpmd_trace.backend.timeline import Measurement, Timeline, TimelineEntry, lane_of

#: Seconds between two looks at whether another process is at fault.
_GLANCE = 0.05


def measure_together(
    runtime: ProcessRuntime, plan: Plan, args: Sequence[jax.Array]
) -> tuple[list[jax.Array], Timeline]:
    """Run the part of this process, and put together when everything ran in all of them.

    All processes call this for the same step.  A transfer between processes lasts from when both have come to it
    until it has arrived; what a mesh over several processes runs, from when all have begun.

    Args:
        runtime: of this process.
        plan: of all processes.
        args: what the plan expects.
    """
    peers = runtime.job.peers
    offset = offset_of(peers.clock)
    measurement = _Part(runtime, args)
    with peers.telling(f"in step {runtime.step}, which is measured, of {plan.name}"):
        peers.allgather_bytes("start of a measurement", b"")
        with runtime.job.in_flight.not_counted():
            results, _ = measurement.run()
        peers.wait()
    runtime.step += 1
    for array in runtime.donated(args):
        array.delete()
    spans, seconds = merged(peers.allgather("timeline", measurement.spans(offset.seconds)))
    entries = tuple(in_order(plan, spans))
    return runtime.with_all_results(results), Timeline(plan, entries, max([seconds, *(e.end for e in entries)]))


def in_order(plan: Plan, spans: Sequence[Span]) -> list[TimelineEntry]:
    """Return the entries of a timeline: on a lane one after the other, and nothing before what it reads has ended.

    Measured times need not be like that.  A clock is known to half the time of a message, and what a mesh over several
    processes computes ends when the last of them has noticed, while another one goes on with its own part.  So what
    comes too early is late by that much (the clock condition of L. Lamport, Time, Clocks, and the Ordering of Events
    in a Distributed System, CACM 21, 1978; for traces R. Rabenseifner, The Controlled Logical Clock, Euro-PDP 1997).

    Args:
        plan: of all processes.
        spans: when its instructions ran, in its order.
    """
    numbers = (at for at, instruction in enumerate(plan.instructions) if not isinstance(instruction, Free))
    number = {at: n for n, at in enumerate(numbers)}
    ended: dict[int | str, float] = {}
    result = []
    for at, start, end in spans:
        instruction = plan.instructions[at]
        assert not isinstance(instruction, Free)
        program = instruction.program if isinstance(instruction, Run) else None
        lane = lane_of(instruction)
        waits_for: list[int | str] = [lane, *instruction.inputs]
        start = max([start, *(ended.get(before, 0.0) for before in waits_for)])
        end = max(start, end)
        ended.update(dict.fromkeys((lane, *instruction.outputs), end))
        result.append(TimelineEntry(number[at], lane, instruction.label, program, start, end))
    return result


class _Part(Measurement):
    """The part of one process, with a thread for each lane of it.

    A collective waits until every earlier run of the process is done, and is launched beside whatever comes later: of
    all that has not happened, the first in the order of the plan can happen then, as in a step that is not measured.
    """

    def __init__(self, runtime: ProcessRuntime, args: Sequence[jax.Array]) -> None:
        self.process_runtime = runtime
        super().__init__(runtime, args)
        made = {slot for instruction in runtime.instructions for slot in instruction.outputs}
        for slot, future in enumerate(self.values):
            if slot not in made and not future.done():
                future.set_result(None)  # it is on meshes of others
        runs: list[int] = []
        for at in range(len(runtime.instructions)):
            if self._is_collective(at):
                self.before[at] = self.before[at] + runs
            if isinstance(self._first(at), RunProgram):
                runs.append(at)

    def _first(self, at: int) -> Any:
        return self.process_runtime.part.actions[self.process_runtime.numbers[at]][0]

    def _is_collective(self, at: int) -> bool:
        first = self._first(at)
        return isinstance(first, RunProgram) and len(first.members) > 1

    def shares_devices(self, at: int) -> bool:
        # What goes between processes is no collective, and may wait until it comes.
        return isinstance(self._first(at), RunProgram) and not self._is_collective(at) and super().shares_devices(at)

    def finish(self, outputs: Sequence[Any]) -> Sequence[Any]:
        result = [here(array) for array in outputs]
        super().finish([array for array in result if array is not None])
        return result

    def join(self, threads: Sequence[threading.Thread]) -> None:
        # At a fault some of them wait for what never comes; they end with the process.
        for thread in threads:
            while thread.is_alive():
                self.process_runtime.job.peers.check()
                thread.join(_GLANCE)

    def spans(self, offset: float) -> list[Span]:
        """Return the place in the plan of each instruction, and its times by another clock."""
        begin = self.origin + offset
        return [
            (self.process_runtime.numbers[at], begin + entry.start, begin + entry.end)
            for at, entry in enumerate(self.entries)
            if entry is not None
        ]
