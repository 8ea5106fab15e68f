"""A chain of meshes with one stage each: times that no schedule with split backwards beats, and how many forwards
each mesh runs before its first backward in one that comes close.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mpmd_trace.schedules._costs import Costs, Timer, most_hidden
from mpmd_trace.schedules._mixed_integer_program import Flow
from mpmd_trace.schedules._result import Measure
from mpmd_trace.schedules._schedule import Schedule

_TINY = 1e-9

#: The variables of each mesh in `_BlockProgram`.
_VARIABLES = (
    "fi",  # blocks of a forward and an input gradient
    "fw",  # blocks of a forward and a weight gradient
    "fiw",  # blocks of all three
    "begin",  # of the mesh
    "turn",  # start of the first input gradient
    "fed",  # end of the last forward
    "last",  # the same, but no sooner than `turn`
    "end",  # of the last input gradient
    "first",  # forwards before `turn`
    "inputs",  # input gradients after `last`
    "weights",  # weight gradients between `last` and `end`
    "rest",  # weight gradients after `end`
    "longer",  # by how much blocks delay microbatches, here and on later meshes
    "f_fi",  # those blocks whose forward is among the first microbatches, as many as fit into memory
    "f_fw",
    "f_fiw",
    "i_fi",  # those whose input gradient is among them
    "i_fiw",
    "early",  # by how much these blocks delay the first microbatches, here and on later meshes
)
#: Those that are times; the others are numbers of actions.
_TIMES = {"begin", "turn", "fed", "last", "end", "longer", "early"}
_COUNTS = set(_VARIABLES) - _TIMES


def is_chain(schedule: Schedule) -> bool:
    """Return whether stage s runs on mesh s, takes the output of stage s - 1, and runs all microbatches."""
    in_order = schedule.placement.mesh_of == tuple(range(schedule.meshes))
    return in_order and schedule.only is None and schedule.graph.is_chain and schedule.graph.entry is None


def _most_held(limit: float, count: int, part: float) -> float:
    """Return the most that microbatches hold within a limit: each all of its memory, the part, or none."""
    limit = min(float(limit), float(count))
    rooms = ((n, limit - part * n + _TINY) for n in range(count + 1))
    return max(part * n + min(count - n, math.floor(room)) for n, room in rooms if room >= 0.0)


class Chain:
    """Times, wires and limits of the meshes, and what follows from them.

    `heads` are the earliest starts of the meshes, `paths` the least times from the start of a microbatch's forward to
    that of its input gradient, `work` the time of all actions, less what blocks may hide. `hides` is what one block of
    a forward and an input gradient hides, of a forward and a weight gradient, and of all three; 0 if memory does not
    suffice for one.
    """

    def __init__(
        self, frame: Schedule, costs: Costs, limits: Sequence[float], weight_fraction: float, measure: Measure
    ) -> None:
        flow = Flow(frame, costs, split=True)
        times = {(lane.stage, lane.kind): lane.time for lane in flow.lanes}
        wires = {
            (flow.lanes[need], lane): wire
            for lane, needs in zip(flow.lanes, flow.needs, strict=True)
            for need, wire in needs
        }
        between = {(a.stage, b.stage): wire for (a, b), wire in wires.items()}
        self.meshes, self.count = frame.meshes, frame.microbatches
        stages = range(self.meshes)
        self.forward = [times[s, "F"] for s in stages]
        self.input_grad = [times[s, "I"] for s in stages]
        self.weight_grad = [times[s, "W"] for s in stages]
        self.down = [between[s, s + 1] for s in stages[:-1]]
        self.up = [between[s + 1, s] for s in stages[:-1]]
        self.limits = [_most_held(limit, self.count, weight_fraction) for limit in limits]
        self.fraction, self.span = weight_fraction, measure == "span"
        hiding = {(lane.stage, lane.kind): lane.hiding for lane in flow.lanes}
        # A block holds a forward's microbatch and another one, of which its gradients are, until its end.
        self.hides: list[tuple[float, ...]] = []
        for s, limit in enumerate(self.limits):
            f, i, w = ((kind == "F", *hiding[s, kind]) for kind in ("F", "I", "W"))
            blocks = (((f, i), 2.0), ((f, w), 1.0 + weight_fraction), ((f, i, w), 2.0))
            self.hides.append(tuple(most_hidden(parts) if held <= limit + _TINY else 0.0 for parts, held in blocks))
        self.has_blocks = any(map(any, self.hides))
        kinds = zip(self.forward, self.input_grad, self.weight_grad, self.hides, strict=True)
        self.work = [self.count * (f + i + w - max(hidden)) for f, i, w, hidden in kinds]
        self.heads = [0.0] * self.meshes
        for s in stages[1:]:
            self.heads[s] = self.heads[s - 1] + self.forward[s - 1] + self.down[s - 1]
        self.paths = self.forward.copy()
        for s in reversed(stages[:-1]):
            self.paths[s] += self.down[s] + self.paths[s + 1] + self.input_grad[s + 1] + self.up[s]
        # Until the first backward of a mesh the ones before it have none either, but all of its forwards.
        rooms = (max(1, math.floor(limit + _TINY)) for limit in self.limits)
        self.most = list(itertools.accumulate(rooms, min))
        # A makespan counts from the first start of mesh 0 on, a span from that of the mesh itself.
        self._counted = [range(s, -1, -1) if self.span else range(1) for s in stages]
        self._needed = [self._until_all_end(s) for s in stages]

    def _idle_at_the_end(self, s: int) -> float:
        """Return how long a mesh waits between its last forward and that microbatch's input gradient, at least.

        Meanwhile it has nothing but the backwards of the others that it holds.
        """
        if self.count <= self.limits[s] or self.fraction <= 0.0:
            return 0.0
        i, w = self.input_grad[s], self.weight_grad[s]
        others = (self.limits[s] - 1.0) * max(i + w, w / self.fraction)
        return max(0.0, self.paths[s] - self.forward[s] - others)

    def _until_all_end(self, s: int) -> list[float]:
        """Return how long a step takes, from the start of mesh r on, if mesh s is idle only at its end, for each r.

        That is its work, and the way back from there to the mesh that the step ends on.
        """
        own = self.work[s] + self._idle_at_the_end(s)
        needed = [own] if self.span else [own + self.heads[s]]
        back, slowest = 0.0, 0.0
        for r in reversed(range(s)):
            # The mesh that the step ends on has their weight gradients, too.
            saved = self._saved(s, max(slowest, self.input_grad[r] + self.weight_grad[r]))
            slowest = max(slowest, self.input_grad[r])
            back += self.up[r] + self.input_grad[r]
            needed.append(self.heads[s] + self.work[s] - saved + back + self.weight_grad[r])
            if self.span:
                needed[-1] -= self.heads[r]
        return needed if self.span else [max(needed)]

    def _saved(self, s: int, slowest: float) -> float:
        """Return how much of its work mesh s can do after its last input gradient, less the time that it idles for it.

        When its last forward starts, memory holds `flying` microbatches before their backward, and others whose weight
        gradients wait. Until the input gradient of the last one, there are only the `flying` - 1 backwards before that.
        A weight gradient that runs meanwhile, and saves idle time, cannot wait for the end, and saves nothing there.

        A mesh on the way back takes `slowest` for each of the `flying` input gradients, one after the other; the mesh
        that the step ends on takes their weight gradients, too. So the step ends as if the last one left mesh s no
        sooner than `flying` - 1 times that after the first one.

        If all forwards may come before the first backward, `forwards_first` counts the idle time between them.
        """
        saved = -math.inf
        for flying in range(1, self.most[s] + 1):
            waiting = self.count
            if self.fraction > 0.0:
                kept = math.floor((self.limits[s] - flying) / self.fraction + _TINY)
                waiting = min(waiting, flying + max(0, kept))
            idle = 0.0
            if self.count > self.most[s]:
                turn = max(self.paths[s] - self.forward[s], (flying - 1) * slowest)
                idle = max(0.0, turn - (flying - 1) * self.input_grad[s])
            saved = max(saved, waiting * self.weight_grad[s] - idle)
        return saved

    def forwards_first(self, time: float, *, share: float = 0.0) -> list[int] | None:
        """Return how many forwards each mesh runs before its first backward if a step takes no more than `time`.

        None if it takes more: the first backward of a mesh cannot start before that of the next mesh has ended, and
        until then a mesh has only forwards, a whole number of them, as many as its memory holds, and not more than the
        mesh before it, which has all of them behind it by then. Those numbers are the smallest that are possible, or
        that `share` of what fits into the time until then, whether or not the step takes no more than `time`.

        The last of n forwards has n - 1 of them before it on each mesh on its way. So it reaches a mesh no sooner than
        the first one can, and n - 1 times the slowest forward on the way after that.
        """
        numbers = [1] * self.meshes
        # Of the first backward of mesh s, from when a microbatch that starts with mesh r first can be on mesh s.
        starts = [0.0] * self.meshes
        for s in reversed(range(self.meshes)):
            own = self.forward[s]
            trip = own if s == self.meshes - 1 else own + self.down[s] + self.input_grad[s + 1] + self.up[s]
            counted = self._counted[s]
            for r in counted:
                starts[r] += trip
            least = 1 if s == self.meshes - 1 else numbers[s + 1]
            spares = [time - needed for needed in self._needed[s]]
            number = least
            if own:
                late = max(starts[r] - spare for r, spare in zip(counted, spares, strict=True))
                number = max(least, math.ceil((late - _TINY) / own))
            if share:
                start = starts[counted[0]]
                number = max(number, math.floor(share * (start + _TINY) / own) if own else self.most[s])
                number = min(number, self.most[s])
            elif min(spares) < -_TINY or number > self.most[s]:
                return None
            # With a share, those numbers count that a mesh can begin later instead; schedules come out shorter so.
            slowest = own if self.span or share else max(self.forward[: s + 1])
            for r, spare in zip(counted, spares, strict=True):
                slowest = slowest if share else max(slowest, self.forward[r])
                starts[r] = max(starts[r], (number - 1) * slowest + own)
                if not share and starts[r] > number * own + spare + 2 * _TINY:
                    return None
            numbers[s] = number
        return numbers

    def floor(self) -> float:
        """Return a time that no schedule beats: of the first backwards, and of the memory that microbatches hold."""
        low = max(max(map(max, self._needed)), *(self._held(s) for s in range(self.meshes)))
        if self.has_blocks:
            low = max(low, least_time(self))
        if self.forwards_first(low) is not None:
            return low
        high = low * 1.5 + max(self.paths) * 2
        for _ in range(60):
            middle = (low + high) / 2
            if self.forwards_first(middle) is None:
                low = middle
            else:
                high = middle
        return low

    def _held(self, s: int) -> float:
        """Return the time that all microbatches need if memory is full all the time but for the start and the end."""
        limit = self.limits[s]
        if self.count <= limit:
            return 0.0
        life = self.paths[s] + self.input_grad[s] + self.fraction * self.weight_grad[s]
        free = 0.0 if self.has_blocks else self.free(s)
        return (self.count * life + free) / limit + (0.0 if self.span else self.heads[s])

    def free(self, s: int) -> float:
        """Return how much memory stays free at the start and the end of a mesh, times how long, if not all fit into it.

        What is held counts from its forward to the end of its input gradient, and while its weight gradient runs, but
        not in a block with an input gradient. Forwards begin one after the other, and of n microbatches that count,
        n - 1 have both gradients still before them. A block takes no less than its gradients. If the work is so short
        that start and end would overlap, the end counts as shorter.
        """
        limit = self.limits[s]
        one_by_one = min(self.forward[s] + self.input_grad[s] + self.weight_grad[s], self.work[s] / limit)
        return one_by_one * sum(limit - j for j in range(1, math.floor(limit + _TINY) + 1))


def least_time(chain: Chain) -> float:
    """Return a time that no schedule with blocks beats, by linear programming.

    A block needs a forward and a gradient that are both there. The forwards before the first input gradient of a mesh,
    and the gradients after its last forward, do not have the other, so their collectives are not hidden. And whatever
    runs in a block is on its way for longer, so that its microbatch holds memory for longer.

    A block has one action of each kind at most. It takes no less than each of its parts alone, and what is in it comes
    out at its end.
    """
    # SciPy takes long to load, and only collectives need it.
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    program = _BlockProgram(chain)
    entries = [(-value, n, at) for n, (terms, _) in enumerate(program.rows) for at, value in terms.items()]
    data, rows, columns = zip(*entries, strict=True)
    matrix = csr_matrix((data, (rows, columns)), shape=(len(program.rows), len(program.bounds)))
    goal = np.zeros(len(program.bounds))
    goal[0] = 1.0
    answer = linprog(goal, matrix, [-low for _, low in program.rows], bounds=program.bounds)
    # What rounding adds must not count.
    return float(answer.fun) * program.unit * (1 - 1e-7) if answer.success else 0.0


class _BlockProgram:
    """Bounds of the variables, the first of which is the time, and rows: sums of them that are not below a number."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        # The solver drops tiny coefficients, whatever the unit of time.
        self.unit = max(chain.work) / chain.count or 1.0
        self.bounds: list[tuple[float, float | None]] = [(0.0, None)]
        self.rows: list[tuple[dict[int, float], float]] = []
        rooms = (math.floor(limit + _TINY) for limit in chain.limits)
        self.early = max((room for room in rooms if 2 * room <= chain.count), default=0)
        for most in chain.most:
            least = {"first": (1.0, float(most)), "inputs": (1.0, float(most))}
            self.bounds += [least.get(name, (1.0 if name == "rest" else 0.0, None)) for name in _VARIABLES]
        for s in range(chain.meshes):
            self._phases(s)
            self._memory(s)
            if s + 1 < chain.meshes:
                self._wires(s)

    def _at(self, s: int, name: str) -> int:
        """Return the variable of a mesh."""
        return 1 + s * len(_VARIABLES) + _VARIABLES.index(name)

    def _row(
        self,
        s: int,
        terms: Mapping[str, float],
        low: float,
        next_terms: Mapping[str, float] | None = None,
        time: float = 0,
    ) -> None:
        """Add a row; one about times is divided by the unit, and so are its variables that are times."""
        unit = 1.0 if terms.keys() <= _COUNTS else self.unit
        row = {self._at(s, name): value / (unit if name in _COUNTS else 1.0) for name, value in terms.items()}
        row |= {self._at(s + 1, name): float(value) for name, value in (next_terms or {}).items()}
        self.rows.append((row | ({0: time} if time else {}), low / unit))

    def _phases(self, s: int) -> None:
        """Order a stage: forwards alone, then whatever is left, then gradients, and at last weight gradients alone."""
        chain, count = self.chain, self.chain.count
        f, i, w = chain.forward[s], chain.input_grad[s], chain.weight_grad[s]
        hidden = dict(zip(("fi", "fw", "fiw"), chain.hides[s], strict=True))
        self._row(s, {"fi": -1, "fw": -1, "fiw": -1, "first": -1}, -count)
        self._row(s, {"fi": -1, "fiw": -1, "inputs": -1}, -count)
        self._row(s, {"fw": -1, "fiw": -1, "weights": -1, "rest": -1}, -count)
        self._row(s, {"turn": 1, "begin": -1, "first": -f}, 0.0)
        alone = {"first": f, "inputs": i, "weights": w, "rest": w}
        self._row(s, {"last": 1, "turn": -1} | hidden | alone, count * (f + i + w))
        self._row(s, {"end": 1, "last": -1, "inputs": -i, "weights": -w}, 0.0)
        self._row(s, {"last": 1, "fed": -1}, 0.0)
        if chain.most[s] < count:  # all forwards may not come before the first input gradient
            self._row(s, {"fed": 1, "last": -1}, 0.0)
        self._row(s, {"end": -1, "rest": -w} | ({"begin": 1} if chain.span else {}), 0.0, time=1.0)

    def _wires(self, s: int) -> None:
        """Order what meshes do first and last: it comes behind that of the mesh before it, or of the one behind it."""
        chain = self.chain
        self._row(s, {"begin": -1}, chain.forward[s] + chain.down[s], {"begin": 1})
        self._row(s, {"fed": -1}, chain.forward[s + 1] + chain.down[s], {"fed": 1})
        self._row(s, {"turn": 1}, chain.input_grad[s + 1] + chain.up[s], {"turn": -1})
        self._row(s, {"end": 1}, chain.input_grad[s] + chain.up[s], {"end": -1})
        self._row(s, {"first": 1}, 0.0, {"first": -1})

    def _memory(self, s: int) -> None:
        """Bound what a mesh holds when its last forward starts, and what all microbatches hold from start to end."""
        chain, limit, part = self.chain, self.chain.limits[s], self.chain.fraction
        f, i, w = chain.forward[s], chain.input_grad[s], chain.weight_grad[s]
        fi, fw, fiw = (total - hidden for total, hidden in zip((f + i, f + w, f + i + w), chain.hides[s], strict=True))
        delays = {"fi": -(2 * fi - f - i), "fw": -(fw - f), "fiw": -(2 * fiw - f - i)}
        following = {"longer": -1.0} if s + 1 < chain.meshes else None
        self._row(s, {"longer": 1} | delays, 0.0, following)
        self._refill(s, fi, fw, fiw)
        if chain.count <= limit:
            return
        self._row(s, {"inputs": part - 1, "weights": -part, "rest": -part}, -limit)
        held = chain.free(s) + chain.count * (chain.paths[s] + i + part * w)
        # A weight gradient in a block holds memory until its end; the same block may be its input gradient's.
        own = {"longer": -1.0, "fw": -part * (fw - w), "fiw": part * w}
        self._row(s, own | ({} if chain.span else {"begin": -limit}), held, time=limit)

    def _refill(self, s: int, fi: float, fw: float, fiw: float) -> None:
        """Bound what microbatches after the first n hold, where n fit into memory, from the first input gradient on.

        Forward n + r (r < n, from 0) needs the memory of r + 1 microbatches, so r + 1 backwards end before it. They and
        the r forwards since forward n run after the first input gradient of the mesh begins, and each of these forwards
        hides no more than a block can. Until then a part of the memory has none of these microbatches, nor has it at
        the end, as in `Chain.free`. What blocks delay the first n microbatches by (`early`) does not count.
        """
        chain, room = self.chain, math.floor(self.chain.limits[s] + _TINY)
        f, i, w = chain.forward[s], chain.input_grad[s], chain.weight_grad[s]
        for part, kinds in (("f", ("fi", "fw", "fiw")), ("i", ("fi", "fiw"))):
            for kind in kinds:
                self._row(s, {kind: 1, f"{part}_{kind}": -1}, 0.0)
        self._row(s, {"f_fi": -1, "f_fw": -1, "f_fiw": -1, "first": -1}, -max(self.early, chain.most[s]))
        self._row(s, {"i_fi": -1, "i_fiw": -1}, -self.early)
        delays = {"f_fi": fi - f, "f_fw": fw - f, "f_fiw": fiw - f, "i_fi": fi - i, "i_fiw": fiw - i}
        self._row(s, {"early": -1} | delays, 0.0, {"early": 1.0} if s + 1 < chain.meshes else None)
        if chain.count < 2 * room:
            return
        # Where weight gradients need only part of the memory, they need not come between.
        own, longer = (w, fw - w) if chain.fraction == 1.0 else (0.0, 0.0)
        pairs = room * (room - 1) / 2
        first = (pairs + room) * (i + own) + pairs * (f - max(chain.hides[s]))
        others = (chain.count - room) * (chain.paths[s] + i + own) + pairs * (i + w) - room * longer
        terms = {"longer": -1.0, "early": 1.0, "fw": -longer, "fiw": own, "turn": -room}
        self._row(s, terms | ({"begin": room} if chain.span else {}), first + others, time=room)


