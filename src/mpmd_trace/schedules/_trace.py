"""A timeline as a trace for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
from typing import Any

from mpmd_trace.schedules._actions import KIND_NAMES
from mpmd_trace.schedules._result import Simulation, Timeline


def chrome_trace(*sources: Simulation | Timeline, microseconds: float = 1000.0) -> str:
    """JSON in the trace event format; one process per source, one thread per mesh.

    A unit of time becomes `microseconds`. Simulations also give an activation counter per mesh
    and an arrow for each transfer between meshes.
    """
    events: list[dict[str, Any]] = []
    for pid, source in enumerate(sources, start=1):
        timeline = source.timeline if isinstance(source, Simulation) else source
        events.append(_meta("process_name", pid, 0, timeline.name))
        for mesh, row in enumerate(timeline.rows):
            events.append(_meta("thread_name", pid, mesh, f"mesh {mesh}"))
            for e in row:
                kinds = "+".join(KIND_NAMES[p.kind] for p in e.step.parts)
                events.append({
                    "ph": "X", "pid": pid, "tid": mesh, "name": str(e.step), "cat": kinds,
                    "ts": _round(e.start * microseconds),
                    "dur": _round((e.end - e.start) * microseconds),
                    "args": {
                        "stage": [p.stage for p in e.step.parts],
                        "microbatch": [p.microbatch for p in e.step.parts],
                    },
                })
        if isinstance(source, Simulation):
            events += _counters(source, pid, microseconds)
            events += _arrows(source, pid, microseconds)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, indent=None) + "\n"


def _counters(result: Simulation, pid: int, scale: float) -> list[dict[str, Any]]:
    return [
        {"ph": "C", "pid": pid, "tid": mesh, "name": f"activations mesh {mesh}",
         "ts": _round(time * scale), "args": {"microbatches": held}}
        for mesh in range(result.schedule.meshes)
        for time, held in result.memory_curve(mesh)
    ]


def _arrows(result: Simulation, pid: int, scale: float) -> list[dict[str, Any]]:
    program = result.program
    events: list[dict[str, Any]] = []
    number = 0
    for step, needs in enumerate(program.needs):
        for need in needs:
            if program.mesh[need] == program.mesh[step]:
                continue
            number += 1
            common = {"pid": pid, "cat": "transfer", "name": "transfer", "id": pid * 10**7 + number}
            # An arrow must begin and end inside the slices it joins.
            events.append({**common, "ph": "s", "tid": program.mesh[need],
                           "ts": _round(result.ends[need] * scale)})
            events.append({**common, "ph": "f", "bp": "e", "tid": program.mesh[step],
                           "ts": _round(result.starts[step] * scale)})
    return events


def _meta(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _round(value: float) -> float:
    return round(value, 3)
