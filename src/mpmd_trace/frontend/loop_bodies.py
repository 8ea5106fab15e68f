"""Whether a body of `enumerated_for` takes its arguments in our order, `(i, carry, x)`.

The reference's is `(carry, i, x)`. With the wrong one a body such as `lambda c, i, x: c + x` adds the index to `x` and
nobody notices, so what can be seen is looked at: the names of the parameters first and, where these say nothing,
what the returned carry depends on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from mpmd_trace.frontend.calls import needed_variables
from mpmd_trace.frontend.errors import mistake, place_of, warn
from mpmd_trace.jax_compat.tracing import opened

__all__ = ["Order", "checked", "parameter_order"]

#: What the names of the parameters say: our order, or nothing.
Order = Literal["ours", "unknown"]

_INDEX = re.compile(r"(?:[ij]|idx|index|it|iteration)\d?|\w+_(?:i|idx|index|id|number)")
#: Names of a first parameter that may be an index, too.
_FIRST = re.compile(r"_.*|[kmnt]|mb|step|number|count|counter|microbatch")
_CALLED = "enumerated_for calls its body as body(i, carry, x)"


def parameter_order(body: Callable[..., Any]) -> Order:
    """What the names of the parameters of `body` say.

    Raises:
        FrontendError: when they say that the carry comes first, or when the body does not take three arguments.
    """
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):
        return "unknown"
    try:
        signature.bind(0, 0, 0)
    except TypeError as error:
        raise mistake(f"{_CALLED}, which {_name(body)}{signature} does not take: {error}.") from None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature.parameters.values() if p.kind in kinds]
    if len(names) < 2:
        return "unknown"
    if _INDEX.fullmatch(names[0]) or _FIRST.fullmatch(names[0]):
        return "ours"
    if _INDEX.fullmatch(names[1]):
        raise mistake(
            f"{_CALLED}, and the parameters of {_name(body)} are ({', '.join(names)}): its first one does not look "
            f"like the index, and {names[1]!r} does. Change their order; or, if it is right, name the first one i."
        )
    return "unknown"


def checked(body: Callable[..., Any], order: Order, i: Any, carry: Any, x: Any) -> Any:
    """`body(i, carry, x)`; where its parameters' names say nothing, with a look at what it does with them."""
    if order == "ours":
        return body(i, carry, x)
    if len(jax.tree.leaves(carry)) == 1 and _counts_instead(body, i, carry, x):
        warn(
            f"{_CALLED}. What {_name(body)} returns as carry depends on i, and not on the carry that it gets. If its "
            "first argument is meant to be the carry, change the order; if this is right, name its first parameter i.",
            place_of(body),
        )
    try:
        return body(i, carry, x)
    except (AttributeError, TypeError, ValueError) as error:
        error.add_note(f"{_CALLED}: the index comes first, then the carry.")
        raise


def _counts_instead(body: Callable[..., Any], i: Any, carry: Any, x: Any) -> bool:
    """Whether the carry that `body` returns, a single array, depends on the index and not on the last carry."""
    try:
        closed = jax.make_jaxpr(lambda *args: jax.tree.leaves(body(*args)))(i, carry, x)
    except Exception:  # it is called again, and then the error is the user's to see
        return False
    parts = opened(closed)
    if not parts.outvars:
        return False
    wanted: Sequence[bool] = [position == 0 for position in range(len(parts.outvars))]
    needed = needed_variables(closed, wanted, set())
    return parts.invars[0] in needed and parts.invars[1] not in needed


def _name(body: Callable[..., Any]) -> str:
    return str(getattr(body, "__name__", type(body).__name__))
