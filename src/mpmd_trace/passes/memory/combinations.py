"""What a device of a mesh holds over a step, for many combinations of changes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from mpmd_trace.ir.core import Value
from mpmd_trace.passes.memory.liveness import Change, Liveness


class Combinations:
    """The bytes over a step when one change of each group is made.

    What a change does alone is found once, and a choice starts from the one before, which it mostly resembles.  Only
    values that changes of several groups are about are looked at again for each choice, since they live until the last
    of all their reads.
    """

    def __init__(self, held: Liveness, groups: Sequence[Sequence[Change]]) -> None:
        values = [{value for change in group for value, _ in (*change.unread, *change.read)} for group in groups]
        shared = {value for value, number in Counter(itertools.chain.from_iterable(values)).items() if number > 1}
        shared &= held.sizes.keys()
        self._held = held
        self._shared = [[_about(shared, change) for change in group] for group in groups] if shared else []
        alone = [[held.difference([_without(shared, change)]) for change in group] for group in groups]
        times = {0, held.end + 2}.union(held.steps, *itertools.chain.from_iterable(alone))
        for value in shared:
            times.update((held.start[value], held.ends[value] + 1, *(at + 1 for at in held.reads[value])))
        times.update(at + 1 for change in itertools.chain.from_iterable(self._shared) for _, at in change.read)
        self._place = {time: place for place, time in enumerate(sorted(times))}
        self._lengths = np.diff(np.fromiter(self._place, float))
        self._alone = [[self._at(steps) for steps in group] for group in alone]
        #: By how many bytes it becomes more with the choice before, but for shared values.
        self._steps = np.zeros(len(times))
        self._choice = [0] * len(groups)
        for places, more in (self._at(held.steps), *(group[0] for group in self._alone)):
            self._steps[places] += more

    def bytes(self, choice: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the bytes from each time at which they change to the next; `choice` is the change of each group."""
        for group, (before, now) in enumerate(zip(self._choice, choice, strict=True)):
            if now != before:
                places, less = self._alone[group][before]
                self._steps[places] -= less
                places, more = self._alone[group][now]
                self._steps[places] += more
        self._choice[:] = choice
        steps = self._steps.copy()
        shared = [self._shared[group][i] for group, i in enumerate(choice)] if self._shared else []
        for time, step in self._held.difference(shared).items():
            steps[self._place[time]] += step
        return np.cumsum(steps)[:-1]

    def peak(self, choice: Sequence[int]) -> float:
        """Return the most bytes at any time."""
        return float(self.bytes(choice).max())

    def above(self, limit: float, choice: Sequence[int]) -> float:
        """Return by how many bytes the limit is exceeded, over all times."""
        return float(np.sum(np.maximum(self.bytes(choice) - limit, 0.0) * self._lengths))

    def _at(self, steps: Mapping[int, float]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the places of the times at which the bytes change, and by how much they do."""
        places = np.fromiter(map(self._place.__getitem__, steps), int, len(steps))
        return places, np.fromiter(steps.values(), float, len(steps))


def _about(values: Container[Value], change: Change) -> Change:
    """Return the part of a change that is about the values."""
    unread, read = (tuple(pair for pair in pairs if pair[0] in values) for pairs in (change.unread, change.read))
    return Change(unread, read)


def _without(values: Container[Value], change: Change) -> Change:
    """Return the rest of it."""
    unread, read = (tuple(pair for pair in pairs if pair[0] not in values) for pairs in (change.unread, change.read))
    return Change(unread, read, change.made)
