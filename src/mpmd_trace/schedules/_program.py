"""A schedule as a graph of numbered steps: the common ground of checking and simulating."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mpmd_trace.schedules._actions import KINDS, Action, Step
from mpmd_trace.schedules._schedule import Schedule

_SLOT = {kind: n for n, kind in enumerate(KINDS)}


class Index:
    """Finds the step that holds an action in constant time, without hashing actions."""

    def __init__(self, stages: int, microbatches: int) -> None:
        self._width = microbatches + 1
        self._block = stages * self._width
        self._table = [-1] * (len(KINDS) * self._block)

    def key(self, kind: str, stage: int, microbatch: int) -> int:
        """Return the place of an action; microbatch -1 (the optimizer's) has one of its own."""
        return _SLOT[kind] * self._block + stage * self._width + microbatch + 1  # type: ignore[index]

    def find(self, kind: str, stage: int, microbatch: int) -> int:
        """Return the number of the step that holds the action, or -1."""
        return self._table[self.key(kind, stage, microbatch)]

    def put(self, kind: str, stage: int, microbatch: int, step: int) -> None:
        """Records where an action is; the first mention stays."""
        key = self.key(kind, stage, microbatch)
        if self._table[key] < 0:
            self._table[key] = step


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
        """(row, column) of a step."""
        mesh = self.mesh[step]
        return mesh, step - self.first[mesh]


def build(schedule: Schedule) -> Program:
    """Numbers the steps and links each to those it needs.

    A forward needs the forwards of the stages it reads; a backward its own forward and the
    backwards of the stages that read it; a weight-gradient its input-gradient; an optimizer step
    all weight-gradients of its stage. An action out of range, or a wrong number
    of lists, is an `IndexError`.
    """
    steps: list[Step] = []
    mesh: list[int] = []
    first: list[int] = []
    stages, microbatches = schedule.stages, schedule.microbatches
    index = Index(stages, microbatches)
    if len(schedule.orders) != schedule.meshes or len(schedule.graph) != stages:
        raise IndexError("orders, placement and graph do not belong together")
    for row, order in enumerate(schedule.orders):
        first.append(len(steps))
        for step in order:
            number = len(steps)
            for part in step.parts:
                if not 0 <= part.stage < stages or not -1 <= part.microbatch < microbatches:
                    raise IndexError(str(part))
                index.put(part.kind, part.stage, part.microbatch, number)
            steps.append(step)
        mesh += [row] * len(order)
    first.append(len(steps))

    find = index.find
    graph = schedule.graph
    plain = graph.entry is None
    feeds, readers = graph.feeds, graph.readers
    needs: list[list[int]] = []
    absent: list[tuple[int, Action]] = []
    for number, step in enumerate(steps):
        wanted: list[int] = []
        for part in step.parts:
            stage, kind, m = part.stage, part.kind, part.microbatch
            if kind == "F":
                for source in feeds[stage] if plain else graph.inputs(stage, m):
                    source_action = find("F", source, m)
                    if source_action < 0:
                        absent.append((number, Action(source, "F", m)))
                    elif source_action != number:
                        wanted.append(source_action)
            elif kind == "W":
                source_action = find("I", stage, m)
                if source_action < 0:
                    absent.append((number, Action(stage, "I", m)))
                elif source_action != number:
                    wanted.append(source_action)
            elif kind == "O":
                for mb in schedule.microbatches_of(stage):
                    source_action = max(find("W", stage, mb), find("B", stage, mb))
                    if source_action >= 0 and source_action != number:
                        wanted.append(source_action)
            else:
                source_action = find("F", stage, m)
                if source_action < 0:
                    absent.append((number, Action(stage, "F", m)))
                elif source_action != number:
                    wanted.append(source_action)
                for reader in readers[stage] if plain else graph.outputs(stage, m):
                    source_action = max(find("I", reader, m), find("B", reader, m))
                    if source_action < 0:
                        absent.append((number, Action(reader, "I", m)))
                    elif source_action != number:
                        wanted.append(source_action)
        needs.append(wanted)
    return Program(schedule, tuple(steps), mesh, first, needs, absent)


def stuck_heads(program: Program) -> list[tuple[int, int]]:
    """Empty when every step can run; else, per stuck mesh, (its first stuck step, what it awaits).

    Transfers do not block here: only the order on each mesh and the data flow count.
    """
    position = list(program.first[:-1])
    done = [False] * len(program.steps)
    waiting: dict[int, list[int]] = {}
    queue = deque(range(len(position)))
    awaits: dict[int, int] = {}
    while queue:
        mesh = queue.popleft()
        end = program.first[mesh + 1]
        i = position[mesh]
        while i < end:
            open_need = next((d for d in program.needs[i] if not done[d]), -1)
            if open_need >= 0:
                waiting.setdefault(open_need, []).append(mesh)
                awaits[mesh] = open_need
                break
            done[i] = True
            if i in waiting:
                queue.extend(waiting.pop(i))
            i += 1
        position[mesh] = i
    return [(position[m], awaits[m]) for m in range(len(position)) if position[m] < program.first[m + 1]]


def find_cycle(program: Program, stuck: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a cycle of stuck meshes as (step, the step it awaits); the last awaits the first's mesh."""
    by_mesh = {program.mesh[head]: (head, need) for head, need in stuck}
    mesh = min(by_mesh)
    path: list[int] = []
    while mesh not in path:
        path.append(mesh)
        mesh = program.mesh[by_mesh[mesh][1]]
    return [by_mesh[m] for m in path[path.index(mesh) :]]
