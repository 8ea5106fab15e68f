"""Modules of Haiku and Flax Linen whose parameters are those of a transformation around a named part.

There they are made, read and counted by a frame or scope that is no argument of the part.  JAX would keep what it read
first for every later part of the same function, and what it made would be lost; so this is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax

from mpmd_trace.frontend.errors import FrontendError, mistake

__all__ = ["own_frames"]


def own_frames(what: str) -> AbstractContextManager[Any]:
    """Within, what `what` runs uses no parameters, states or random numbers of a module around it.

    Raises:
        FrontendError: at the line that uses them, with what to do.
    """
    stack = ExitStack()
    haiku, linen = sys.modules.get("haiku"), sys.modules.get("flax.linen")
    if haiku is not None and _in_haiku(haiku):
        stack.enter_context(_haiku(haiku, what))
    if linen is not None:
        modules = [module for module in linen.module._context.module_stack if module is not None]
        scopes = {id(module.scope.root) for module in modules if module.scope is not None}
        if scopes:
            stack.enter_context(linen.intercept_methods(_refuse_scopes(scopes, what)))
    return stack


def _in_haiku(haiku: Any) -> bool:
    try:
        haiku.running_init()
    except ValueError:
        return False
    return True


@contextmanager
def _haiku(haiku: Any, what: str) -> Iterator[None]:
    around = {id(x) for x in jax.tree.leaves((haiku.get_params(), haiku.get_current_state()))}

    def getter(get: Callable[[Any], Any], value: Any, context: Any) -> Any:
        if id(value) in around or haiku.running_init():  # else it is of a transformation inside
            raise _uses(f"{context.full_name!r}", what, "Haiku", _HAIKU)
        return get(value)

    keys = jax.tree.leaves(haiku.maybe_get_rng_sequence_state())
    with haiku.custom_getter(getter, state=True):
        yield
    left = jax.tree.leaves(haiku.maybe_get_rng_sequence_state())
    if len(keys) != len(left) or any(a is not b for a, b in zip(keys, left, strict=True)):
        raise _uses("random numbers", what, "Haiku", _HAIKU)


def _refuse_scopes(scopes: set[int], what: str) -> Callable[..., Any]:
    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if module.scope is not None and id(module.scope.root) in scopes:
            raise _uses(f"{'.'.join(module.path)!r}", what, "Linen", _LINEN)
        return call(*args, **kwargs)

    return intercept


_HAIKU = (
    "Transform the part by itself, `init, apply = hk.transform(part)`, name it with "
    "mpmd_trace.named_computation(apply, name=...), and pass it its parameters. For stacked layers use "
    "mpmd_trace.name_scans on the function that is transformed (docs/flax.md)."
)
_LINEN = (
    "Name layers from outside, with mpmd_trace.linen.name_layers(model.apply, ...), and stacked ones with "
    "mpmd_trace.name_scans(model.apply, ...) (docs/flax.md)."
)


def _uses(used: str, what: str, library: str, instead: str) -> FrontendError:
    return mistake(
        f"{what} uses {used} of the {library} module around it, which is not an argument of it: what it makes would be "
        f"lost, and the next one of the same function would get the parameters of the first. {instead}"
    )
