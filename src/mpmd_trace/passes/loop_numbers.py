"""Which loop over microbatches a fragment is of, in a step that has several."""

from __future__ import annotations

from collections.abc import Hashable


class LoopNumbers:
    """The number of the loop of each fragment, from those that came before it in the program.

    A forward that has been on its mesh for its microbatch begins another loop, if there were others in between; so does
    one that has not been there for any, unless it follows one of its microbatch, as encoders and then a model do.
    What follows on other meshes is of that loop, too: a mesh may have nothing but backwards in it.
    """

    def __init__(self) -> None:
        self._loop = 0
        #: The loop of the forwards of a mesh that are known.
        self._current: dict[str, int] = {}
        self._last: dict[str, int | None] = {}
        self._forwards: dict[str, set[tuple[Hashable, int | None]]] = {}
        self._names: dict[str, set[Hashable]] = {}

    def of(self, mesh: str, forward: Hashable, counter: int | None) -> int:
        """Return the loop of the next fragment on a mesh; `forward`: that of a microbatch, None for a backward."""
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
