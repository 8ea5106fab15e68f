"""Statistics of the steps of a training run: time, tokens and FLOPs per second, bubble, bytes sent, memory."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.plan import Plan
from mpmd_trace.backend.timeline import planned_runs
from mpmd_trace.diagnostics.tables import Shown, Table, in_units
from mpmd_trace.jax_compat.targets import most_in_use
from mpmd_trace.scheduling.utilization import mfu

#: The number of steps whose mean is taken.
WINDOW = 32


class StepClock:
    """The times at which the last calls began.  A call costs it one reading of the clock."""

    __slots__ = ("_starts", "steps", "tick")

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=WINDOW + 1)
        self.steps = 0

        def tick(append: Any = self._starts.append, now: Any = time.perf_counter) -> None:
            self.steps += 1
            append(now())

        self.tick = tick

    @property
    def seconds(self) -> float | None:
        """The mean time from the start of one call to that of the next; None before the second call."""
        starts = list(self._starts)
        return (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else None


@dataclasses.dataclass(frozen=True)
class StepStats(Shown):
    """Figures of the last steps; `dataclasses.asdict` gives what a logger takes.

    None stands for what is not known yet, or not on this hardware.
    """

    #: How often the program was called.
    steps: int
    #: The mean time from the start of one call to that of the next, over the last calls.  All that is between two steps
    #: counts: waiting for data, reading a loss, evaluation.
    seconds: float | None
    #: Tokens (or samples) per second of all devices together, if the number of tokens in a step was given.
    tokens_per_second: float | None
    #: The FLOPs of the model that are computed per second.
    flops_per_second: float | None
    #: The part of the peak rate of all devices that this is.
    mfu: float | None
    #: The part of a step in which meshes wait for each other, if each program takes as long as its FLOPs say and
    #: transfers take no time.  `Compiled.measure` has that of a measured step.  In a job of several processes the FLOPs
    #: are those of `Lowered.cost_analysis`, the same in all of them.
    bubble: float
    #: The bytes that go from mesh to mesh in a step.
    bytes_sent: int
    #: For each mesh, the most bytes in use on one of its devices so far, where the platform counts them; elsewhere the
    #: peak of a step as compiled.
    memory: Mapping[str, int]
    #: Whether `memory` was counted by the platform; then it includes other programs.
    memory_is_counted: bool

    @property
    def tables(self) -> list[Table]:
        def shown(value: float | None, form: str) -> str:
            return "unknown" if value is None else format(value, form)

        milliseconds = None if self.seconds is None else 1e3 * self.seconds
        rows = [
            ("steps", f"{self.steps:,}"),
            ("step time", "unknown" if milliseconds is None else f"{milliseconds:,.3f} ms"),
            ("tokens per second", shown(self.tokens_per_second, ",.0f")),
            ("FLOPs per second", shown(self.flops_per_second, ".3g")),
            ("MFU", shown(self.mfu, ".1%")),
            ("bubble, by FLOPs", f"{self.bubble:.1%}"),
            ("sent in a step", in_units(self.bytes_sent)),
        ]
        title = "most memory in use on a device" if self.memory_is_counted else "peak memory of a step on a device"
        memory = [(mesh, in_units(size)) for mesh, size in self.memory.items()]
        return [Table("the last steps", ["figure", "value"], rows), Table(title, ["mesh", "memory"], memory)]


def step_stats(
    program: LoadedProgram, clock: StepClock, flops: float | None, tokens: int | None, peak: float | None, bubble: float
) -> StepStats:
    """Return the figures of a program whose calls `clock` has seen; see `Compiled.step_stats`."""
    seconds = clock.seconds
    devices = {device for mesh in program.topology.values() for device in mesh.devices.flat}
    rate = None if seconds is None or flops is None else flops / seconds
    memory = counted_memory(program.topology)
    is_counted = all(mesh in memory for mesh in program.own_meshes)
    return StepStats(
        steps=clock.steps,
        seconds=seconds,
        tokens_per_second=None if tokens is None or seconds is None else tokens / seconds,
        flops_per_second=rate,
        mfu=None if rate is None else mfu(rate, devices, peak),
        bubble=bubble,
        bytes_sent=program.plan.transferred_bytes,
        memory=memory if is_counted else {mesh: one.peak for mesh, one in program.memory_analysis().items()},
        memory_is_counted=is_counted,
    )


def counted_memory(topology: Mapping[str, Mesh]) -> dict[str, int]:
    """Return the most memory that was in use on a device of each mesh of this process, where all of them say so."""
    used = {name: [most_in_use(device) for device in mesh.local_devices] for name, mesh in topology.items()}
    known = {name: [one for one in most if one is not None] for name, most in used.items()}
    return {name: max(known[name]) for name, most in used.items() if most and len(known[name]) == len(most)}


def plan_bubble(plan: Plan, costs: Sequence[float]) -> float:
    """Return the part of a step in which its meshes wait, on average, if program `i` takes the time `costs[i]`.

    Meshes that share devices take turns, and are one here.
    """
    runs = planned_runs(plan, costs)
    busy = sum(end - start for _, start, end in runs)
    whole = len({plan.shared.get(run.mesh, run.mesh) for run in plan.runs}) * max(
        (end for *_, end in runs), default=0.0
    )
    return 1 - busy / whole if whole else 0.0
