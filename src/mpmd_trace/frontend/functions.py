"""Names, places and parameters of the user's functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function, under `functools.partial` as in JAX, or of the type of a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def parameters_of(fn: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters, None where they are unknown."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None


def positional_names(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that may be given by position."""
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def labels(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional parameters, `args[i]` where there is none."""
    parameters = parameters_of(fn) or []
    names = positional_names(parameters)[:count]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return names + [f"{variadic}[{i}]" for i in range(count - len(names))]
