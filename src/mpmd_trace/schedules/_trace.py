"""A timeline as a trace for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from mpmd_trace.schedules._actions import KIND_NAMES
from mpmd_trace.schedules._result import Simulation, Timeline


class Slice(NamedTuple):
    """A part of a trace's row, in microseconds."""

    process: int
    row: int
    start: float
    end: float

    @property
    def within(self) -> float:
        """A time just before the end: at the end itself viewers take the next slice of the row."""
        return self.start + math.floor(0.99 * 1000 * (self.end - self.start)) / 1000


class Trace:
    """Events in the trace event format; times are microseconds, kept to the nanosecond."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._arrows = 0

    def name(self, process: int, name: str) -> None:
        """Name a process."""
        self._meta("process_name", process, 0, name=name)

    def name_row(self, process: int, row: int, name: str) -> None:
        """Name a row of a process; rows are shown by number."""
        self._meta("thread_name", process, row, name=name)
        self._meta("thread_sort_index", process, row, sort_index=row)

    def _meta(self, what: str, process: int, row: int, **args: Any) -> None:
        self._events.append({"ph": "M", "pid": process, "tid": row, "name": what, "args": args})

    def slice(self, process: int, row: int, name: str, kind: str, start: float, end: float, **args: Any) -> Slice:
        """Something that takes time; slices of a row do not overlap."""
        start, end = _round(start), _round(end)
        self._events.append(
            {
                "ph": "X",
                "pid": process,
                "tid": row,
                "name": name,
                "cat": kind,
                "ts": start,
                "dur": _round(end - start),
                "args": args,
            }
        )
        return Slice(process, row, start, end)

    def arrow(self, source: Slice, target: Slice, name: str = "transfer") -> None:
        """Draw an arrow from the end of a slice to the start of another one."""
        self._arrows += 1
        common = {"cat": "transfer", "name": name, "id": self._arrows}
        self._events.append({**common, "ph": "s", "pid": source.process, "tid": source.row, "ts": source.within})
        self._events.append(
            {**common, "ph": "f", "bp": "e", "pid": target.process, "tid": target.row, "ts": target.start}
        )

    def counter(self, process: int, name: str, time: float, **values: float) -> None:
        """Record what a counter shows from then on."""
        self._events.append({"ph": "C", "pid": process, "tid": 0, "name": name, "ts": _round(time), "args": values})

    def text(self) -> str:
        """Return the trace as JSON."""
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": self._events}, indent=None) + "\n"


def chrome_trace(*sources: Simulation | Timeline, microseconds: float = 1000.0) -> str:
    """Return JSON in the trace event format; one process per source, one thread per mesh.

    A unit of time becomes `microseconds`. Simulations also give an activation counter per mesh
    and an arrow for each transfer between meshes.
    """
    trace = Trace()
    for pid, source in enumerate(sources, start=1):
        timeline = source.timeline if isinstance(source, Simulation) else source
        trace.name(pid, timeline.name)
        slices: list[Slice] = []
        for mesh, row in enumerate(timeline.rows):
            trace.name_row(pid, mesh, f"mesh {mesh}")
            for e in row:
                one = trace.slice(
                    pid,
                    mesh,
                    str(e.step),
                    "+".join(KIND_NAMES[p.kind] for p in e.step.parts),
                    e.start * microseconds,
                    e.end * microseconds,
                    stage=[p.stage for p in e.step.parts],
                    microbatch=[p.microbatch for p in e.step.parts],
                )
                slices.append(one)
        if isinstance(source, Simulation):
            for mesh in range(source.schedule.meshes):
                for time, held in source.memory_curve(mesh):
                    trace.counter(pid, f"activations mesh {mesh}", time * microseconds, microbatches=held)
            for step, needs in zip(slices, source.program.needs, strict=True):
                for need in needs:
                    if slices[need].row != step.row:
                        trace.arrow(slices[need], step)
    return trace.text()


def _round(value: float) -> float:
    return round(value, 3)
