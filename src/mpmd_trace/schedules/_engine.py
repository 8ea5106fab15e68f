"""The engines that play a program through time: transfers in the background, in one line per mesh, or blocking."""

from __future__ import annotations

import heapq
import itertools
from collections import deque

from mpmd_trace.schedules._costs import Costs, per_stage
from mpmd_trace.schedules._program import Program


class Run:
    """A program that is played: when each step starts and ends, and when results arrive on other meshes."""

    def __init__(self, program: Program, costs: Costs) -> None:
        self.program, self.costs = program, costs
        self.starts = [0.0] * len(program.steps)
        self.ends = [-1.0] * len(program.steps)
        self._arrivals: dict[tuple[int, int], float] = {}

    def finished(self) -> bool:
        """Return whether every step ran and every transfer ended."""
        return -1.0 not in self.ends

    def arrival(self, producer: int, mesh: int) -> float:
        """Return when the result of a step is on a mesh."""
        if self.program.mesh[producer] == mesh:
            return self.ends[producer]
        return self._arrivals[producer, mesh]


class Background(Run):
    """Transfers that do not make the receiving mesh wait until it needs them."""

    def __init__(self, program: Program, durations: list[float], costs: Costs, exposed: bool) -> None:
        super().__init__(program, costs)
        self.durations = durations
        self._plain = not exposed and costs.bandwidth is None and isinstance(costs.latency, (int, float))
        self._latency = costs.latency if isinstance(costs.latency, (int, float)) else 0.0
        self._exposed = exposed
        self._link_free: dict[tuple[int, int], float] = {}
        self._targets: list[list[int]] = []
        if not self._plain:
            self._targets = targets(program)
            self._size = per_stage(costs.size, program.schedule, "size")
        self._run()

    def arrival(self, producer: int, mesh: int) -> float:
        if self._plain and self.program.mesh[producer] != mesh:
            return self.ends[producer] + self._latency
        return super().arrival(producer, mesh)

    def _run(self) -> None:
        program, starts, ends, durations = self.program, self.starts, self.ends, self.durations
        mesh_of, needs, first = program.mesh, program.needs, program.first
        plain, latency = self._plain, self._latency
        meshes = len(first) - 1
        position = first[:-1]
        free = [0.0] * meshes
        waiting: dict[int, list[int]] = {}
        queue = deque(range(meshes))
        while queue:
            mesh = queue.popleft()
            now = free[mesh]
            i, last = position[mesh], first[mesh + 1]
            while i < last:
                start = now
                for need in needs[i]:
                    at = ends[need]
                    if at < 0.0:
                        waiting.setdefault(need, []).append(mesh)
                        break
                    if mesh_of[need] != mesh:
                        at = at + latency if plain else self._arrivals[need, mesh]
                    if at > start:
                        start = at
                else:
                    starts[i] = start
                    now = ends[i] = start + durations[i]
                    if not plain:
                        now = self._send(i, mesh, now)
                    if i in waiting:
                        queue.extend(waiting.pop(i))
                    i += 1
                    continue
                break
            position[mesh] = i
            free[mesh] = now

    def _send(self, step: int, mesh: int, now: float) -> float:
        """Send a step's results; returns when the mesh may go on."""
        for target in self._targets[step]:
            latency = self.costs.delay(mesh, target)
            wire = wire_time(self.program, step, target, self._size, self.costs)
            if self._exposed:
                now += latency + wire
                self._arrivals[step, target] = now
            else:
                begin = max(now, self._link_free.get((mesh, target), 0.0))
                self._link_free[mesh, target] = begin + wire
                self._arrivals[step, target] = begin + wire + latency
        return now


def stuck_heads(program: Program) -> list[tuple[int, int]]:
    """Empty when every step can run; else, per stuck mesh, (its first stuck step, what it awaits).

    Transfers do not block here: only the order on each mesh and the data flow count.
    """
    ends = Background(program, [0.0] * len(program.steps), Costs(), exposed=False).ends
    rows = itertools.pairwise(program.first)
    heads = [next((step for step in range(a, b) if ends[step] < 0.0), None) for a, b in rows]
    return [(head, next(n for n in program.needs[head] if ends[n] < 0.0)) for head in heads if head is not None]


