"""Which arguments of a step a result replaces, and which belong to another one, by their paths."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Mapping, Sequence

__all__ = ["alike", "ends", "path_in", "replacements"]


def path_in(name: str) -> str:
    """The path inside of an argument or of the result: `['w']` of `params['w']`."""
    return re.sub(r"^[^\[.]*", "", name)


def ends(path: str, tail: str) -> bool:
    """Whether a path ends with another one."""
    return path.endswith(tail)  # both begin with a bracket or a dot, or are empty


def replacements(
    arguments: Mapping[int, tuple[str, Hashable]],
    results: Sequence[tuple[str, Hashable]],
    donated: Container[int],
    *,
    trains: bool,
) -> dict[int, int]:
    """The arguments that a result replaces, each with the number of the result.

    Args:
        arguments: the name (`params['w']`, or none) and type of each argument.
        results: the name (`result[0]['w']`) and type of each result.
        donated: the arguments that are donated.
        trains: whether an argument may be replaced as a whole.
    """
    free = {n: (path_in(name), type) for n, (name, type) in enumerate(results)}
    found: dict[int, int] = {}
    # Long paths say most: `['w']` is the end of `[0].mu['w']`, too.
    for argument in sorted(arguments, key=lambda a: (-len(path_in(arguments[a][0])), a)):
        name, type = arguments[argument]
        rest = path_in(name)
        fits = [number for number, (path, made) in free.items() if made == type and ends(path, rest)]
        if fits and (rest or argument in donated or (trains and name)):
            chosen = min(fits, key=lambda n: (len(free[n][0]), n))
            found[argument] = chosen
            del free[chosen]
    return found


def alike(arguments: Mapping[int, tuple[str, Hashable]]) -> dict[int, int]:
    """For each argument the one of its type with the shortest path that its own path ends with: perhaps itself."""
    order = sorted(arguments, key=lambda a: (len(path_in(arguments[a][0])), a))
    found: dict[int, int] = {}
    by_type: dict[Hashable, list[int]] = {}
    for argument in order:
        name, type = arguments[argument]
        others = by_type.setdefault(type, [])
        found[argument] = next((a for a in others if ends(path_in(name), path_in(arguments[a][0]))), argument)
        if found[argument] == argument:
            others.append(argument)
    return found
