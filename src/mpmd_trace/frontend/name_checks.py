"""Checks that the names in a program and the names in a configuration fit together."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from mpmd_trace.diagnostics.messages import Diagnostic, listed, shortened
from mpmd_trace.diagnostics.source_files import is_users
from mpmd_trace.frontend.errors import problem
from mpmd_trace.ir.assignment import Assignment

#: How many names have a message each, with the names that resemble them; the others are only listed.
_ONE_BY_ONE = 8


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that offers the known names most like `name`, or all of them when none is."""
    names = sorted(n for n in known if isinstance(n, str))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return f"Known: {', '.join(map(repr, names))}." if names else "There are none."


def is_path(pattern: str, path: Sequence[object]) -> bool:
    """Return whether `pattern` matches the path of a layer: `blocks[0].norm` or `blocks.0.norm`, `*` for any key."""
    keys = pattern.replace("[", ".").replace("]", "").split(".")  # brackets are indices here, not sets of characters
    return len(keys) == len(path) and all(fnmatch.fnmatchcase(str(a), b) for a, b in zip(path, keys, strict=True))


def name_problems(
    names: Mapping[str, Sequence[str]],
    computations: Mapping[str, str | None],
    nested: Mapping[tuple[str, ...], str | None],
    assignments: Mapping[str, Assignment],
    where: str | None = None,
) -> tuple[list[Diagnostic], list[str]]:
    """Return errors, and warnings of names that are assigned and not used.

    The latter are no errors, because a configuration may serve several programs.

    Args:
        names: each name in the program, with the places where it occurs.
        computations: the named computations that are not inside another one, with a place.
        nested: each name inside named computations, behind the names of these, outermost first; with a place.
        assignments: each assigned name, with its mesh and stage.
        where: the place of the assignments, reported where a computation is named inside of a library.
    """
    problems = []
    unused = [name for name in assignments if name not in names]
    missing = [name for name in computations if name not in assignments]
    assigned = listed(list(map(repr, assignments)), 2 * _ONE_BY_ONE) or "nothing"
    for name in missing[:_ONE_BY_ONE]:
        place = computations[name]
        problems.append(
            problem(
                f"the named computation {name!r} is not assigned to a mesh. Add it to "
                f"name_to_mesh_assignment, which assigns {assigned}." + _instead(name, unused),
                place if place is not None and is_users(place.rpartition(":")[0]) else where,
            )
        )
    if others := list(map(repr, missing[_ONE_BY_ONE:])):
        problems.append(problem(f"not assigned to a mesh either: {listed(others, _ONE_BY_ONE)}", where))
    for name, place in computations.items():
        if name in assignments and (kind := assignments[name].memory_kind) is not None:
            problems.append(
                problem(
                    f"the named computation {name!r} is assigned to {assignments[name].mesh}#{kind}, but only values "
                    f"have a memory. Assign it to {assignments[name].mesh!r}, and name what is to be in that memory "
                    "with named_tensor.",
                    place,
                )
            )
    inside: dict[tuple[str, str], str | None] = {}
    for (*around, inner), place in nested.items():
        # An unassigned computation has the mesh of the one around it.
        outer = next((name for name in reversed(around) if name in assignments), None)
        if outer is not None and inner in assignments:
            inside.setdefault((outer, inner), place)
    for (outer, inner), place in inside.items():
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
    warnings = [_unused(name, assignments[name], names) for name in unused[:_ONE_BY_ONE]]
    if others := list(map(repr, unused[_ONE_BY_ONE:])):
        text = f"also assigned, and nowhere in the program: {listed(others, _ONE_BY_ONE)}"
        warnings.append(f"{text}. (Unused values are ignored.)")
    return problems, warnings


def without_names(program: str, assignments: Iterable[str]) -> str:
    """Return what is wrong with a program that has none of the names that are assigned to several meshes."""
    names = shortened([repr(name) for name in assignments], 4)
    return (
        f"none of the assigned names occurs in {program}, so all of it would run on one mesh. Assigned: "
        f"{', '.join(line.strip() for line in names)}. Name the layers of the model with name_layers (of "
        "mpmd_trace.equinox, mpmd_trace.nnx or mpmd_trace.linen), stacked layers with mpmd_trace.name_scans, or "
        "functions with mpmd_trace.named_computation. (Unused values are ignored: a name in code whose result is not "
        "used does not occur.) For a program that is meant to have no names, use a configuration that assigns none."
    )


def _instead(name: str, unused: Sequence[str]) -> str:
    """Return what may have been meant by names that occur nowhere, where `name` occurs; or nothing."""
    parts = [other for other in unused if other.startswith(f"{name}[")]
    if parts:
        return (
            f" To divide a jax.lax.scan in it into {listed(list(map(repr, parts)), 2)}, use mpmd_trace.name_scans "
            f"instead of named_computation, or mpmd_trace.scan(..., name={name!r}) with no named computation around it."
        )
    meant = difflib.get_close_matches(name, unused, n=1)
    return f" Did you mean {name!r} by {meant[0]!r}, which occurs nowhere?" if meant else ""


def _unused(name: str, assigned: Assignment, names: Iterable[str]) -> str:
    """Return the warning about an assigned name that the program does not have."""
    close = difflib.get_close_matches(name, names, n=3)
    return (
        f"the name {name!r} is assigned to mesh {assigned.mesh!r} but occurs nowhere in the program"
        + (f"; did you mean {' or '.join(map(repr, close))}?" if close else ".")
        + " (Unused values are ignored.)"
    )


def _place(assigned: Assignment) -> str:
    stage = "" if assigned.stage is None else f", stage {assigned.stage}"
    return f"mesh {assigned.mesh!r}{stage}"
