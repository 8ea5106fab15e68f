"""Tell the loops over microbatches of a step apart, for each of its fragments."""

from __future__ import annotations

from collections.abc import Hashable


class LoopNumbers:
    """Numbers the loops of a step; gets its fragments in the order of the program.

    A forward begins another loop if, of the forwards of the current loop on its mesh, the last one is of another
    microbatch, and either one is the same forward of the same microbatch, or none is the same forward. (In one
    microbatch, those of several computations may follow each other, as of encoders and then a model.) All that follows
    is of the new loop, on other meshes, too, some of which may have only backwards in it.
    """

    def __init__(self) -> None:
        self._loop = 0
        #: By mesh: the loop of its last forward, and the microbatch of that.
        self._current: dict[str, int] = {}
        self._last: dict[str, int | None] = {}
        #: By mesh: the forwards of that loop so far, with their microbatches and without.
        self._forwards: dict[str, set[tuple[Hashable, int | None]]] = {}
        self._names: dict[str, set[Hashable]] = {}

    def of(self, mesh: str, forward: Hashable, counter: int | None) -> int:
        """Return the number of the loop of the next fragment.

        Args:
            mesh: the mesh of the fragment.
            forward: what identifies the computation of a forward; None for a backward.
            counter: the microbatch.
        """
        if forward is not None:
            seen = self._forwards.setdefault(mesh, set())
            names = self._names.setdefault(mesh, set())
            begins = seen and self._last[mesh] != counter and ((forward, counter) in seen or forward not in names)
            if begins and self._current[mesh] == self._loop:
                self._loop += 1
            if self._current.get(mesh) != self._loop:
                seen.clear()
                names.clear()
            self._current[mesh] = self._loop
            seen.add((forward, counter))
            names.add(forward)
            self._last[mesh] = counter
        return self._loop