def memory_floor(
    schedule: Schedule, costs: Costs, limits: Sequence[float], weight_fraction: float, measure: Measure
) -> float:
    """Return a bound for schedules of these stages whose whole backwards take no less than their parts.

    Until its first backward a mesh has nothing but forwards, as many as fit into its memory; the first backward cannot
    start before a microbatch has been to the end and back. And a microbatch holds its memory on a mesh from its forward
    to the end of its backward, so only so many per unit of time go through. More is known with one stage per mesh.
    """
    if is_chain(schedule):
        return Chain(schedule, costs, limits, weight_fraction, measure).floor()
    flow = Flow(schedule, costs, split=True)
    number = {(lane.stage, lane.kind): n for n, lane in enumerate(flow.lanes)}
    starts = flow.heads(1)
    count, best = schedule.microbatches, 0.0
    limits = [min(float(limit), float(count)) for limit in limits]
    for mesh, mates in enumerate(flow.mates):
        stages = sorted({flow.lanes[n].stage for n in mates})
        if not stages:
            continue
        share = 1.0 / len(stages)
        # From the forward of each stage here to the input gradients of each.
        paths = {(a, b): _longest(flow, number[a, "F"], number[b, "I"]) for a in stages for b in stages}
        lanes = [flow.lanes[n] for n in mates]
        hidden = most_hidden((lane.kind == "F", *lane.hiding) for lane in lanes)
        work = count * (sum(lane.time for lane in lanes) - hidden)
        forwards = _forwards([flow.lanes[number[s, "F"]].time for s in stages], count, share, limits[mesh])
        reached = [max(paths[a, b] for a in stages) for b in stages]
        span = work + max(0.0, min(reached) - forwards)
        held = 0.0
        for stage in stages:
            path = paths[stage, stage]
            times = {kind: flow.lanes[number[stage, kind]].time for kind in ("I", "W")}
            held += share * (max(path, 0.0) + times["I"] + weight_fraction * times["W"])
        span = max(span, count * held / limits[mesh])
        first = 0.0 if measure == "span" else min(starts[n][0] for n in mates)
        best = max(best, first + span)
    return best


