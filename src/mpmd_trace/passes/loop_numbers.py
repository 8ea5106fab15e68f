"""Which loop over microbatches a fragment is of, in a step that has several."""

from __future__ import annotations

from collections.abc import Hashable


class LoopNumbers:
    """The number of the loop of each fragment, told by those that came before it on its mesh.

    A forward that has been there for its microbatch begins another loop, if there were others in between.
    """

    def __init__(self) -> None:
        self._loop: dict[str, int] = {}
        self._last: dict[str, int | None] = {}
        self._forwards: dict[str, set[tuple[Hashable, int | None]]] = {}

    def of(self, mesh: str, forward: Hashable, counter: int | None) -> int:
        """The loop of the next fragment on a mesh; `forward` tells forwards of a microbatch apart, None: a backward."""
        if forward is not None:
            seen = self._forwards.setdefault(mesh, set())
            if (forward, counter) in seen and self._last[mesh] != counter:
                self._loop[mesh] = self._loop.get(mesh, 0) + 1
                seen.clear()
            seen.add((forward, counter))
            self._last[mesh] = counter
        return self._loop.get(mesh, 0)
