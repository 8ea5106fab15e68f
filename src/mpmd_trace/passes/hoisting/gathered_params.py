"""When copies that fragments of a mesh share are in memory: from their first reader to their last, but for gaps."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from mpmd_trace.ir.attributes import MeshAttr
from mpmd_trace.ir.ops import FragmentOp, FuncOp
from mpmd_trace.passes.memory.liveness import Liveness, Places

#: The gap between the first fragment of the mesh and the first one that reads a copy.
_BEFORE = -1


@dataclasses.dataclass
class Copy:
    """A copy by the times of the fragments that read it.

    A *gap* lies between two readers, by the number of the first, with other fragments of the mesh in between; or, as
    number -1, before the first of them.  `dropped`: those in which the copy is not there.
    """

    readers: tuple[FragmentOp, ...]
    times: tuple[int, ...]
    #: The gaps, each with the times between which it lies.
    gaps: Mapping[int, tuple[int, int]]
    dropped: set[int] = dataclasses.field(default_factory=set)

    @property
    def is_late(self) -> bool:
        return _BEFORE in self.dropped

    @property
    def starts(self) -> tuple[FragmentOp, ...]:
        """The fragments in front of which the copy is made."""
        return tuple(r for i, r in enumerate(self.readers) if i == 0 or i - 1 in self.dropped)

    @property
    def made_again(self) -> int:
        """The number of times that the copy is made after the first."""
        return len(self.dropped) - self.is_late

    def is_held(self, time: int) -> bool:
        """Return whether the copy is there at a time."""
        first = self.gaps[_BEFORE][0] + 1 if _BEFORE in self.gaps else self.times[0] - 1
        return first <= time <= self.times[-1] and self._gap_around(time) not in self.dropped

    def gap(self, time: int) -> int | None:
        """Return the gap at a time, in which it may still be dropped."""
        gap = self._gap_around(time)
        return None if gap in self.dropped else gap

    def _gap_around(self, time: int) -> int | None:
        gap = bisect.bisect_left(self.times, time) - 1  # of the last reader before
        first, last = self.gaps.get(gap, (time, time))
        return gap if first < time < last else None

    def spans(self) -> Iterable[tuple[int, int]]:
        """Return the first and last time of each time that the copy is there."""
        begin = self.times[0] - 1
        if _BEFORE in self.gaps and not self.is_late:
            begin = self.gaps[_BEFORE][0] + 1
        for i in sorted(self.dropped - {_BEFORE}):
            yield begin, self.gaps[i][0]
            begin = self.gaps[i][1]
        yield begin, self.times[-1]


class Timeline:
    """The bytes that a device of a mesh holds, and the order of the fragments that may share copies."""

    def __init__(
        self,
        function: FuncOp,
        mesh: str,
        meshes: Mapping[str, MeshAttr],
        fragments: Sequence[FragmentOp],
        places: Callable[[], Places],
    ) -> None:
        """`places` gives those of the function, and is called once something is shared."""
        self._of = function, mesh, meshes
        self._places = places
        self._first = fragments[0] if fragments else None

    @functools.cached_property
    def base(self) -> list[float]:
        """The bytes at each time without copies."""
        return Liveness(*self._of, self._places()).profile()

    def copy(self, readers: Iterable[FragmentOp]) -> Copy:
        """Return what these fragments read."""
        time, place = self._places().time, self._places().on_mesh
        ordered = tuple(sorted(readers, key=time.__getitem__))
        times = tuple(map(time.__getitem__, ordered))
        gaps = {
            i: (time[a], time[b] - 1) for i, (a, b) in enumerate(itertools.pairwise(ordered)) if place[b] - place[a] > 1
        }
        if self._first is not None and self._first is not ordered[0]:
            gaps[_BEFORE] = time[self._first] - 2, times[0] - 1
        return Copy(ordered, times, gaps)
