"""Shorter schedules by local search, in sweeps through time, forward and backward in turns.

In a sweep each mesh decides again, step by step, whether the next ones join in a block, a block comes apart, or one of
the next steps comes first. What is behind is done, so its times are known; what is ahead is as in the last sweep. So a
change is worth as much as it shortens the longest path through these steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from mpmd_trace.schedules._lower_bounds import Chain

_TINY = 1e-9

PARTS = ((0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2))
"""The kinds that each number in a row stands for: forwards, input and weight gradients; the last ones are blocks."""

_CODES = {parts: code for code, parts in enumerate(PARTS)}

WINDOW = 3
"""How many steps behind the next one may join it, or come first."""

SHORTER = 0.9
"""The part of the time that no path is worth being shorter than."""

WORSE = 1.01
"""By which factor orders may be longer than the best for the search to go on from them."""

PATIENCE = 12
"""How many sweeps that do not help end the search."""

Order: TypeAlias = list[tuple[int, tuple[int, ...]]]
"""Meshes and the actions of a step, each behind what it waits for; action m of kind k of mesh s has the number
(3 s + k) M + m."""


@dataclass(slots=True)
class _Step:
    """Actions that run as one, and the bits of their kinds; when inputs are there, and the longest path behind it."""

    actions: tuple[int, ...]
    kinds: int
    ready: float
    behind: float


@dataclass
class _Times:
    """Of each action: when its inputs are there, when its mesh is free before it, and when it ends."""

    ready: list[float]
    free: list[float]
    end: list[float]


class LocalSearch:
    """The actions of a chain with what each waits for, and what waits for it."""

    def __init__(self, chain: Chain) -> None:
        self.chain, count = chain, chain.count
        kinds = zip(chain.forward, chain.input_grad, chain.weight_grad, chain.hides, strict=True)
        self._durations = [
            {1: f, 2: i, 4: w, 3: f + i - fi, 5: f + w - fw, 7: f + i + w - fiw} for f, i, w, (fi, fw, fiw) in kinds
        ]
        self._bits = ([1] * count + [2] * count + [4] * count) * chain.meshes
        self._needs: list[list[tuple[int, float]]] = [[] for _ in range(3 * count * chain.meshes)]
        self._users: list[list[tuple[int, float]]] = [[] for _ in self._needs]
        for s, m in itertools.product(range(chain.meshes), range(count)):
            f, i, w = ((3 * s + k) * count + m for k in range(3))
            arrows = [(i, w, 0.0), (f, i, 0.0)]
            if s + 1 < chain.meshes:
                arrows[1:] = [(f, f + 3 * count, chain.down[s]), (i + 3 * count, i, chain.up[s])]
            for a, b, wire in arrows:
                self._needs[b].append((a, wire))
                self._users[a].append((b, wire))
        # A span counts from when its mesh can begin: backward in time, meshes begin at different times.
        heads = chain.heads if chain.span else [0.0] * chain.meshes
        self._late = max(heads)
        self._begins, self._begins_back = [0.0] * chain.meshes, [self._late - head for head in heads]
        # What a step takes of the memory, and what it gives back, by the bits of its kinds.
        part = chain.fraction
        self._takes = [float(kinds & 1) for kinds in range(8)]
        self._gives = [(1.0 - part) * (kinds >> 1 & 1) + part * (kinds >> 2) for kinds in range(8)]
        # What the sweep that goes on knows of the orders before it, and when what it has done ends.
        self._before = self._behind = _Times([], [], [])
        self._ends: list[float] = []

    def shortened(self, rows: Sequence[bytearray], bound: float, most: int) -> tuple[list[bytearray], float, int]:
        """Return orders that take no longer than `rows`, their time, and the number of sweeps, `most` of them.

        It ends when the last few have not helped, or the time is that of the bound.
        """
        steps: list[list[tuple[int, ...]]] = []
        for s, row in enumerate(rows):
            lanes = [itertools.count((3 * s + k) * self.chain.count) for k in range(3)]
            steps.append([tuple(next(lanes[kind]) for kind in PARTS[code]) for code in row])
        order = self._swept(steps)
        times = self._played(order)
        shortest = self._time(times)
        best, shortest_times = order, times
        sweep, helped = 0, 0
        while sweep < most and sweep < helped + PATIENCE and shortest > bound * (1 + _TINY):
            self._turn()
            back = self._played(order[::-1])
            self._before, self._behind = back, times
            if sweep % 2:
                order = order[::-1]
            else:
                self._turn()
                self._before, self._behind = times, back
            steps = [[] for _ in rows]
            for s, step in order:
                steps[s].append(step)
            order = self._swept(steps, SHORTER * shortest + self._late)
            if sweep % 2:
                self._turn()
                order = order[::-1]
            times = self._played(order)
            time = self._time(times)
            sweep += 1
            if time < shortest - _TINY:
                best, shortest, shortest_times, helped = order, time, times, sweep
            elif time > WORSE * shortest:
                order, times = best, shortest_times
        result = [bytearray() for _ in rows]
        for s, step in best:
            result[s].append(_CODES[tuple(sorted(n // self.chain.count % 3 for n in step))])
        return result, shortest, sweep

    def _turn(self) -> None:
        """Turn the direction of time."""
        self._needs, self._users = self._users, self._needs
        self._begins, self._begins_back = self._begins_back, self._begins
        self._takes, self._gives = self._gives, self._takes

    def _time(self, times: _Times) -> float:
        """Return how long a step takes, or a mesh at most where steps overlap."""
        size = 3 * self.chain.count
        last = [max(times.end[s * size : (s + 1) * size]) for s in range(self.chain.meshes)]
        return max(end + begin for end, begin in zip(last, self._begins_back, strict=True)) - self._late

    def _kinds(self, step: Sequence[int]) -> int:
        return self._bits[step[0]] if len(step) == 1 else sum(map(self._bits.__getitem__, step))

    def _played(self, order: Order) -> _Times:
        size = len(self._needs)
        times = _Times([-math.inf] * size, [0.0] * size, [0.0] * size)
        ready, ends, free = times.ready, times.end, self._begins.copy()
        for s, step in order:
            start = free[s]
            for n in step:
                times.free[n] = free[s]
                for need, wire in self._needs[n]:
                    arrival = ends[need] + wire
                    if arrival > ready[n]:
                        ready[n] = arrival
                if ready[n] > start:
                    start = ready[n]
            free[s] = start + self._durations[s][self._kinds(step)]
            for n in step:
                ends[n] = free[s]
        return times

    def _swept(self, steps: Sequence[Sequence[tuple[int, ...]]], target: float | None = None) -> Order:
        """Return the steps of the meshes in order of time, changed where that helps if there is a target."""
        left = [list(reversed(row)) for row in steps]
        order: Order = []
        ends = self._ends = [-1.0] * len(self._needs)
        free, held = self._begins.copy(), [0.0] * len(left)
        waiting: dict[int, set[int]] = {}
        heap = [(begin, s) for s, begin in enumerate(free)]
        heapify(heap)
        while heap:
            now, s = heappop(heap)
            row = left[s]
            if not row:
                continue
            start, missing = free[s], -1
            for n in row[-1]:
                for need, wire in self._needs[n]:
                    arrival = ends[need] + wire
                    if ends[need] < 0.0:
                        missing = need
                    elif arrival > start:
                        start = arrival
            if missing >= 0:
                waiting.setdefault(missing, set()).add(s)
                continue
            if start > now + _TINY:
                heappush(heap, (start, s))
                continue
            if target is not None:
                length, chosen = self._best(s, row[: -2 - WINDOW : -1], free[s], held[s], target)
                if length:
                    row[-length:] = [step.actions for step in reversed(chosen)]
                    start = max([free[s], *(ends[need] + wire for n in row[-1] for need, wire in self._needs[n])])
            step = row.pop()
            kinds = self._kinds(step)
            free[s] = start + self._durations[s][kinds]
            held[s] += self._takes[kinds] - self._gives[kinds]
            order.append((s, step))
            heappush(heap, (free[s], s))
            for n in step:
                ends[n] = free[s]
                for other in waiting.pop(n, ()):
                    heappush(heap, (max(free[other], now), other))
        return order

    def _step(self, actions: tuple[int, ...]) -> _Step:
        """Return a step that is ahead; inputs that are not made yet are there when they were before."""
        ready, behind = 0.0, -math.inf
        for n in actions:
            if self._behind.ready[n] > behind:
                behind = self._behind.ready[n]
            for need, wire in self._needs[n]:
                end = self._ends[need]
                arrival = (self._before.end[need] if end < 0.0 else end) + wire
                if arrival > ready:
                    ready = arrival
        return _Step(actions, self._kinds(actions), ready, behind)

    def _can_start(self, actions: tuple[int, ...]) -> bool:
        """Return whether all inputs of a step are made."""
        return all(self._ends[need] >= 0.0 for n in actions for need, _ in self._needs[n])

    def _best(
        self, s: int, rest: Sequence[tuple[int, ...]], free: float, held: float, target: float
    ) -> tuple[int, list[_Step]]:
        """Return how many of the next steps to replace, and by what, so that the longest path through them is shortest.

        Of those that are equal, or below the target, it is what ends first.
        """
        first = self._movable(rest)
        if not first and len(rest[0]) == 1:
            return 0, []
        window = [self._step(actions) for actions in rest[: max(first, default=0) + 1]]
        old: dict[int, tuple[float, float]] = {}
        best, result = (0.0, _TINY), (0, window)
        for last, changed in self._changes(s, window, first):
            after = self._behind.free[rest[last][0]]
            if last not in old:
                old[last] = self._longest(s, window[: last + 1], after, free, held)
            new = self._longest(s, changed, after, free, held)
            gain = max(old[last][0], target) - max(new[0], target)
            worth = (gain if abs(gain) > _TINY else 0.0, old[last][1] - new[1])
            if worth > best:
                best, result = worth, (last + 1, changed)
        return result

    def _longest(self, s: int, steps: Sequence[_Step], after: float, free: float, held: float) -> tuple[float, float]:
        """Return the longest path through steps of a mesh, and when they end; infinite if memory does not suffice."""
        longest, end = 0.0, free
        limit, durations = self.chain.limits[s] + _TINY, self._durations[s]
        for step in steps:
            held += self._takes[step.kinds]
            if held > limit:
                return math.inf, math.inf
            held -= self._gives[step.kinds]
            end = (step.ready if step.ready > end else end) + durations[step.kinds]
            if end + step.behind > longest:
                longest = end + step.behind
        return max(longest, end + after), end

    def _movable(self, rest: Sequence[tuple[int, ...]]) -> list[int]:
        """Return which of the next steps can come before the first one.

        It has all of its inputs, and the steps between have no other action of its kind.
        """
        movable = []
        passed = self._kinds(rest[0])
        for last, actions in enumerate(rest[1:], 1):
            if passed == 7:  # all three
                break
            kinds = self._kinds(actions)
            if not kinds & passed and self._can_start(actions):
                movable.append(last)
            passed |= kinds
        return movable

    def _changes(self, s: int, window: list[_Step], movable: Sequence[int]) -> Iterator[tuple[int, list[_Step]]]:
        """Yield other steps for the first ones of the window, with the number of the last of them."""
        first, durations = window[0], self._durations[s]
        for last in movable:
            step = window[last]
            yield last, [step, *window[:last]]
            if self.chain.has_blocks and first.kinds | step.kinds in durations:
                yield last, [self._step(first.actions + step.actions), *window[1:last]]
        for n in first.actions if len(first.actions) > 1 else ():
            rest = tuple(other for other in first.actions if other != n)
            if self._kinds(rest) in durations:
                one, others = self._step((n,)), self._step(rest)
                yield 0, [one, others]
                yield 0, [others, one]
