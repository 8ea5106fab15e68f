"""Generated execution plans over several processes: any schedule, stages on any meshes, meshes on any processes.

A plan comes from a schedule of the library or from stages placed at random (so that some meshes have many, and some
none), with skips between stages.  Its instructions are in an order that the schedule and the data flow allow: that in
which meshes would start them at random costs, as the planner does, or any other.  Meshes have one to four devices and
any shardings; their devices belong to one process each, to a few, or to any.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence

from mpmd_trace.backend.distribution.deadlock import Parts
from mpmd_trace.backend.distribution.order import LocalCopy, Receive, Send
from mpmd_trace.backend.plan import Free, Instruction, Plan, ProgramSpec, Run, Slot, Transfer
from mpmd_trace.ir.sharding_attributes import parse_sharding_body
from mpmd_trace.ir.types import MeshTensorType, TensorType, mesh_tensor, parse_type
from mpmd_trace.schedules import ENTRIES, Action, Placement, Schedule, StageGraph, Step, contiguous_stages
from mpmd_trace.schedules._program import Program, build

__all__ = ["Example", "random_example", "swapped"]

#: Axes of a mesh, and shardings of a matrix on it.
MESHES = {
    '<["x"=1]>': (1, ("[{}, {}]",)),
    '<["x"=2]>': (2, ("[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]')),
    '<["x"=3]>': (3, ("[{}, {}]", '[{"x"}, {}]')),
    '<["x"=4]>': (4, ("[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]')),
    '<["x"=2, "y"=2]>': (4, ("[{}, {}]", '[{"x"}, {"y"}]', '[{"y"}, {}]', '[{"x", "y"}, {}]')),
}


@dataclasses.dataclass(frozen=True)
class Example:
    """A plan and, for each mesh, the process of each of its devices."""

    plan: Plan
    owners: dict[str, tuple[int, ...]]
    schedule: str
    processes: int


def random_example(rng: random.Random) -> Example:
    """A plan of about ten to some hundred instructions, on one to twelve processes."""
    schedule = _schedule(rng) if rng.random() < 0.75 else _anywhere(rng)
    maker = _Maker(rng, schedule)
    plan = maker.plan()
    processes, owners = _owners(rng, plan)
    return Example(plan, owners, schedule.name, processes)


def swapped(rng: random.Random, parts: Parts) -> Parts | None:
    """The parts with two actions of one process swapped: any two, or one message and the next or next but one."""
    found = dict(parts)
    busy = [p for p, actions in parts.items() if sum(isinstance(a, Send | Receive) for a in actions) > 1]
    if not busy:
        return None
    process = rng.choice(busy)
    actions = list(parts[process])
    places = [i for i, a in enumerate(actions) if not isinstance(a, Free | LocalCopy)]
    first, second = rng.sample(places, 2)
    if rng.random() < 0.7:
        places = [i for i in places if isinstance(actions[i], Send | Receive)]
        at = rng.randrange(len(places) - 1)
        first, second = places[at], places[min(at + rng.randint(1, 2), len(places) - 1)]
    actions[first], actions[second] = actions[second], actions[first]
    found[process] = tuple(actions)
    return found


# Schedules.


def _schedule(rng: random.Random) -> Schedule:
    """A schedule of the library, at sizes that it can have."""
    name = rng.choice(ENTRIES).name
    meshes = max(rng.randint(1, 5), rng.randint(1, 5))
    if name == "dualpipe":
        meshes = 2 * rng.randint(1, 2)
    least = {"zb-h2": 2, "zb-v": 2, "zb-h2-half-latency": 3, "zb-h2-full-latency": 4, "dualpipe": 2, "dualpipe-v": 2}
    microbatches = meshes * least.get(name, 1) + 2 * rng.randint(0, 2)
    if name.startswith("circular"):
        microbatches = meshes * rng.randint(1, 2)
    elif name not in least:
        microbatches = rng.choice((1, 2, meshes, meshes + 1, 2 * meshes))
    if name == "dualpipe":
        microbatches += microbatches % 2
    if "interleaved" in name or name == "kimi-k2":
        microbatches = meshes * rng.randint(1, 2)
    schedule = _known(name, meshes, microbatches, rng.randint(1, 2))
    if rng.random() < 0.3 and schedule.graph.is_chain and schedule.stages > 2:
        schedule = schedule.with_graph(_with_skips(rng, schedule.stages))
    return schedule


@functools.lru_cache(maxsize=4096)
def _known(name: str, meshes: int, microbatches: int, per_stage: int) -> Schedule:
    entry = next(e for e in ENTRIES if e.name == name)
    schedule = entry.generator()(meshes, microbatches)
    return contiguous_stages(schedule, per_stage) if schedule.graph.entry is None else schedule


def _with_skips(rng: random.Random, stages: int) -> StageGraph:
    """A chain in which some stages also read what earlier ones give."""
    edges = []
    for _ in range(rng.randint(1, 3)):
        first = rng.randrange(stages - 2)
        edges.append((first, rng.randrange(first + 2, stages)))
    return StageGraph.chain(stages).with_skips(*edges)


def _anywhere(rng: random.Random) -> Schedule:
    """Stages on any meshes, each mesh in any order that the data flow allows."""
    meshes, stages, microbatches = rng.randint(1, 6), rng.randint(1, 8), rng.randint(1, 4)
    graph = _with_skips(rng, stages) if stages > 2 else StageGraph.chain(stages)
    mesh_of = [rng.randrange(meshes) for _ in range(stages)]
    split = rng.random() < 0.5
    orders: list[list[Step]] = [[] for _ in range(meshes)]
    waiting = [(s, k, m) for s in range(stages) for k in ("FIW" if split else "FB") for m in range(microbatches)]
    done: set[tuple[int, str, int]] = set()
    while waiting:
        rng.shuffle(waiting)
        rest = []
        for stage, kind, m in waiting:
            back = "I" if split else "B"
            if kind == "F":
                needs = [(p, "F", m) for p in graph.feeds[stage]]
            elif kind == "W":
                needs = [(stage, "I", m)]
            else:
                needs = [(stage, "F", m), *((r, back, m) for r in graph.readers[stage])]
            if done.issuperset(needs):
                done.add((stage, kind, m))
                orders[mesh_of[stage]].append(Action(stage, kind, m))  # type: ignore[arg-type]
            else:
                rest.append((stage, kind, m))
        waiting = rest
    placement = Placement(meshes, tuple(mesh_of))
    return Schedule("anywhere", tuple(map(tuple, orders)), placement, microbatches, graph)


# Plans.


@functools.cache
def _type(mesh: str, shape: tuple[int, int], sharding: str) -> MeshTensorType:
    tensor = parse_type(f"tensor<{shape[0]}x{shape[1]}xf32>")
    assert isinstance(tensor, TensorType)
    return mesh_tensor(mesh, tensor, parse_sharding_body(f"<@mesh, {sharding}>"))


class _Maker:
    def __init__(self, rng: random.Random, schedule: Schedule) -> None:
        self.rng = rng
        self.schedule: Schedule = schedule
        self.program: Program = build(schedule)
        self.meshes = {f"m{i}": rng.choice(tuple(MESHES)) for i in range(schedule.meshes)}
        if rng.random() < 0.5:  # all alike
            self.meshes = dict.fromkeys(self.meshes, rng.choice(tuple(MESHES)))
        self.shape = rng.choice(((12, 12), (12, 24), (5, 7)))
        self.slots: list[Slot] = []
        self.instructions: list[Instruction] = []
        self.programs: dict[str, int] = {}
        self.made: list[list[int]] = [[] for _ in self.program.steps]  # the values of each step
        self.on: dict[tuple[int, str], int] = {}  # a value, sent to a mesh
        self.due: list[tuple[int, str]] = []  # values that are not sent yet, and where they go
        self.state: dict[str, int] = {}

    def plan(self) -> Plan:
        rng, program = self.rng, self.program
        self.state = {mesh: self.slot(mesh, f"state['{mesh}']") for mesh in self.meshes}
        arguments = len(self.slots)
        eager = rng.random() < 0.6
        goals: list[list[str]] = [[] for _ in program.steps]
        for step, needs in enumerate(program.needs):
            for need in needs:
                mesh = f"m{program.mesh[step]}"
                if program.mesh[need] != program.mesh[step] and mesh not in goals[need]:
                    goals[need].append(mesh)
        for step in self.order():
            for need in program.needs[step]:
                self.send({(v, f"m{program.mesh[step]}") for v in self.made[need]})
            self.run(step)
            self.due += [(value, mesh) for mesh in goals[step] for value in self.made[step]]
            if eager:
                self.send(set(self.due))
            elif rng.random() < 0.3:
                self.send(set(rng.sample(self.due, rng.randint(0, len(self.due)))))
        self.send(set(self.due))
        results = [*self.state.values(), *(made[0] for made in self.made[-2:])]
        return Plan(
            name=self.schedule.name,
            meshes=self.meshes,
            slots=tuple(self.slots),
            programs=tuple(
                ProgramSpec(number, name, name.rpartition("_")[2], (), (), ()) for name, number in self.programs.items()
            ),
            instructions=self.freed(results),
            arguments=tuple(range(arguments)),
            results=tuple(results),
            donated=frozenset(),
            result_names=("",) * len(results),
        )

    def order(self) -> list[int]:
        """The steps as the meshes would start them at random costs, or in any order that is allowed."""
        rng, program = self.rng, self.program
        costs = [rng.choice((1.0, 1.0, 2.0, 5.0)) for _ in range(self.schedule.stages)]
        timed = rng.random() < 0.6
        position, end = list(program.first[:-1]), {}
        free = [0.0] * self.schedule.meshes
        found: list[int] = []
        while len(found) < len(program.steps):
            ready = []
            for mesh, step in enumerate(position):
                if step < program.first[mesh + 1] and all(need in end for need in program.needs[step]):
                    start = max([free[mesh], *(end[need] for need in program.needs[step])])
                    ready.append((start, mesh, step))
            start, mesh, step = min(ready) if timed else rng.choice(ready)
            free[mesh] = end[step] = start + sum(costs[part.stage] for part in program.steps[step].parts)
            position[mesh] += 1
            found.append(step)
        return found

    def slot(self, mesh: str, name: str = "") -> int:
        sharding = self.rng.choice(MESHES[self.meshes[mesh]][1])
        self.slots.append(Slot(len(self.slots), _type(mesh, self.shape, sharding), None, 4, name))
        return len(self.slots) - 1

    def run(self, step: int) -> None:
        rng, program = self.rng, self.program
        action, mesh = program.steps[step], f"m{program.mesh[step]}"
        inputs = [self.state[mesh]]
        for need in program.needs[step]:
            inputs += [self.on.get((value, mesh), value) for value in self.made[need]]
        outputs = [self.slot(mesh) for _ in range(1 + (rng.random() < 0.2))]
        self.made[step] = list(outputs)
        if rng.random() < 0.2:
            self.state[mesh] = self.slot(mesh)
            outputs.append(self.state[mesh])
        name = f"{action}_{mesh}"
        number = self.programs.setdefault(name, len(self.programs))
        self.instructions.append(Run(number, mesh, tuple(inputs), tuple(outputs), (), str(action)))
        if rng.random() < 0.05:  # another sharding, on the same mesh
            value = self.slot(mesh)
            self.instructions.append(Transfer(mesh, mesh, (self.made[step][-1],), (value,)))
            self.made[step][-1] = value

    def send(self, wanted: set[tuple[int, str]]) -> None:
        """Transfers of what is due of this, of one value each or of all between two meshes."""
        now = [one for one in self.due if one in wanted]
        self.due = [one for one in self.due if one not in wanted]
        groups: list[list[tuple[int, str]]] = []
        for value, mesh in now:
            source = self.slots[value].mesh
            last = groups[-1][0] if groups else None
            if last and (self.slots[last[0]].mesh, last[1]) == (source, mesh) and self.rng.random() < 0.7:
                groups[-1].append((value, mesh))
            else:
                groups.append([(value, mesh)])
        for group in groups:
            mesh = group[0][1]
            inputs = tuple(value for value, _ in group)
            outputs = tuple(self.slot(mesh) for _ in group)
            self.on.update({(value, mesh): output for value, output in zip(inputs, outputs, strict=True)})
            self.instructions.append(Transfer(self.slots[inputs[0]].mesh, mesh, inputs, outputs))

    def freed(self, results: Sequence[int]) -> tuple[Instruction, ...]:
        """The instructions with a `Free` after the last use of each value, some of which are given away instead."""
        last: dict[int, int] = {}
        for at, instruction in enumerate(self.instructions):
            assert not isinstance(instruction, Free)
            last.update(dict.fromkeys((*instruction.outputs, *instruction.inputs), at))
        kept = set(results)
        found: list[Instruction] = []
        for at, instruction in enumerate(self.instructions):
            assert not isinstance(instruction, Free)
            values = dict.fromkeys((*instruction.inputs, *instruction.outputs))
            dead = tuple(v for v in values if last[v] == at and v not in kept)
            if isinstance(instruction, Run) and self.rng.random() < 0.5:
                read = instruction.inputs
                given = tuple(i for i, v in enumerate(read) if v in dead and read.count(v) == 1)
                instruction = instruction._replace(donated=given)
            found.append(instruction)
            if dead:
                found.append(Free(dead))
        return tuple(found)


# Processes.


def _owners(rng: random.Random, plan: Plan) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The processes, and the one of each device: a process per mesh or device, a few for all, or at random."""
    sizes = {name: MESHES[body][0] for name, body in plan.meshes.items()}
    how = rng.randrange(5)
    if how == 0:  # a process for each mesh
        return len(sizes), {name: (i,) * size for i, (name, size) in enumerate(sizes.items())}
    devices = sum(sizes.values())
    processes = min(12, devices) if how == 1 else rng.randint(min(2, len(sizes)), min(12, 2 * len(sizes)))
    owners, first = {}, 0
    for name, size in sizes.items():
        if how == 4:  # any
            owners[name] = tuple(rng.randrange(processes) for _ in range(size))
        elif how == 3:  # all meshes over the same processes
            owners[name] = tuple(i * processes // size % processes for i in range(size))
        else:  # in the order of the devices
            owners[name] = tuple((first + i) * processes // devices for i in range(size))
        first += size
    return processes, owners
