"""Whether a body of `enumerated_for` takes its arguments in our order, `(i, carry, x)`.

The reference's is `(carry, i, x)`. With the wrong one a body such as `lambda c, i, x: c + x` adds the index to `x`
silently, so what can be seen is looked at: the names of the parameters first and, where these say nothing, the
types of what is returned, and what the returned carry is made of.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from mpmd_trace.frontend.errors import mistake, place_of, warn
from mpmd_trace.frontend.functions import name_of, positional_names
from mpmd_trace.frontend.interpreter import needed_variables
from mpmd_trace.jax_compat.tracing import OpenJaxpr, is_literal, opened

#: What the names of the parameters say: our order, or nothing.
Order = Literal["ours", "unknown"]

_INDEX = re.compile(r"(?:[ij]|idx|index|it|iteration)\d?|\w+_(?:i|idx|index|id|number)")
#: Names of a first parameter that may be an index, too.
_FIRST = re.compile(r"_.*|[kmnt]|mb|step|number|count|counter|microbatch")
_CALLED = "enumerated_for calls its body as body(i, carry, x)"


def parameter_order(body: Callable[..., Any]) -> Order:
    """Return what the names of the parameters of `body` say.

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
        raise mistake(f"{_CALLED}, which {name_of(body)}{signature} does not take: {error}.") from None
    names = positional_names(signature.parameters.values())
    if len(names) < 2:
        return "unknown"
    if _INDEX.fullmatch(names[0]) or _FIRST.fullmatch(names[0]):
        return "ours"
    if _INDEX.fullmatch(names[1]):
        raise mistake(
            f"{_CALLED}, and the parameters of {name_of(body)} are ({', '.join(names)}): its first one does not look "
            f"like the index, and {names[1]!r} does. Change their order; or, if it is right, name the first one i."
        )
    return "unknown"


def checked(body: Callable[..., Any], order: Order, i: Any, carry: Any, x: Any) -> Any:
    """`body(i, carry, x)`; where its parameters' names say nothing, with a look at what it does with them.

    Raises:
        FrontendError: when it gives a carry as `body(carry, i, x)` alone.
    """
    if order == "ours":
        return body(i, carry, x)
    if len(jax.tree.leaves(carry)) == 1 and (what := _looks_like(body, i, carry, x)):
        warn(
            f"{_CALLED}. What {name_of(body)} returns as carry {what}. If its first argument is meant to be the carry, "
            "change the order; if this is right, name its first parameter i.",
            place_of(body),
        )
    try:
        result = body(i, carry, x)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if _gives_carry(body, carry, i, x):
            raise _swapped(body) from error
        error.add_note(f"{_CALLED}: the index comes first, then the carry.")
        raise
    if not _is_carry(result, carry) and _gives_carry(body, carry, i, x):
        raise _swapped(body)
    return result


def _swapped(body: Callable[..., Any]) -> Exception:
    return mistake(
        f"{_CALLED}, and {name_of(body)} returns something of the carry's type only when it is called with the carry "
        "first and the index second. Change the order of its parameters."
    )


def _gives_carry(body: Callable[..., Any], *args: Any) -> bool:
    """Return whether the body takes these arguments and returns a carry."""
    try:
        result = jax.eval_shape(body, *args)
    except Exception:  # of the user's code, which was not made for this
        return False
    return _is_carry(result, args[0])


def _is_carry(result: Any, carry: Any) -> bool:
    """Return whether a result is a new carry, perhaps with outputs, of the types of the last one."""
    structure = jax.tree.structure(carry)
    if jax.tree.structure(result) != structure:
        if not isinstance(result, tuple) or len(result) != 2 or jax.tree.structure(result[0]) != structure:
            return False
        result = result[0]
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(carry), strict=True)
    return all((jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b)) for a, b in pairs)


def _looks_like(body: Callable[..., Any], i: Any, carry: Any, x: Any) -> str | None:
    """Return what is odd about the carry that `body` returns, a single array, if something is."""
    try:
        closed = jax.make_jaxpr(lambda *args: jax.tree.leaves(body(*args)))(i, carry, x)
    except Exception:  # it is called again, and then the error is the user's to see
        return None
    parts = opened(closed)
    if not parts.outvars:
        return None
    wanted: Sequence[bool] = [position == 0 for position in range(len(parts.outvars))]
    needed = needed_variables(closed, wanted, set())
    index, last = parts.invars[:2]
    if index in needed and last not in needed:
        return "depends on i, and not on the carry that it gets"
    summed = _summands(parts)
    if index in summed and last not in summed:
        return "is a sum with i in it, in which the carry that it gets is only a factor or the like"
    return None


#: What leaves the values of its first operand as they are.
_KEEPING = frozenset({"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy", "sub"})


def _summands(parts: OpenJaxpr) -> set[Any]:
    """Return the variables that the first result is a sum of."""
    makers = {v: eqn for eqn in parts.eqns for v in eqn.outvars}
    result: set[Any] = set()
    left = [parts.outvars[0]]
    while left:
        atom = left.pop()
        if is_literal(atom) or atom in result:
            continue
        result.add(atom)
        eqn = makers.get(atom)
        if eqn is not None and eqn.primitive.name in ("add", "add_any"):
            left += eqn.invars
        elif eqn is not None and eqn.primitive.name in _KEEPING:
            left.append(eqn.invars[0])
    return result
