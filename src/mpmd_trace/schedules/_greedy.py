"""Zero-bubble schedules by greedy list scheduling under a memory limit.

Eight heuristics, one per combination of three choices, follow the prose of arXiv 2401.10241,
section 3.1; the best by span is kept, or what dispatching gives (`_dispatch`) if that is better.
With a limit of P microbatches the result is as good as the paper's ZB-1p, with 2P as its ZB-2p.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpmd_trace.schedules._actions import Kind
from mpmd_trace.schedules._chain import Chain
from mpmd_trace.schedules._costs import Costs, Timer, per_stage
from mpmd_trace.schedules._dispatch import KINDS_IN_ROWS, actions_of, dispatch
from mpmd_trace.schedules._errors import ScheduleError
from mpmd_trace.schedules._result import Measure, Simulation
from mpmd_trace.schedules._schedule import Placement, Schedule, make
from mpmd_trace.schedules._simulate import simulate

AUTO_WEIGHT_FRACTION = 0.5
"""What zb-auto assumes a weight-gradient keeps of the activations.

32/(34 + 5as/h) is 0.37 and 0.43 for the two smaller models of the paper; any value between 0.2
and 0.5 gives the same costs for them.
"""

AUTO_EFFORT = 50_000
"""How many actions `zb_auto` places by dispatching: less than a second."""

_TINY = 1e-9


@dataclass(frozen=True)
class Choices:
    """The three choices of the heuristic.

    - `early`: before its first backward, a mesh runs one more forward even if that delays it;
    - `backward_first`: a forward that can wait does so when it would delay a backward;
    - `patient`: a gap shorter than a weight-gradient stays empty while the mesh's bubble is not
      the largest.
    """

    early: bool
    backward_first: bool
    patient: bool


ALL_CHOICES = tuple(Choices(*c) for c in itertools.product((False, True), repeat=3))


def zb_auto(
    meshes: int,
    microbatches: int,
    costs: Costs | None = None,
    memory_limit: float | Sequence[float] | None = None,
    weight_fraction: float = AUTO_WEIGHT_FRACTION,
    effort: int = AUTO_EFFORT,
) -> Schedule:
    """Return the best of the eight heuristics, or of dispatching, for these costs and this limit, one stage per mesh.

    `memory_limit` is in microbatches of activations, one number or one per mesh; 2P by default,
    enough for no bubble. `weight_fraction` is w of `simulate`, `effort` about how many actions are
    placed by dispatching to improve on the heuristics.
    """
    costs = Costs() if costs is None else costs
    limits = limits_of(meshes, memory_limit, 2.0 * meshes)
    best: tuple[tuple[float, float], Schedule] | None = None
    dispatched = dispatched_schedule(meshes, microbatches, costs, limits, weight_fraction, "span", effort)
    for schedule in itertools.chain(greedy_family(meshes, microbatches, costs, limits, weight_fraction), dispatched):
        result = simulate(schedule, costs, weight_fraction=weight_fraction)
        # Rounding keeps noise in the last digits from choosing between equals.
        score = (round(result.span, 9), round(result.makespan, 9))
        if best is None or score < best[0]:
            best = (score, schedule)
        if score <= _perfect(result):
            break
    assert best is not None
    return best[1]


def _perfect(result: Simulation) -> tuple[float, float]:
    """(span, makespan) of a schedule that works all the time from its first input on."""
    first = result.program.first
    ramps = [result.starts[i] for i in first[:-1]]
    spans = [ramp + work for ramp, work in zip(ramps, result.work, strict=True)]
    return round(result.ideal, 9), round(max(spans), 9)


def limits_of(meshes: int, memory_limit: float | Sequence[float] | None, default: float) -> list[float]:
    """One limit per mesh; each must hold one microbatch."""
    if memory_limit is None:
        limits = [default] * meshes
    elif isinstance(memory_limit, (int, float)):
        limits = [float(memory_limit)] * meshes
    elif isinstance(memory_limit, str) or not all(isinstance(v, (int, float)) for v in memory_limit):
        raise ScheduleError(
            f"the memory limit is {memory_limit!r}; it must be a number of microbatches, or one for each mesh"
        )
    else:
        limits = [float(v) for v in memory_limit]
    if len(limits) != meshes:
        raise ScheduleError(f"{len(limits)} memory limits for {meshes} meshes")
    for mesh, limit in enumerate(limits):
        if not limit >= 1.0:
            message = f"the memory limit of mesh {mesh} is {limit:g} microbatches; nothing runs with less than 1"
            raise ScheduleError.of("memory", message, row=mesh)
    return limits


def greedy_family(
    meshes: int,
    microbatches: int,
    costs: Costs,
    limits: Sequence[float],
    weight_fraction: float,
    gaps: Sequence[float] = (0.0,),
) -> Iterator[Schedule]:
    """Yield what the heuristic makes of each of its choices, equal results once.

    `gaps` are the shortest ones, as parts of a weight-gradient, that one fills.
    """
    placement = Placement.loop(meshes)
    frame = make("zb-auto", [()] * meshes, placement, microbatches)
    seen: set[bytes] = set()
    for gap, choices in ((gap, choices) for gap in gaps for choices in ALL_CHOICES):  # one at a time
        run = _Run(frame, costs, limits, weight_fraction, choices, gap)
        run.warm_up()
        run.steady()
        # A mesh has 3 entries per microbatch, so one row ends where the next begins.
        text = b"".join(run.rows)
        if text not in seen:
            seen.add(text)
            yield make("zb-auto", actions_of(run.rows), placement, microbatches)


_CODE: dict[Kind, int] = {kind: n for n, kind in enumerate(KINDS_IN_ROWS)}


def dispatched_schedule(
    meshes: int,
    microbatches: int,
    costs: Costs,
    limits: Sequence[float],
    weight_fraction: float,
    measure: Measure,
    effort: int,
) -> Iterator[Schedule]:
    """Yield the best schedule that dispatching gives; about `effort` actions are placed to find it."""
    placement = Placement.loop(meshes)
    frame = make("zb-auto", [()] * meshes, placement, microbatches)
    chain = Chain(frame, costs, limits, weight_fraction, measure)
    rows = dispatch(chain, chain.floor(), effort)
    if rows is not None:
        yield make("zb-auto", actions_of(rows), placement, microbatches)


class _Run:
    """The state of one run: clocks, counters, memory and bubble of each mesh."""

    def __init__(
        self,
        frame: Schedule,
        costs: Costs,
        limits: Sequence[float],
        weight_fraction: float,
        choices: Choices,
        least_gap: float,
    ) -> None:
        self.meshes, self.count = frame.meshes, frame.microbatches
        timer = Timer(frame, costs)
        self.cost: dict[str, list[float]] = {k: timer.table[k] for k in ("F", "I", "W")}
        size = per_stage(costs.size, frame, "size")
        hops = range(self.meshes - 1)
        self.down = [costs.delay(i, i + 1) + size[i] * costs.seconds_per_size(i, i + 1) for i in hops]
        self.up = [costs.delay(i + 1, i) + size[i] * costs.seconds_per_size(i + 1, i) for i in hops]
        self.limits, self.choices, self.least_gap = limits, choices, least_gap
        self.change = {"F": 1.0, "I": weight_fraction - 1.0, "W": -weight_fraction}
        self.clock = [0.0] * self.meshes
        self.done: dict[str, list[int]] = {k: [0] * self.meshes for k in ("F", "I", "W")}
        self.ends: dict[str, list[list[float]]] = {k: [[] for _ in range(self.meshes)] for k in ("F", "I")}
        self.held = [0.0] * self.meshes
        self.bubble = [0.0] * self.meshes
        self.largest_bubble = 0.0
        self.rows = [bytearray() for _ in range(self.meshes)]

    def ready(self, kind: str, i: int) -> float:
        """When the inputs of the next action of a kind are on mesh i."""
        m = self.done[kind][i]
        if kind == "F":
            return 0.0 if i == 0 else self.ends["F"][i - 1][m] + self.down[i - 1]
        if kind == "I":
            if i == self.meshes - 1:
                return self.ends["F"][i][m]
            return self.ends["I"][i + 1][m] + self.up[i]
        return 0.0

    def put(self, kind: Kind, i: int) -> None:
        """Mesh i does its next action of a kind."""
        now = self.clock[i]
        start = now if kind == "W" else max(now, self.ready(kind, i))
        row = self.rows[i]
        if start > now and row:
            self.bubble[i] += start - now
            if self.bubble[i] > self.largest_bubble:
                self.largest_bubble = self.bubble[i]
        end = self.clock[i] = start + self.cost[kind][i]
        if kind != "W":
            self.ends[kind][i].append(end)
        row.append(_CODE[kind])
        self.done[kind][i] += 1
        self.held[i] += self.change[kind]

    def warm_up(self) -> None:
        """Up to the first backward: as many forwards as memory and the backward's arrival allow.

        Each mesh stays one forward ahead of the next one, so mesh i leaves room for i more on
        mesh 0.
        """
        fwd = self.done["F"]
        for i in range(self.meshes):
            self.put("F", i)
        for i in reversed(range(self.meshes)):
            while i < self.meshes - 1 and fwd[i] < self.count and self._room_upstream(i):
                start = self._start_of_next_forward(i)
                arrival = self.ready("I", i)
                in_time = start + self.cost["F"][i] <= arrival + _TINY
                squeezed = self.choices.early and start < arrival - _TINY
                if not (fwd[i] <= fwd[i + 1] or in_time or squeezed):
                    break
                m = fwd[i]
                for j in range(i + 1):
                    if fwd[j] <= m:
                        self.put("F", j)
            self.put("I", i)

    def _room_upstream(self, i: int) -> bool:
        held = self.done["F"][i] + 1
        return all(held + i - j <= self.limits[j] + _TINY for j in range(i + 1))

    def _start_of_next_forward(self, i: int) -> float:
        m = self.done["F"][i]
        arrival = 0.0
        for j in range(i):
            if self.done["F"][j] > m:
                end = self.ends["F"][j][m]
            else:
                end = max(arrival, self.clock[j]) + self.cost["F"][j]
            arrival = end + self.down[j]
        return max(self.clock[i], arrival)

    def steady(self) -> None:
        """Rounds of one forward (downstream) and one backward (upstream) per mesh."""
        last = self.meshes - 1
        fwd, bwd = self.done["F"], self.done["I"]
        while bwd[0] < self.count:
            must = [False] * self.meshes
            for i in reversed(range(self.meshes)):
                if fwd[i] < self.count:
                    ahead_of = bwd[i] if i == last else fwd[i + 1] + must[i + 1]
                    must[i] = fwd[i] <= ahead_of
            progress = False
            for i in range(self.meshes):
                if must[i] and self._has_input(i):
                    progress |= self._forward(i)
            for i in reversed(range(self.meshes)):
                if bwd[i] == self.count or fwd[i] == bwd[i]:
                    continue
                if i < last and bwd[i + 1] <= bwd[i]:
                    continue
                arrival = self.ready("I", i)
                if not must[i] and fwd[i] < self.count and self._has_input(i):
                    begin = max(self.clock[i], self.ready("F", i))
                    harmless = begin + self.cost["F"][i] <= arrival + _TINY
                    fits = self.held[i] + 1 <= self.limits[i] + _TINY
                    if fits and (harmless or not self.choices.backward_first):
                        self._forward(i)
                self._fill(i, arrival)
                self.put("I", i)
                progress = True
            assert progress, "one microbatch fits everywhere, so something can always run"
        for i in range(self.meshes):
            while self._pending(i):
                self.put("W", i)

    def _has_input(self, i: int) -> bool:
        return i == 0 or self.done["F"][i - 1] > self.done["F"][i]

    def _pending(self, i: int) -> bool:
        return self.done["W"][i] < self.done["I"][i]

    def _forward(self, i: int) -> bool:
        """Free memory with weight-gradients, then run a forward; return False if there is not enough memory."""
        while self.held[i] + 1 > self.limits[i] + _TINY and self._pending(i):
            self.put("W", i)
        if self.held[i] + 1 > self.limits[i] + _TINY:
            return False
        self._fill(i, self.ready("F", i))
        self.put("F", i)
        return True

    def _fill(self, i: int, until: float) -> None:
        """Fills the gap before `until` with weight-gradients."""
        cost = self.cost["W"][i]
        while self._pending(i) and self.clock[i] + cost <= until + _TINY:
            self.put("W", i)
        gap = until - self.clock[i]
        if gap > max(_TINY, self.least_gap * cost) and self._pending(i):
            small = self.bubble[i] + gap <= self.largest_bubble + _TINY
            if not (small and self.choices.patient):
                self.put("W", i)
