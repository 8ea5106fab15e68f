"""Fields of Equinox modules that are Python numbers, such as the rate of a dropout.

They are leaves: `jax.jit` makes arrays of them, `equinox.filter_jit` leaves them alone.  Modules are written for the
latter, and branch on them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

from mpmd_trace.diagnostics.messages import MpmdError, listed
from mpmd_trace.frontend.arguments import path_name
from mpmd_trace.frontend.errors import FrontendError, place_of, problem
from mpmd_trace.frontend.functions import labels, name_of


def numbers_in_modules(root: str, tree: Any) -> list[str]:
    """Return where in `tree`, which is called `root`, Equinox modules have fields that are Python numbers."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return []

    def is_module(node: Any) -> bool:
        return isinstance(node, equinox.Module)

    return [
        path_name(root, (*path, *inside))
        for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_module)
        if is_module(node)
        for inside, leaf in jax.tree_util.tree_leaves_with_path(node)
        if isinstance(leaf, bool | int | float | complex)
    ]


def explained(
    error: Exception, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FrontendError | None:
    """Say what to do when `fn` cannot be traced and its arguments have such fields; None where that is not why."""
    if isinstance(error, MpmdError) or not isinstance(error, TypeError | jax.errors.ConcretizationTypeError):
        return None
    named = {**dict(zip(labels(fn, len(args)), args, strict=True)), **kwargs}
    fields = [field for name, value in named.items() for field in numbers_in_modules(name, value)]
    if not fields:
        return None
    first = str(error).split("\n", 1)[0]
    message = (
        f"{name_of(fn)} cannot be traced: {type(error).__name__}: {first} Equinox modules in its arguments have fields "
        f"that are Python numbers ({listed(fields, 3)}), and mpmd_trace.jit makes arrays of them, like "
        "jax.jit. Use mpmd_trace.filter_jit (filter_jit=True in a Program), which leaves them as they are."
    )
    return FrontendError([problem(message, place_of(fn))])
