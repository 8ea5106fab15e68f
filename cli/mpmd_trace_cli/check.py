"""`mpmd-trace check`: prove that a program cannot deadlock in several processes."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from mpmd_trace.api.program import Program
from mpmd_trace.backend.distribution.deadlock import Deadlock, Parts, find_all_faults, find_deadlock, least_buffers
from mpmd_trace.backend.distribution.order import Action, Receive, RunProgram, Send, describe, distribute
from mpmd_trace.backend.dtypes import dtype_of
from mpmd_trace.backend.plan import Free, Plan, Run
from mpmd_trace.backend.planner import make_plan
from mpmd_trace.diagnostics.messages import MpmdError, shortened
from mpmd_trace.diagnostics.tables import Table, as_text
from mpmd_trace.report.timeline import FragmentActions, steps_by_place
from mpmd_trace.schedules import KIND_NAMES
from mpmd_trace.schedules._errors import counted
from mpmd_trace_cli.console import data
from mpmd_trace_cli.program import load_program
from mpmd_trace_cli.status import CallError


def check_program(
    file: str,
    settings: Sequence[str] = (),
    *,
    processes: int | None = None,
    process: int | None = None,
    as_json: bool = False,
) -> None:
    """Print the actions of each process of a program, and a proof that all of them terminate; see `mpmd-trace check`.

    Raises:
        MpmdError: if processes deadlock or use values that they do not have, with the processes and the places.
    """
    program = load_program(file, settings)
    owners = owners_of(program.config.topology, processes)
    count = processes or 1 + max(p for those in owners.values() for p in those)
    if process is not None and not 0 <= process < count:
        raise CallError(f"--process is {process}; the processes are 0 to {count - 1}")
    plan, notes = _planned(program)
    order = distribute(plan, owners)
    parts: Parts = {**dict.fromkeys(range(count), ()), **order.parts()}
    faults = find_all_faults(plan, order, parts)
    deadlock = find_deadlock(parts)
    if as_json:
        data(_as_data(plan, owners, parts, faults, deadlock, notes))
    elif process is not None:
        data("".join(f"{_line(plan, action, notes)}\n" for action in parts[process]))
    else:
        data(_as_text(plan, owners, parts))
        if deadlock is None and not faults:
            ends = "1 process terminates" if count == 1 else f"all {count} processes terminate"
            data(f"proved: {ends}, whatever the timing, even if every message waits until it is received")
    if deadlock is not None:
        least = least_buffers(parts)
        room = "no number of buffers is enough" if least is None else f"with {least} buffers each it would terminate"
        faults.append(f"{deadlock.text(plan, parts, notes)}\n  ({room})")
    if faults:
        raise MpmdError("the program does not work on these processes: " + "\n".join(shortened(faults)))


def owners_of(topology: Mapping[str, Mesh | AbstractMesh], processes: int | None = None) -> dict[str, tuple[int, ...]]:
    """For each mesh the process of each of its devices.

    Processes have equal numbers of devices, in the order of their ids, as under `mpmd-trace launch`; the last ones
    may have fewer or none.  Without a number each mesh has a process of its own, where it shares no device.
    """
    if processes is not None and processes < 1:
        raise CallError(f"--processes is {processes}; it must be 1 or more")
    devices: dict[str, list[int]] = {}
    for name, mesh in topology.items():
        first = sum(map(len, devices.values()))  # without devices, each mesh has some of its own
        known = isinstance(mesh, Mesh)
        devices[name] = [d.id for d in mesh.devices.flat] if known else list(range(first, first + mesh.size))
    owner: dict[int, int] = {}
    if processes is None:
        for number, ids in enumerate(devices.values()):
            for device in ids:
                owner.setdefault(device, number)
    else:
        everything = sorted({device for ids in devices.values() for device in ids})
        if processes > len(everything):
            raise CallError(
                f"--processes is {processes}, but the meshes have {counted(len(everything), 'device')}; it is at most "
                f"{len(everything)}"
            )
        each = -(-len(everything) // processes)
        owner = {device: at // each for at, device in enumerate(everything)}
    return {name: tuple(owner[device] for device in ids) for name, ids in devices.items()}


def _planned(program: Program) -> tuple[Plan, dict[int, str]]:
    """Return the plan, and which stage and microbatch its runs are, by their place."""
    actions = FragmentActions()
    lowered = program.jitted().lower_lazily(*program.args, hooks=[actions])
    plan = make_plan(lowered.partitioned.module)
    notes = {}
    for at, (_, step) in steps_by_place(plan, actions).items():
        words = [
            f"{KIND_NAMES[part.kind]} of stage {part.stage}, microbatch {part.microbatch}"
            for part in step.parts
            if part.microbatch >= 0
        ]
        if words:
            notes[at] = " and ".join(words)
    return plan, notes


def _line(plan: Plan, action: Action, notes: Mapping[int, str]) -> str:
    note = notes.get(action.at) if isinstance(action, RunProgram) else None
    return describe(plan, action) + (f" ({note})" if note else "")


def _counts(parts: Parts) -> dict[int, collections.Counter[str]]:
    """Return how often each process does what."""
    result = {}
    for process, actions in parts.items():
        counts = result[process] = collections.Counter[str]()
        for action in actions:
            if isinstance(action, RunProgram):
                counts["runs" if isinstance(action.instruction, Run) else "copies"] += 1
                counts["collectives"] += len(action.members) > 1
            elif isinstance(action, Send | Receive):
                counts["sends" if isinstance(action, Send) else "receives"] += 1
            counts["actions"] += not isinstance(action, Free)
    return result


_COLUMNS = ("actions", "runs", "collectives", "sends", "receives")


def _links(plan: Plan, parts: Parts) -> dict[tuple[int, int], tuple[int, int]]:
    """From process to process: how many messages go in a step, and how many bytes."""
    links: dict[tuple[int, int], tuple[int, int]] = {}
    for process, actions in parts.items():
        for action in actions:
            if isinstance(action, Send):
                message = action.message
                item = dtype_of(plan.slots[message.slot].type.tensor).itemsize
                count, size = links.get((process, message.destination), (0, 0))
                size += item * sum(math.prod(stop - start for start, stop in piece.box) for piece in message.pieces)
                links[process, message.destination] = count + 1, size
    return dict(sorted(links.items()))


def _as_text(plan: Plan, owners: Mapping[str, Sequence[int]], parts: Parts) -> str:
    rows = []
    for process, counts in _counts(parts).items():
        meshes = []
        for name, those in owners.items():
            if process in those:
                others = ", ".join(map(str, sorted({*those} - {process})))
                meshes.append(f"{name} (with {others})" if others else name)
        rows.append([str(process), ", ".join(meshes) or "none", *(f"{counts[column]:,}" for column in _COLUMNS)])
    done = Table(f"what processes do in a step of {plan.name}", ["process", "meshes", *_COLUMNS], rows, words=2)
    sent = [[str(a), str(b), f"{count:,}", f"{size:,}"] for (a, b), (count, size) in _links(plan, parts).items()]
    tables = [done, Table("sent between processes in a step", ["from", "to", "messages", "bytes"], sent, words=2)]
    return as_text(tables) + "\n"


def _as_data(
    plan: Plan,
    owners: Mapping[str, Sequence[int]],
    parts: Parts,
    faults: Sequence[str],
    deadlock: Deadlock | None,
    notes: Mapping[int, str],
) -> dict[str, Any]:
    """Return what was found, as plain data; actions as text."""
    counts, links = _counts(parts), _links(plan, parts)
    return {
        "plan": plan.name,
        "ends": deadlock is None and not faults,
        "buffers": 0,
        "meshes": {name: list(those) for name, those in owners.items()},
        "processes": [{"process": p, **{c: counts[p][c] for c in _COLUMNS}} for p in parts],
        "sent": [{"from": a, "to": b, "messages": n, "bytes": size} for (a, b), (n, size) in links.items()],
        "faults": list(faults),
        "waits": [
            {
                "process": wait.process,
                "action": wait.place,
                "what": _line(plan, parts[wait.process][wait.place], notes),
                "for_process": wait.peer,
                "for_action": wait.peer_place,
            }
            for wait in (deadlock.waits if deadlock is not None else ())
        ],
    }
