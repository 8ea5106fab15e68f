"""Shorter schedules by double justification: everything as late as it can be, then as early as it can be.

What is left between actions then gathers at the start, where the first pass finds gaps for whatever fits into them (in
project scheduling: Valls, Ballestin, Quintanilla, *Justification and RCPSP: a technique that pays*, 2005).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mpmd_trace.schedules._lower_bounds import Chain

_TINY = 1e-9

Needs: TypeAlias = list[tuple[int, float, int, int, float]]
"""Of each action: its mesh, its time, the one before it of its kind, where its data comes from, and for how long."""


class Project:
    """The actions of a chain with what each waits for: its data, and the one before it of its kind.

    Action m of kind k of mesh s has the number (3 s + k) M + m. The first action of each kind waits for the start of
    its mesh, 3 P M + s. The last number, 3 P M + P, is what is there from the beginning.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain, self.count, self.size = chain, chain.count, 3 * chain.count * chain.meshes
        self.always = self.size + chain.meshes
        # Actions of one kind of one mesh take their data from those of another, (3 s + k) by (3 s + k).
        sources: dict[int, tuple[int, float]] = {}
        for s in range(chain.meshes):
            forward, backward, weight = range(3 * s, 3 * s + 3)
            sources[weight] = backward, 0.0
            if s + 1 < chain.meshes:
                sources[forward + 3] = forward, chain.down[s]
                sources[backward] = backward + 3, chain.up[s]
            else:
                sources[backward] = forward, 0.0
        readers = {source: (lane, wire) for lane, (source, wire) in sources.items() if lane % 3 != 2}
        self.before, self.after = self._needs(sources, -1), self._needs(readers, 1)
        # If time runs backward, input gradients wait for their weight gradients, too.
        self.weights = [n + self.count if n // self.count % 3 == 1 else self.always for n in range(self.size)]

    def _needs(self, links: Mapping[int, tuple[int, float]], step: int) -> Needs:
        chain, count = self.chain, self.count
        needs: Needs = []
        times = [t for three in zip(chain.forward, chain.input_grad, chain.weight_grad, strict=True) for t in three]
        for lane, time in enumerate(times):
            numbers = range(lane * count, (lane + 1) * count)
            source, wire = links.get(lane, (None, 0.0))
            start = numbers[0] if step < 0 else numbers[-1]
            for n in numbers:
                previous = self.size + lane // 3 if n == start else n + step
                data = self.always if source is None else n + (source - lane) * count
                needs.append((lane // 3, time, previous, data, wire))
        return needs

    def justified(
        self, rows: Sequence[bytearray], order: list[int] | None = None, rounds: int = 2
    ) -> tuple[list[bytearray], float]:
        """Return orders that take no longer than `rows`, as codes of `KINDS_IN_ROWS`, and their time.

        `order` has all actions, each behind what it waits for, those of a mesh in the order of its row.
        """
        chain = self.chain
        order = self._order(rows) if order is None else order
        inputs, weights, forwards = self._memory(rows)
        ends = self._played(order)
        shortest, best = self._time(ends), None
        heads = [0.0] * chain.meshes
        tails = [chain.heads[-1] - head for head in chain.heads] if chain.span else heads
        for _ in range(rounds):
            # What takes no time stays behind what it waits for, since sorting keeps the order of equals.
            backwards = order[::-1]
            backwards.sort(key=ends.__getitem__, reverse=True)
            _, left = self._placed(backwards, self.after, self.weights, forwards, tails)
            order = backwards[::-1]
            order.sort(key=left.__getitem__, reverse=True)
            starts, ends = self._placed(order, self.before, inputs, weights, heads)
            time = self._time(ends)
            if time >= shortest - _TINY:
                break
            shortest, best = time, (order, starts, ends)
        return (self._rows(*best) if best else list(rows)), shortest

    def _memory(self, rows: Sequence[bytearray]) -> tuple[list[int], list[int], list[int]]:
        """Return for forwards the input and the weight gradient that free memory for them, and for these the forward.

        A forward waits for as many input and weight gradients as must be over by then in the rows.
        """
        inputs, weights, forwards = ([self.always] * self.size for _ in range(3))
        part, count, ceil = self.chain.fraction, self.count, math.ceil
        for s, row in enumerate(rows):
            room, first = self.chain.limits[s] - 1 + _TINY, 3 * s * count
            f = i = w = 0
            for kind in row:
                if kind == 1:
                    i += 1
                elif kind == 2:
                    w += 1
                else:
                    if f > room:
                        # The fewest weight gradients with all those input gradients, then the fewest of these.
                        least = min(w, max(0, ceil(i - (room - (f - i)) / part))) if part else 0
                        number = least
                        if part < 1.0:
                            number = min(i, max(least, ceil((f - part * least - room) / (1.0 - part))))
                        # The first forward that waits for a gradient is the last one if time runs backward.
                        if number:
                            gradient = inputs[first + f] = first + count + number - 1
                            forwards[gradient] = min(forwards[gradient], first + f)
                        if least:
                            gradient = weights[first + f] = first + 2 * count + least - 1
                            forwards[gradient] = min(forwards[gradient], first + f)
                    f += 1
        return inputs, weights, forwards

    def _order(self, rows: Sequence[bytearray]) -> list[int]:
        """Return all actions, each behind what it waits for, those of a mesh in the order of its row."""
        count, last = self.count, len(rows) - 1
        done = [[0, 0, 0] for _ in rows]
        order: list[int] = []
        meshes = list(range(len(rows)))
        while meshes:
            s = meshes.pop()
            before = len(order)
            own, row = done[s], rows[s]
            for kind in row[sum(own) :]:
                m = own[kind]
                if (kind == 0 and s and m == done[s - 1][0]) or (kind == 1 and s < last and m == done[s + 1][1]):
                    break
                order.append((3 * s + kind) * count + m)
                own[kind] += 1
            if len(order) > before:
                meshes += [other for other in (s - 1, s + 1) if 0 <= other <= last]
        return order

    def _played(self, order: Sequence[int]) -> list[float]:
        """Return when each action ends in this order; what it waits for on its own mesh is before it."""
        ends = [0.0] * (self.always + 1)
        free = [0.0] * self.chain.meshes
        needs = self.before
        for n in order:
            s, time, _, data, wire = needs[n]
            start = ends[data] + wire
            if free[s] > start:
                start = free[s]
            ends[n] = free[s] = start + time
        return ends

    def _placed(
        self, order: Sequence[int], needs: Needs, one: Sequence[int], two: Sequence[int], first: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when each action starts and ends if, in this order, each takes the first gap that is long enough.

        `one` and `two` are what actions wait for besides. A mesh begins no sooner than at its time in `first`.
        """
        starts = [0.0] * self.size
        ends = [*starts, *first, 0.0]
        begins: list[list[float]] = [[] for _ in first]
        stops: list[list[float]] = [[-math.inf] for _ in first]
        for n in order:
            s, time, previous, data, wire = needs[n]
            start = ends[data] + wire
            if (there := ends[previous]) > start:
                start = there
            if (there := ends[one[n]]) > start:
                start = there
            if (there := ends[two[n]]) > start:
                start = there
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

    def _rows(self, order: Sequence[int], starts: Sequence[float], ends: Sequence[float]) -> list[bytearray]:
        """Return the orders of the meshes."""
        rows = [bytearray() for _ in range(self.chain.meshes)]
        for n in sorted(sorted(order, key=ends.__getitem__), key=starts.__getitem__):
            s, kind = divmod(n // self.count, 3)
            rows[s].append(kind)
        return rows
