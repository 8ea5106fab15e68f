"""Measured steps as a trace for ui.perfetto.dev: programs and transfers, memory, and where they were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mpmd_trace.backend.load import LoadedProgram
from mpmd_trace.backend.plan import Run, Transfer
from mpmd_trace.backend.timeline import Timeline
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.report.sources import written_in
from mpmd_trace.report.timeline import FragmentActions, kind_and_microbatch, steps_by_place, timed
from mpmd_trace.schedules import KIND_NAMES, Kind, Slice, Trace

_SECOND = 1e6
#: Between steps, as a part of the step.
_GAP = 0.05


def step_trace(
    name: str, program: LoadedProgram, module: Module, actions: FragmentActions, measured: Sequence[Timeline]
) -> str:
    """JSON in the trace event format: a row for each mesh and each link, the steps one after the other.

    A slice of a mesh tells kind, microbatch and program, and the places in the user's files; arrows go from who makes a
    value to its transfer and on to who uses it; a counter for each mesh has the bytes that a device holds.

    `module` is the exported one that the program was made of, and `actions` what each run of its plan is.
    """
    plan, trace = program.plan, Trace()
    trace.name(1, name)
    lanes = [*plan.meshes, *sorted({entry.lane for one in measured for entry in one.entries} - plan.meshes.keys())]
    for row, lane in enumerate(lanes):
        trace.name_row(1, row, f"mesh {lane}" if lane in plan.meshes else lane)
    known = steps_by_place(plan, actions)
    functions = {f.sym_name: f for f in module.functions}
    sources = [_sources(functions.get(spec.callee)) for spec in plan.programs]
    held: dict[int, dict[str, int]] = {}
    for at, mesh, used in program.memory_use():
        held.setdefault(at, {})[mesh] = used
    origin = 0.0
    for number, one in enumerate(measured):
        slices: dict[int, Slice] = {}
        for at, entry in sorted(timed(plan, one), key=lambda one: (one[1].start, one[0])):
            start, end = (_SECOND * (origin + t) for t in (entry.start, entry.end))
            row, instruction = lanes.index(entry.lane), plan.instructions[at]
            assert isinstance(instruction, Run | Transfer)
            if isinstance(instruction, Run):
                kind, microbatch = kind_and_microbatch(known[at][1])
                word = "+".join(KIND_NAMES[cast(Kind, letter)] for letter in kind)
                told: dict[str, Any] = {"program": plan.programs[instruction.program].callee}
                if kind != "O":
                    told["microbatch"] = microbatch
                if sources[instruction.program]:
                    told["written in"] = sources[instruction.program]
            else:
                word, outputs = "transfer", [plan.slots[s] for s in instruction.outputs]
                told = {"bytes on each device": sum(slot.bytes for slot in outputs), "arrays": len(outputs)}
                told["values"] = ", ".join(map(str, outputs[:4]))
            slices[at] = trace.slice(1, row, instruction.label or word, word, start, end, step=number, **told)
            for mesh, used in held.get(at, {}).items():
                trace.counter(1, f"memory of {mesh}", start, **{"bytes on a device": used})
        _arrows(trace, program, slices)
        origin += (1 + _GAP) * one.seconds
    return trace.text()


def _arrows(trace: Trace, program: LoadedProgram, slices: dict[int, Slice]) -> None:
    """Draw an arrow to each transfer from the maker of what it moves, and from it to everyone who uses that."""
    made: dict[int, int] = {}
    for at, instruction in enumerate(program.plan.instructions):
        if not isinstance(instruction, Run | Transfer):
            continue
        for source in dict.fromkeys(made[slot] for slot in instruction.inputs if slot in made):
            moves = any(isinstance(program.plan.instructions[one], Transfer) for one in (source, at))
            if moves and source in slices and at in slices:
                trace.arrow(slices[source], slices[at])
        made.update(dict.fromkeys(instruction.outputs, at))


def _sources(function: FuncOp | None) -> list[str]:
    return [] if function is None else written_in(function.regions[0].walk())
