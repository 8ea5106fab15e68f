"""Whether the names in a program and the names in a configuration fit together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend.errors import problem


class Assigned(Protocol):
    """Where a name is assigned."""

    @property
    def mesh(self) -> str: ...

    @property
    def stage(self) -> int | None: ...


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known names most like `name`, or all of them when none is."""
    listed = sorted(n for n in known if isinstance(n, str))
    close = difflib.get_close_matches(name, listed, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return f"Known: {', '.join(map(repr, listed))}." if listed else "There are none."


def name_problems(
    names: Mapping[str, Sequence[str]],
    computations: Mapping[str, str | None],
    nested: Mapping[tuple[str, str], str | None],
    assignments: Mapping[str, Assigned],
    where: str | None = None,
) -> list[Diagnostic]:
    """What does not fit.

    Args:
        names: each name in the program, with the places where it occurs.
        computations: the named computations that are not inside another one, with a place.
        nested: (outer, inner) names of computations with names inside, with the inner's place.
        assignments: each assigned name, with its mesh and stage.
        where: the place of the assignments.
    """
    problems = []
    for name in assignments:
        if name not in names:
            problems.append(
                problem(
                    f"the name {name!r} is assigned to mesh {assignments[name].mesh!r} but occurs "
                    "nowhere in the program. "
                    + nearest(name, names)
                    + " Remove the assignment, or name a computation or tensor so. (What nothing uses does not count.)",
                    where,
                )
            )
    for name, place in computations.items():
        if name not in assignments:
            problems.append(
                problem(
                    f"the named computation {name!r} is not assigned to a mesh. Add it to "
                    "name_to_mesh_assignment, which assigns "
                    f"{', '.join(map(repr, assignments)) or 'nothing'}.",
                    place,
                )
            )
    for (outer, inner), place in nested.items():
        if outer not in assignments or inner not in assignments:
            continue
        a, b = assignments[outer], assignments[inner]
        same_stage = a.stage == b.stage or inner not in computations
        if a.mesh != b.mesh or not same_stage:
            problems.append(
                problem(
                    f"{inner!r} (assigned to {_place(b)}) occurs inside the named computation "
                    f"{outer!r} (assigned to {_place(a)}). A computation runs on one mesh: assign "
                    "both alike, or move the inner one out.",
                    place,
                )
            )
    return problems


def _place(assigned: Assigned) -> str:
    stage = "" if assigned.stage is None else f", stage {assigned.stage}"
    return f"mesh {assigned.mesh!r}{stage}"
