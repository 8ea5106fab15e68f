"""The values of an execution plan: who makes and reads them, which are activations, what they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mpmd_trace.backend.plan import Plan, Run
from mpmd_trace.report.timeline import FragmentActions, actions_by_place, run_actions
from mpmd_trace.schedules import Action
from mpmd_trace.scheduling.transfers import Value


def values_of_plan(plan: Plan, actions: FragmentActions) -> list[Value]:
    """Return the arguments of the plan and what its programs make, each once with all its copies."""
    root: dict[int, int] = {}
    for transfer in plan.transfers:
        for a, b in zip(transfer.inputs, transfer.outputs, strict=True):
            root[b] = root.get(a, a)
    copies: dict[int, list[int]] = {}
    for copy, original in root.items():
        copies.setdefault(original, []).append(copy)
    made: dict[int, Action | None] = dict.fromkeys(plan.arguments)
    uses: dict[int, list[tuple[str, Action]]] = {}
    for run, action in run_actions(plan, actions):
        made.update(dict.fromkeys(run.outputs, action))
        for slot in dict.fromkeys(run.inputs):
            uses.setdefault(root.get(slot, slot), []).append((run.mesh, action))
    result = []
    for slot, maker in made.items():
        own = [slot, *copies.get(slot, ())]
        # What is sent is what arrives: a transfer may reshard.
        size = max(plan.slots[s].bytes for s in own[1:]) if len(own) > 1 else plan.slots[slot].bytes
        places = tuple((plan.slots[s].mesh, s) for s in own)
        result.append(Value(size, plan.slots[slot].mesh, maker, tuple(uses.get(slot, ())), places))
    return result


def _holders(value: Value, stage_of: Mapping[int, int]) -> set[int]:
    """Return the stages that keep a value from a forward to a backward of its microbatch.

    What several microbatches read (casts of parameters, for instance) is no activation.
    """
    known = [a for _, a in value.uses if a.kind != "O" and a.stage in stage_of]
    source = value.source
    if source is None or source.kind in "BIW" or len({a.microbatch for a in known}) != 1:
        return set()
    backward = {stage_of[a.stage] for a in known if a.kind != "F"}
    if source.kind == "F":
        return backward
    return backward & {stage_of[a.stage] for a in known if a.kind == "F"}


def activations(values: Iterable[Value], stage_of: Mapping[int, int], visits: Sequence[int]) -> list[float]:
    """Of each stage, the bytes on a device that the forward of a microbatch leaves for its backward."""
    totals = [0.0] * len(visits)
    for value in values:
        for stage in _holders(value, stage_of):
            totals[stage] += value.bytes
    return [held / max(v, 1) for held, v in zip(totals, visits, strict=True)]


def activation_slots(values: Iterable[Value], stage_of: Mapping[int, int]) -> set[int]:
    """Return the slots of a plan that are activations on the mesh where they are."""
    result: set[int] = set()
    for value in values:
        holders = _holders(value, stage_of)
        if holders:
            meshes = {m for m, a in value.uses if a.kind != "O" and stage_of.get(a.stage) in holders}
            result.update(slot for mesh, slot in value.slots if mesh in meshes)
    return result


#: The most bytes that something holds on a device: before its first backward, from the start of its first
#: backward to that of the second, and so on; the last number is valid until the end of the step.
Profile = tuple[float, ...]


def other_bytes(
    plan: Plan,
    actions: FragmentActions,
    apart: set[int],
    temporary: dict[int, int] | None = None,
    reused: dict[int, int] | None = None,
) -> tuple[dict[str, Profile], dict[str, Profile]]:
    """Return what a device of each mesh holds without the slots `apart`, and how much of it is scratch memory.

    Parameters are there from the start, gradients come with the backwards, and the optimizer is at the end.
    `temporary` and `reused` are as in `Plan.live_bytes`.
    """
    slots = tuple(s._replace(bytes=0) if s.number in apart else s for s in plan.slots)
    others = dataclasses.replace(plan, slots=slots, shared={})  # each mesh by itself, also where devices are shared
    held: dict[str, list[float]] = {mesh: [0.0] for mesh in plan.meshes}
    scratch: dict[str, list[float]] = {mesh: [0.0] for mesh in plan.meshes}
    known = actions_by_place(plan, actions)
    for at, mesh, amount in others.memory_use(temporary, reused):
        run = plan.instructions[at] if at >= 0 else None
        if isinstance(run, Run):
            if known[at].kind in "BW":
                held[mesh].append(0.0)
                scratch[mesh].append(0.0)
            scratch[mesh][-1] = max(scratch[mesh][-1], (temporary or {}).get(run.program, 0))
        held[mesh][-1] = max(held[mesh][-1], amount)
    return {m: tuple(v) for m, v in held.items()}, {m: tuple(v) for m, v in scratch.items()}


def at_fraction(profile: Profile, done: int, whole: int) -> float:
    """Return a profile after `done` of `whole` backwards began, also where the profile has another number of them."""
    steps = len(profile) - 1
    return profile[-(-done * steps // whole) if whole else 0]


def cut_bytes(values: Iterable[Value], layers: int, visits: Sequence[int]) -> list[tuple[float, float]]:
    """Return what one microbatch sends over a cut behind each layer but the last: forward, and back.

    The stages of the actions are the layers; a value that several later layers read is sent once.
    """
    forward, backward = [0.0] * (layers + 1), [0.0] * (layers + 1)
    for value in values:
        source = value.source
        if source is None or source.kind == "O" or not 0 <= source.stage < layers:
            continue
        readers = [a.stage for _, a in value.uses if a.kind != "O" and a.microbatch == source.microbatch]
        size = value.bytes / max(visits[source.stage], 1)
        last, first = max(readers, default=source.stage), min(readers, default=source.stage)
        if source.kind == "F" and last > source.stage:
            forward[source.stage] += size
            forward[last] -= size
        elif first < source.stage:
            backward[first] += size
            backward[source.stage] -= size
    result, there, back = [], 0.0, 0.0
    for i in range(layers - 1):
        there, back = there + forward[i], back + backward[i]
        result.append((max(there, 0.0), max(back, 0.0)))
    return result
