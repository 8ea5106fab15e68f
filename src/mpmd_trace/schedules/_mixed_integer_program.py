"""The order of the actions of each mesh as a mixed-integer program.

A *lane* is one kind of action of one stage; its microbatches run in ascending order, which loses
nothing, since microbatches are alike. The start of each action is a variable. Two actions of a
mesh in different lanes may run either way round, unless the data flow decides; one binary says
which comes first. Memory is counted where a forward starts: a binary for each forward and each
backward of the mesh says what has been taken and given back by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpmd_trace.schedules._actions import Action, Kind
from mpmd_trace.schedules._costs import Costs, Timer, most_hidden, per_stage
from mpmd_trace.schedules._schedule import Schedule


@dataclass(frozen=True)
class Lane:
    """One kind of action of one stage, with its time.

    `hiding`: what of it is computation, and what are collectives that blocks hide.
    """

    stage: int
    kind: Kind
    mesh: int
    time: float
    hiding: tuple[float, float] = (0.0, 0.0)


@dataclass
class Row:
    """low <= sum of coefficient * variable."""

    low: float
    terms: dict[int, float] = field(default_factory=dict)

    def add(self, variable: int, coefficient: float) -> None:
        """Add to a coefficient."""
        self.terms[variable] = self.terms.get(variable, 0.0) + coefficient


class Flow:
    """The dependences of lanes for the same microbatch, and how early and late actions can start."""

    def __init__(self, frame: Schedule, costs: Costs, split: bool) -> None:
        self.microbatches = frame.microbatches
        timer = Timer(frame, costs)
        times, none = timer.table, [(0.0, 0.0)] * frame.stages
        kinds: tuple[Kind, ...] = ("F", "I", "W") if split else ("F", "B")
        feeds, mesh_of = frame.graph.feeds, frame.placement.mesh_of
        self.lanes = [
            Lane(s, kind, mesh, times[kind][s], timer.hiding.get(kind, none)[s])
            for s, mesh in enumerate(mesh_of)
            for kind in kinds
        ]
        number = {(lane.stage, lane.kind): n for n, lane in enumerate(self.lanes)}
        size = per_stage(costs.size, frame, "size")

        def wire(source: int, target: int, load: float) -> float:
            a, b = mesh_of[source], mesh_of[target]
            if costs.sends:
                load = costs.sends.get((source, target), 0.0)
            return costs.delay(a, b) + load * costs.seconds_per_size(a, b)

        back = kinds[1]
        self.needs: list[list[tuple[int, float]]] = [[] for _ in self.lanes]
        for stage in range(frame.stages):
            gradient = sum(size[p] for p in feeds[stage])
            self.needs[number[stage, back]].append((number[stage, "F"], 0.0))
            if split:
                self.needs[number[stage, "W"]].append((number[stage, "I"], 0.0))
            for source in feeds[stage]:
                self.needs[number[stage, "F"]].append((number[source, "F"], wire(source, stage, size[source])))
                self.needs[number[source, back]].append((number[stage, back], wire(stage, source, gradient)))
        self.order = self._sorted()
        # A set of lanes is a number with one bit each.
        self.before = [0] * len(self.lanes)
        self.after = [0] * len(self.lanes)
        for n in self.order:
            for need, _ in self.needs[n]:
                self.before[n] |= self.before[need] | 1 << need
        for n in reversed(self.order):
            for need, _ in self.needs[n]:
                self.after[need] |= self.after[n] | 1 << n
        self.mates = [[k for k, lane in enumerate(self.lanes) if lane.mesh == mesh] for mesh in range(frame.meshes)]

    def _sorted(self) -> list[int]:
        open_needs = [len(needs) for needs in self.needs]
        users: list[list[int]] = [[] for _ in self.lanes]
        for n, needs in enumerate(self.needs):
            for need, _ in needs:
                users[need].append(n)
        order = [n for n, count in enumerate(open_needs) if count == 0]
        for n in order:
            for user in users[n]:
                open_needs[user] -= 1
                if open_needs[user] == 0:
                    order.append(user)
        return order

    def heads(self, microbatches: int) -> list[list[float]]:
        """For each lane and the first microbatches, a time before which it cannot start."""
        starts = [[0.0] * microbatches for _ in self.lanes]
        for m in range(microbatches):
            for n in self.order:
                own = self.lanes[n]
                soonest = starts[n][m - 1] + own.time if m else 0.0
                for need, wire in self.needs[n]:
                    soonest = max(soonest, starts[need][m] + self.lanes[need].time + wire)
                # All that the data flow puts before it on its mesh runs there one by one.
                earlier = [k for k in self.mates[own.mesh] if self.before[n] >> k & 1]
                if earlier:
                    work = sum(self.lanes[k].time for k in earlier) * (m + 1) + own.time * m
                    soonest = max(soonest, min(starts[k][0] for k in earlier) + work)
                starts[n][m] = soonest
        return starts

    def tails(self) -> list[list[float]]:
        """For each lane and microbatch, the least time from its start to the end of everything."""
        left = [[0.0] * self.microbatches for _ in self.lanes]
        for m in reversed(range(self.microbatches)):
            for n in reversed(self.order):
                own = self.lanes[n]
                longest = left[n][m + 1] if m + 1 < self.microbatches else 0.0
                for user in range(len(self.lanes)):
                    for need, wire in self.needs[user]:
                        if need == n:
                            longest = max(longest, wire + left[user][m])
                later = [k for k in self.mates[own.mesh] if self.after[n] >> k & 1]
                if later:
                    count = self.microbatches - m
                    work = sum(self.lanes[k].time for k in later) * count + own.time * (count - 1)
                    longest = max(longest, work)
                left[n][m] = own.time + longest
        return left

    def floor(self, span: bool) -> float:
        """Return a time that follows from the work of each mesh, with blocks that hide as much as there is to hide.

        The work bounds the span; the makespan counts the first start of the mesh, too. No block takes less than its
        forward or its backward alone, so it begins no earlier.
        """
        heads = self.heads(1)
        best = 0.0
        for mates in self.mates:
            if mates:
                lanes = [self.lanes[k] for k in mates]
                hidden = most_hidden((lane.kind == "F", *lane.hiding) for lane in lanes)
                work = (sum(lane.time for lane in lanes) - hidden) * self.microbatches
                best = max(best, work + (0.0 if span else min(heads[k][0] for k in mates)))
        return best


class OrderProblem:
    """Variables and rows: first the starts, lane by lane, then the binaries, then the objective."""

    def __init__(
        self,
        frame: Schedule,
        flow: Flow,
        limits: Sequence[float],
        weight_fraction: float,
        span: bool,
        horizon: float,
        upper: float,
    ) -> None:
        self.flow, self.count = flow, frame.microbatches
        self.lanes = flow.lanes
        self.rows: list[Row] = []
        heads, tails = flow.heads(frame.microbatches), flow.tails()
        self.low = [t for lane in heads for t in lane]
        self.high = [max(horizon - t, 0.0) for lane in tails for t in lane]
        self.starts = len(self.low)
        self._binary: dict[tuple[int, int, int, int], int] = {}
        for mates in flow.mates:
            for x, a in enumerate(mates):
                for b in mates[x + 1 :]:
                    self._either_way(a, b)
        self.objective = len(self.low)
        self.low.append(flow.floor(span))
        self.high.append(upper)
        self._flow_rows()
        self._order_rows()
        self._memory_rows(frame, limits, weight_fraction)
        self._objective_rows(span)

    def start(self, lane: int, m: int) -> int:
        """Return the variable of a start."""
        return lane * self.count + m

    def _either_way(self, a: int, b: int) -> None:
        """Binaries for the pairs of two lanes whose order is open: 1 means that a comes first."""
        for i in range(self.count):
            for j in range(self.count):
                if self._known(a, i, b, j) is None:
                    self._binary[a, i, b, j] = len(self.low)
                    first, second = self.start(a, i), self.start(b, j)
                    can = self.low[first] + self.lanes[a].time <= self.high[second] + 1e-9
                    must = self.low[second] + self.lanes[b].time > self.high[first] + 1e-9
                    self.low.append(1.0 if must else 0.0)
                    self.high.append(1.0 if can or must else 0.0)

    def _known(self, a: int, i: int, b: int, j: int) -> bool | None:
        """Return whether action i of lane a runs before j of b, where the data flow decides."""
        if a == b:
            return i < j
        if i <= j and self.flow.before[b] >> a & 1:
            return True
        if j <= i and self.flow.before[a] >> b & 1:
            return False
        return None

    def _before(self, row: Row, a: int, i: int, b: int, j: int, factor: float) -> None:
        """Add factor * (1 if action i of lane a runs before j of lane b, else 0)."""
        known = self._known(a, i, b, j)
        if known is not None:
            row.low -= factor * known
        elif a < b:
            row.add(self._binary[a, i, b, j], factor)
        else:
            row.low -= factor
            row.add(self._binary[b, j, a, i], -factor)

    def _after(self, later: int, earlier: int, time: float) -> None:
        self.rows.append(Row(time, {later: 1.0, earlier: -1.0}))

    def _flow_rows(self) -> None:
        for n, lane in enumerate(self.lanes):
            for m in range(self.count):
                if m:
                    self._after(self.start(n, m), self.start(n, m - 1), lane.time)
                for need, wire in self.flow.needs[n]:
                    time = self.lanes[need].time + wire
                    self._after(self.start(n, m), self.start(need, m), time)

    def _order_rows(self) -> None:
        for (a, i, b, j), y in self._binary.items():
            first, second = self.start(a, i), self.start(b, j)
            for x, z, time, coefficient, constant in (
                (first, second, self.lanes[a].time, -1.0, 1.0),
                (second, first, self.lanes[b].time, 1.0, 0.0),
            ):
                # z starts after x unless the binary says otherwise; `slack` then makes it idle.
                slack = self.high[x] + time - self.low[z]
                if slack > 0:
                    row = Row(time - slack * constant, {z: 1.0, x: -1.0})
                    row.add(y, coefficient * slack)
                    self.rows.append(row)
            # An earlier action of a comes before j too, and action i before a later one of b.
            for key in ((a, i - 1, b, j), (a, i, b, j + 1)):
                other = self._binary.get(key)
                if other is not None:
                    self.rows.append(Row(0.0, {other: 1.0, y: -1.0}))

    def _memory_rows(self, frame: Schedule, limits: Sequence[float], weight_fraction: float) -> None:
        share = per_stage(1.0, frame, "activation")
        kept = {"B": 1.0, "I": 1.0 - weight_fraction, "W": weight_fraction}
        for mates, limit in zip(self.flow.mates, limits, strict=True):
            most = self.count * sum(share[self.lanes[k].stage] for k in mates if self.lanes[k].kind == "F")
            if most <= limit + 1e-9:
                continue
            for n in mates:
                for m in range(self.count) if self.lanes[n].kind == "F" else ():
                    own = share[self.lanes[n].stage]
                    row = Row(own - limit - 1e-9)
                    for k in mates:
                        lane = self.lanes[k]
                        factor = share[lane.stage] * (-1.0 if lane.kind == "F" else kept[lane.kind])
                        for i in range(self.count) if factor else ():
                            self._before(row, k, i, n, m, factor)
                    if row.terms or row.low > 0:
                        self.rows.append(row)

    def _objective_rows(self, span: bool) -> None:
        for mates in self.flow.mates:
            ends = [k for k in mates if not any(self.flow.after[k] >> n & 1 for n in mates)]
            begins = [k for k in mates if not any(self.flow.before[k] >> n & 1 for n in mates)]
            for k in ends:
                last = {self.objective: 1.0, self.start(k, self.count - 1): -1.0}
                if not span:
                    self.rows.append(Row(self.lanes[k].time, last))
                    continue
                for n in begins:
                    self.rows.append(Row(self.lanes[k].time, {**last, self.start(n, 0): 1.0}))

    def orders(self, values: Sequence[float]) -> list[list[Action]]:
        """Return the order of each mesh, as its binaries say.

        Starts do not say which of several actions at one time comes first, and the memory depends on that.
        """
        place = {n: p for p, n in enumerate(self.flow.order)}
        orders: list[list[Action]] = []
        for mates in self.flow.mates:
            actions = [(k, m) for k in mates for m in range(self.count)]
            steps = sorted(
                (sum(self._is_before(values, *other, k, m) for other in actions), place[k], m, k) for k, m in actions
            )
            orders.append([Action(self.lanes[k].stage, self.lanes[k].kind, m) for _, _, m, k in steps])
        return orders

    def _is_before(self, values: Sequence[float], a: int, i: int, b: int, j: int) -> bool:
        known = self._known(a, i, b, j)
        if known is not None:
            return known
        return values[self._binary[a, i, b, j]] > 0.5 if a < b else values[self._binary[b, j, a, i]] < 0.5
