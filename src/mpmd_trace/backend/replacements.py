"""Arguments of a step that a result replaces, or that belong to another argument, by their paths."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Mapping, Sequence

_BEGIN = re.compile(r"[\[.]")


def path_in(name: str) -> str:
    """Return the path inside of an argument or of the result: `['w']` of `params['w']`."""
    at = _BEGIN.search(name)
    return name[at.start() :] if at else ""


def ends(path: str, tail: str) -> bool:
    """Return whether a path ends with another one."""
    return path.endswith(tail)  # both begin with a bracket or a dot, or are empty


def replacements(
    arguments: Mapping[int, tuple[str, Hashable]],
    results: Sequence[tuple[str, Hashable]],
    donated: Container[int],
    *,
    trains: bool,
) -> dict[int, int]:
    """Return the arguments that a result replaces, each with the number of the result.

    Args:
        arguments: the name (`params['w']`, or none) and type of each argument.
        results: the name (`result[0]['w']`) and type of each result.
        donated: the arguments that are donated.
        trains: whether an argument may be replaced as a whole.
    """
    paths = {a: path_in(name) for a, (name, _) in arguments.items()}
    made = [path_in(name) for name, _ in results]
    by_end: dict[tuple[Hashable, str], list[int]] = {}  # those of the shortest paths first
    for number in sorted(range(len(results)), key=lambda n: (len(made[n]), n)):
        for end in _ends_of(made[number]):
            by_end.setdefault((results[number][1], end), []).append(number)
    taken: set[int] = set()
    result: dict[int, int] = {}
    # Long paths say most: `['w']` is the end of `[0].mu['w']`, too.
    for argument in sorted(arguments, key=lambda a: (-len(paths[a]), a)):
        name, type = arguments[argument]
        rest = paths[argument]
        chosen = next((n for n in by_end.get((type, rest), ()) if n not in taken), None)
        if chosen is not None and (rest or argument in donated or (trains and name)):
            result[argument] = chosen
            taken.add(chosen)
    return result


def alike(arguments: Mapping[int, tuple[str, Hashable]]) -> dict[int, int]:
    """For each argument the one of its type with the shortest path that its own path ends with: perhaps itself."""
    paths = {a: path_in(name) for a, (name, _) in arguments.items()}
    result: dict[int, int] = {}
    first: dict[tuple[Hashable, str], int] = {}
    for argument in sorted(arguments, key=lambda a: (len(paths[a]), a)):
        type = arguments[argument][1]
        others = (first[type, end] for end in _ends_of(paths[argument]) if (type, end) in first)
        result[argument] = next(others, argument)
        if result[argument] == argument:
            first[type, paths[argument]] = argument
    return result


def _ends_of(path: str) -> list[str]:
    """Return what `ends` a path, the shortest first: from each bracket and dot on, and nothing."""
    return ["", *(path[at:] for at in range(len(path) - 1, -1, -1) if path[at] in "[.")]
