"""Which loop over microbatches a fragment is of, in a step that has several."""

from __future__ import annotations

from collections.abc import Hashable


class LoopNumbers:
    """The number of the loop of each fragment, from those that came before it on its mesh.

    A forward that has been there for its microbatch begins another loop, if there were others in between; so does one
    that has not been there for any, unless it follows one of its microbatch, as encoders and then a model do.
    """

    def __init__(self) -> None:
        self._loop: dict[str, int] = {}
        self._last: dict[str, int | None] = {}
        self._forwards: dict[str, set[tuple[Hashable, int | None]]] = {}
        self._names: dict[str, set[Hashable]] = {}

    def of(self, mesh: str, forward: Hashable, counter: int | None) -> int:
        """The loop of the next fragment on a mesh; `forward` tells forwards of a microbatch apart, None: a backward."""
        if forward is not None:
            seen = self._forwards.setdefault(mesh, set())
            names = self._names.setdefault(mesh, set())
            if seen and self._last[mesh] != counter and ((forward, counter) in seen or forward not in names):
                self._loop[mesh] = self._loop.get(mesh, 0) + 1
                seen.clear()
                names.clear()
            seen.add((forward, counter))
            names.add(forward)
            self._last[mesh] = counter
        return self._loop.get(mesh, 0)