def starts_floor(schedule: Schedule, costs: Costs, measure: Measure) -> float:
    """Return a bound for any stages, as those of two chains, whose whole backwards take no less than their parts.

    The first action of a mesh is a forward, which waits for the forwards of one microbatch before it. From then on, the
    mesh has all its work, and until the first of its gradients can run it has only forwards, which hide no collectives,
    nor does idle time. Spans begin with the mesh that starts first, which has a stage that nothing feeds. As in
    `least_time`, a block has one action of each kind at most; it saves no more than its forward could with the
    gradients that compute and send the most.
    """
    timer = Timer(schedule, costs)
    mesh_of, graph = schedule.placement.mesh_of, schedule.graph
    starts, turns = [0.0] * schedule.stages, [0.0] * schedule.stages
    order = graph.order()
    for stage in order:
        feeds = [starts[p] + timer.table["F"][p] + costs.delay(mesh_of[p], mesh_of[stage]) for p in graph.feeds[stage]]
        starts[stage] = max(feeds, default=0.0)
    for stage in reversed(order):
        reads = [turns[r] + timer.table["I"][r] + costs.delay(mesh_of[r], mesh_of[stage]) for r in graph.readers[stage]]
        turns[stage] = max([starts[stage] + timer.table["F"][stage], *reads])
    entries: list[float] = []
    low = 0.0
    for own in filter(None, schedule.placement.stages_on):
        counts = [len(schedule.microbatches_of(s)) for s in own]
        hides = _most_hidden_by_forwards(timer, own)
        forwards = [timer.table["F"][s] for s in own]
        work = sum(
            n * (timer.table["F"][s] + timer.table["I"][s] + timer.table["W"][s] - h)
            for s, n, h in zip(own, counts, hides, strict=True)
        )
        share = min((h / f if f else 1.0) for f, h in zip(forwards, hides, strict=True))
        start = min(starts[s] for s in own)
        length = work + share * (min(turns[s] for s in own) - start)
        low = max(low, work if measure == "span" else start + length)
        if any(not graph.feeds[s] for s in own):
            entries.append(length)
    return max(low, min(entries)) if measure == "span" else low


def _most_hidden_by_forwards(timer: Timer, stages: Sequence[int]) -> list[float]:
    """Return the most that a block hides which has a forward of each of these stages of a mesh."""
    if not timer.hiding:
        return [0.0] * len(stages)
    gradients = [[timer.hiding[kind][s] for s in stages] for kind in ("I", "W")]
    most = [(False, max(time for time, _ in of), max(own for _, own in of)) for of in gradients]
    return [most_hidden([(True, *timer.hiding["F"][s]), *most]) for s in stages]


def _longest(flow: Flow, source: int, target: int) -> float:
    """Return the least time between the starts of two lanes' actions for one microbatch; minus infinity for none."""
    after: dict[int, float] = {source: 0.0}
    for n in flow.order:
        for need, wire in flow.needs[n]:
            if need in after:
                after[n] = max(after.get(n, 0.0), after[need] + flow.lanes[need].time + wire)
    return after.get(target, float("-inf"))


def _forwards(times: Sequence[float], count: int, share: float, limit: float) -> float:
    """Return the longest time that forwards take which fit into memory together."""
    room = int(limit / share + _TINY)
    total = 0.0
    for time in sorted(times, reverse=True):
        taken = min(room, count)
        total += taken * time
        room -= taken
    return total
