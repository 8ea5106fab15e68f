"""A schedule as a graph of numbered steps: the common ground of checking and simulating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpmd_trace.schedules._actions import KINDS, Action, Kind, Step
from mpmd_trace.schedules._schedule import Schedule


@dataclass(frozen=True)
class Program:
    """The steps of a schedule, numbered mesh by mesh.

    `needs[i]` lists the steps whose results step i reads, wherever they run. `absent` lists
    (step, action) pairs where a needed action is nowhere in the schedule.
    """

    schedule: Schedule
    steps: tuple[Step, ...]
    mesh: list[int]
    first: list[int]
    needs: list[list[int]]
    absent: list[tuple[int, Action]]

    def place(self, step: int) -> tuple[int, int]:
        """Return (row, column) of a step."""
        mesh = self.mesh[step]
        return mesh, step - self.first[mesh]


def build(schedule: Schedule) -> Program:
    """Return the steps of a schedule, numbered, each linked to those it needs.

    A forward needs the forwards of the stages it reads; a backward its own forward and the
    backwards of the stages that read it; a weight-gradient its input-gradient; an optimizer step
    all weight-gradients of its stage.

    Raises:
        IndexError: if an action is out of range, or the number of lists or of stages is wrong.
    """
    if len(schedule.orders) != schedule.meshes or len(schedule.graph) != schedule.stages:
        raise IndexError("orders, placement and graph do not belong together")
    mesh: list[int] = []
    first = [0]
    for row, order in enumerate(schedule.orders):
        mesh += [row] * len(order)
        first.append(len(mesh))
    steps = tuple(step for order in schedule.orders for step in order)
    places = _places(schedule, steps)
    forwards, input_grads = places["F"], _either(places["B"], places["I"])
    weight_grads = _either(places["B"], places["W"])
    graph = schedule.graph
    plain = graph.entry is None
    needs: list[list[int]] = []
    absent: list[tuple[int, Action]] = []
    for number, step in enumerate(steps):
        wanted: list[int] = []
        for part in step.parts:
            stage, kind, m = part.stage, part.kind, part.microbatch
            if kind == "O":
                ends = (weight_grads[stage][mb] for mb in schedule.microbatches_of(stage))
                wanted += [end for end in ends if end >= 0 and end != number]
                continue
            inputs: list[tuple[Kind, list[int], int]]
            if kind == "F":
                feeds = graph.feeds[stage] if plain else graph.inputs(stage, m)
                inputs = [("F", forwards[source], source) for source in feeds]
            elif kind == "W":
                inputs = [("I", places["I"][stage], stage)]
            else:
                readers = graph.readers[stage] if plain else graph.outputs(stage, m)
                inputs = [("F", forwards[stage], stage), *(("I", input_grads[reader], reader) for reader in readers)]
            for needed, steps_of, source in inputs:
                at = steps_of[m]
                if at < 0:
                    absent.append((number, Action(source, needed, m)))
                elif at != number:
                    wanted.append(at)
        needs.append(wanted)
    return Program(schedule, steps, mesh, first, needs, absent)


def _places(schedule: Schedule, steps: Sequence[Step]) -> dict[Kind, list[list[int]]]:
    """Return by kind, stage and microbatch (-1 for the optimizer's) the first step with the action, or -1."""
    stages, microbatches = schedule.stages, schedule.microbatches
    places = {kind: [[-1] * (microbatches + 1) for _ in range(stages)] for kind in KINDS}
    for number, step in enumerate(steps):
        for part in step.parts:
            if not 0 <= part.stage < stages or not -1 <= part.microbatch < microbatches:
                raise IndexError(str(part))
            of_stage = places[part.kind][part.stage]
            if of_stage[part.microbatch] < 0:
                of_stage[part.microbatch] = number
    return places


def _either(backwards: list[list[int]], halves: list[list[int]]) -> list[list[int]]:
    """Return the steps with whole backwards or, where there is none, with a half of them."""
    return [list(map(max, whole, half)) for whole, half in zip(backwards, halves, strict=True)]


def find_cycle(program: Program, stuck: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a cycle of stuck meshes as (step, the step it awaits); the last awaits the first's mesh."""
    by_mesh = {program.mesh[head]: (head, need) for head, need in stuck}
    mesh = min(by_mesh)
    path: list[int] = []
    while mesh not in path:
        path.append(mesh)
        mesh = program.mesh[by_mesh[mesh][1]]
    return [by_mesh[m] for m in path[path.index(mesh) :]]