class InOrder(Run):
    """Transfers in the background, of which a mesh sends or receives one at a time, as where both ends match by order.

    A value goes as soon as it is there and both of its meshes are free for it: none waits at the head of a line for
    what is not made yet, while another one behind it could go.  `sent` has, in the order in which they go, when each
    one (producer, target) begins; every mesh takes its own in this order.
    """

    def __init__(self, program: Program, durations: list[float], costs: Costs) -> None:
        super().__init__(program, costs)
        self.durations = durations
        self.sent: dict[tuple[int, int], float] = {}
        self._size = per_stage(costs.size, program.schedule, "size")
        self._targets = targets(program)
        self._next = list(program.first[:-1])
        self._computing = [False] * len(self._next)
        self._sending = [False] * len(self._next)
        #: The values that are there and did not go yet, those of which there were first in front.
        self._waiting: list[tuple[int, int]] = []
        self._events: list[tuple[float, int, int, int]] = []
        self._numbers = itertools.count()
        self._run()

    def _run(self) -> None:
        events, mesh_of = self._events, self.program.mesh
        now = 0.0
        while True:
            for mesh in range(len(self._next)):
                self._start(mesh, now)
            if not events:
                return
            now = events[0][0]
            made: list[tuple[int, int]] = []
            while events and events[0][0] == now:
                _, _, step, target = heapq.heappop(events)
                if target < 0:
                    self.ends[step] = now
                    self._computing[mesh_of[step]] = False
                    made += [(step, other) for other in self._targets[step]]
                else:
                    self._arrivals[step, target] = now
                    self._sending[mesh_of[step]] = self._sending[target] = False
            self._waiting += sorted(made)
            self._waiting = [pair for pair in self._waiting if not self._send(*pair, now)]

    def _start(self, mesh: int, now: float) -> None:
        """Begin the next step of a mesh that does nothing, if all that it needs is there."""
        step = self._next[mesh]
        if self._computing[mesh] or step == self.program.first[mesh + 1]:
            return
        for need in self.program.needs[step]:
            if self.ends[need] < 0.0 or (self.program.mesh[need] != mesh and (need, mesh) not in self._arrivals):
                return
        self.starts[step] = now
        self._computing[mesh] = True
        self._next[mesh] += 1
        heapq.heappush(self._events, (now + self.durations[step], next(self._numbers), step, -1))

    def _send(self, step: int, target: int, now: float) -> bool:
        """Begin a transfer if both of its meshes are free for it; return whether it has begun."""
        source = self.program.mesh[step]
        if self._sending[source] or self._sending[target]:
            return False
        self._sending[source] = self._sending[target] = True
        self.sent[step, target] = now
        wire = wire_time(self.program, step, target, self._size, self.costs)
        arrives = now + self.costs.delay(source, target) + wire
        heapq.heappush(self._events, (arrives, next(self._numbers), step, target))
        return True


class Blocking(Run):
    """Transfers at which both ends meet."""

    def __init__(self, program: Program, durations: list[float], costs: Costs) -> None:
        super().__init__(program, costs)
        size = per_stage(costs.size, program.schedule, "size")
        groups = meeting_groups(program)
        posted: dict[tuple[int, int], float] = {}
        meshes = len(program.first) - 1
        position = list(program.first[:-1])
        blocked: list[bool] = [False] * meshes
        clock = [0.0] * meshes
        queue = deque(range(meshes))
        while queue:
            mesh = queue.popleft()
            while position[mesh] <= program.first[mesh + 1]:
                i = position[mesh]
                group = groups[mesh][i - program.first[mesh]]
                if not blocked[mesh]:
                    blocked[mesh] = True
                    for pair in group:
                        other = posted.get(pair)
                        if other is None:
                            posted[pair] = clock[mesh]
                            continue
                        source, target = program.mesh[pair[0]], pair[1]
                        wire = wire_time(program, pair[0], target, size, costs)
                        begin = max(other, clock[mesh])
                        self._arrivals[pair] = begin + costs.delay(source, target) + wire
                        queue.append(target if mesh == source else source)
                if any(pair not in self._arrivals for pair in group):
                    break
                blocked[mesh] = False
                for pair in group:
                    clock[mesh] = max(clock[mesh], self._arrivals[pair])
                if i < program.first[mesh + 1]:
                    ready = max((self.ends[d] for d in program.needs[i]), default=0.0)
                    self.starts[i] = max(clock[mesh], ready)
                    self.ends[i] = clock[mesh] = self.starts[i] + durations[i]
                position[mesh] += 1
        self.waiting = [
            (m, position[m], [p for p in groups[m][position[m] - program.first[m]] if p not in self._arrivals])
            for m in range(meshes)
            if position[m] <= program.first[m + 1]
        ]

    def finished(self) -> bool:
        return not self.waiting


def targets(program: Program) -> list[list[int]]:
    """For each step, the other meshes that need its result, in order of first need."""
    out: list[list[int]] = [[] for _ in program.steps]
    for step, needs in enumerate(program.needs):
        mesh = program.mesh[step]
        for need in needs:
            if program.mesh[need] != mesh and mesh not in out[need]:
                out[need].append(mesh)
    return out


def meeting_groups(program: Program) -> list[list[list[tuple[int, int]]]]:
    """Per mesh and gap between its steps, the transfers (producer, target mesh) at that gap.

    Gap k lies before the mesh's k-th step: it holds what step k-1 sends and what step k needs
    first; the last gap lies after the last step.
    """
    groups: list[list[list[tuple[int, int]]]] = [
        [[] for _ in range(program.first[m + 1] - program.first[m] + 1)] for m in range(len(program.first) - 1)
    ]
    seen: set[tuple[int, int]] = set()
    for step, needs in enumerate(program.needs):
        mesh = program.mesh[step]
        for need in needs:
            source = program.mesh[need]
            if source != mesh and (need, mesh) not in seen:
                seen.add((need, mesh))
                groups[mesh][step - program.first[mesh]].append((need, mesh))
                groups[source][need - program.first[source] + 1].append((need, mesh))
    return groups


def wire_time(program: Program, step: int, target: int, size: list[float], costs: Costs) -> float:
    """Return how long what a mesh gets of a step's results is on the wire: of its forwards and input-gradients."""
    total = 0.0
    graph, mesh_of = program.schedule.graph, program.schedule.placement.mesh_of
    for part in program.steps[step].parts:
        stage = part.stage
        if costs.sends:
            others = graph.readers[stage] if part.kind == "F" else graph.feeds[stage]
            if part.kind in ("F", "I", "B"):
                total += sum(costs.sends.get((stage, o), 0.0) for o in others if mesh_of[o] == target)
        elif part.kind == "F":
            total += size[stage]
        elif part.kind in ("I", "B"):
            # The gradient of a stage's input has the size of what it reads.
            total += sum(size[p] for p in graph.feeds[stage])
    return total * costs.seconds_per_size(program.mesh[step], target)
