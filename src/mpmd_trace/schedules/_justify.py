"""Shorter schedules by double justification: everything as late as it can be, then as early as it can be.

What is left between actions then gathers at the start, where the first pass finds gaps for whatever fits into them (in
project scheduling: Valls, Ballestin, Quintanilla, *Justification and RCPSP: a technique that pays*, 2005).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

from mpmd_trace.schedules._lower_bounds import Chain

_TINY = 1e-9

#: For each action what it waits for, and how long that takes to arrive.
Arrows = list[list[tuple[int, float]]]


class Project:
    """The actions of a chain with what each waits for: its data, and the one before it of its kind.

    Action m of kind k of mesh s has the number (3 s + k) M + m.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain, self.count = chain, chain.count
        kinds = zip(chain.forward, chain.input_grad, chain.weight_grad, strict=True)
        self.times = [time for three in kinds for time in three for _ in range(self.count)]
        self.before: Arrows = [[] for _ in self.times]
        self.after: Arrows = [[] for _ in self.times]
        for s in range(chain.meshes):
            forward, backward, weight = (
                range((3 * s + k) * self.count, (3 * s + k + 1) * self.count) for k in range(3)
            )
            for lane in (forward, backward, weight):
                for a, b in itertools.pairwise(lane):
                    self._add(a, b)
            for m in range(self.count):
                self._add(backward[m], weight[m])
                if s + 1 < chain.meshes:
                    self._add(forward[m], forward[m] + 3 * self.count, chain.down[s])
                    self._add(backward[m] + 3 * self.count, backward[m], chain.up[s])
                else:
                    self._add(forward[m], backward[m])

    def _add(self, a: int, b: int, wire: float = 0.0) -> None:
        self.before[b].append((a, wire))
        self.after[a].append((b, wire))

    def justified(self, rows: Sequence[Sequence[int]], rounds: int = 2) -> tuple[list[bytearray], float]:
        """Return orders that take no longer than `rows`, as codes of `KINDS_IN_ROWS`, and their time."""
        chain, frees, freed = self.chain, *self._memory(rows)
        best = order = self._order(rows, frees, freed)
        starts, ends = self._played(order, freed)
        shortest, times = self._time(ends), (starts, ends)
        tails = [chain.heads[-1] - head if chain.span else 0.0 for head in chain.heads]
        for _ in range(rounds):
            # What takes no time stays behind what it waits for, since sorting keeps the order of equals.
            backwards = order[::-1]
            backwards.sort(key=ends.__getitem__, reverse=True)
            _, left = self._placed(backwards, self.after, frees, tails)
            order = backwards[::-1]
            order.sort(key=left.__getitem__, reverse=True)
            starts, ends = self._placed(order, self.before, freed, [0.0] * chain.meshes)
            time = self._time(ends)
            if time >= shortest - _TINY:
                break
            best, shortest, times = order, time, (starts, ends)
        starts, ends = times
        return self._rows(sorted(best, key=lambda n: (starts[n], ends[n]))), shortest

    def _memory(self, rows: Sequence[Sequence[int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the forwards that gradients free memory for, and for forwards the gradients that do.

        A forward waits for as many input and weight gradients as must be over by then in the rows.
        """
        frees: dict[int, list[int]] = {}
        freed: dict[int, list[int]] = {}
        part = self.chain.fraction
        for s, row in enumerate(rows):
            room, first = self.chain.limits[s] - 1 + _TINY, 3 * s * self.count
            done = [0, 0, 0]
            for kind in row:
                if kind == 0:
                    f, i, w = done
                    # The fewest weight gradients with all those input gradients, then the fewest of these.
                    w = min(w, max(0, math.ceil(i - (room - (f - i)) / part))) if part else 0
                    if part < 1.0:
                        i = min(i, max(w, math.ceil((f - part * w - room) / (1.0 - part))))
                    else:
                        i = w
                    freed[first + f] = [first + k * self.count + number - 1 for k, number in ((1, i), (2, w)) if number]
                    for gradient in freed[first + f]:
                        frees.setdefault(gradient, []).append(first + f)
                done[kind] += 1
        return frees, freed

    def _order(
        self, rows: Sequence[Sequence[int]], frees: dict[int, list[int]], freed: dict[int, list[int]]
    ) -> list[int]:
        """Return all actions, each behind what it waits for, those of a mesh in the order of its row."""
        numbers = []
        for s, row in enumerate(rows):
            lanes = [itertools.count((3 * s + k) * self.count) for k in range(3)]
            numbers.append([next(lanes[kind]) for kind in row])
        missing = [len(needs) for needs in self.before]
        for number, gradients in freed.items():
            missing[number] += len(gradients)
        place = [0] * len(rows)
        order: list[int] = []
        meshes = list(range(len(rows)))
        while meshes:
            s = meshes.pop()
            while place[s] < len(numbers[s]) and not missing[numbers[s][place[s]]]:
                number = numbers[s][place[s]]
                place[s] += 1
                order.append(number)
                for user in frees.get(number, ()):
                    missing[user] -= 1
                for user, _ in self.after[number]:
                    missing[user] -= 1
                    if not missing[user] and user // (3 * self.count) != s:
                        meshes.append(user // (3 * self.count))
        return order

    def _played(self, order: Sequence[int], freed: dict[int, list[int]]) -> tuple[list[float], list[float]]:
        """Return when each action starts and ends in the order of the rows."""
        times, length = self.times, 3 * self.count
        free = [0.0] * self.chain.meshes
        starts, ends = [0.0] * len(times), [0.0] * len(times)
        for n in order:
            s = n // length
            start = free[s]
            for need, wire in self.before[n]:
                there = ends[need] + wire
                if there > start:
                    start = there
            for need in freed.get(n, ()):
                start = max(start, ends[need])
            starts[n] = start
            ends[n] = free[s] = start + times[n]
        return starts, ends

    def _placed(
        self, order: Sequence[int], needs: Arrows, memory: dict[int, list[int]], first: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when each action starts and ends if, in this order, each takes the first gap that is long enough.

        A mesh begins no sooner than at its time in `first`.
        """
        times, length = self.times, 3 * self.count
        starts, ends = [0.0] * len(times), [0.0] * len(times)
        begins: list[list[float]] = [[] for _ in first]
        stops: list[list[float]] = [[-math.inf] for _ in first]
        for n in order:
            s, time = n // length, times[n]
            start = first[s]
            for need, wire in needs[n]:
                there = ends[need] + wire
                if there > start:
                    start = there
            for need in memory.get(n, ()):
                start = max(start, ends[need])
            own, until = begins[s], stops[s]
            if start >= until[-1] - _TINY:
                own.append(start)
                until.append(start + time)
            else:
                at = bisect_right(until, start + _TINY) - 1
                while at < len(own) and start + time > own[at] + _TINY:
                    at += 1
                    start = max(start, until[at])
                own.insert(at, start)
                until.insert(at + 1, start + time)
            starts[n], ends[n] = start, start + time
        return starts, ends

    def _time(self, ends: Sequence[float]) -> float:
        """Return how long a step takes, or a mesh at most where steps overlap."""
        length = 3 * self.count
        heads = self.chain.heads if self.chain.span else [0.0] * self.chain.meshes
        return max(max(ends[s * length : (s + 1) * length]) - head for s, head in enumerate(heads))

    def _rows(self, order: Sequence[int]) -> list[bytearray]:
        """Return the orders of the meshes."""
        rows = [bytearray() for _ in range(self.chain.meshes)]
        for n in order:
            s, kind = divmod(n // self.count, 3)
            rows[s].append(kind)
        return rows
