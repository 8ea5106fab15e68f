"""Loops whose iterations become calls, one per microbatch.

Outside `mpmd_trace.jit` they are `jax.lax.scan`s, so they can be differentiated, batched and nested.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mpmd_trace.frontend import tags
from mpmd_trace.frontend.errors import mistake, place_of, warn
from mpmd_trace.frontend.eval_jaxpr import needed_variables
from mpmd_trace.frontend.functions import name_of, positional_names
from mpmd_trace.jax_compat.tracing import OpenJaxpr, is_literal, opened

Carry = TypeVar("Carry")


def _check_body(body: object, what: str) -> None:
    if not callable(body):
        raise mistake(f"the body of {what} is a function, not {body!r} of type {type(body).__name__}.")


def _check_unroll(unroll: object, count: int, what: str) -> None:
    if unroll is None or unroll is True or (isinstance(unroll, int) and unroll == count):
        return
    raise mistake(
        f"{what} can only be unrolled fully (unroll=None, True or {count}), got unroll={unroll!r}: "
        "every iteration becomes a call of its own, which the schedule then places."
    )


def fori_loop(n: int, body: Callable[[Any, Carry], Carry], init: Carry, *, unroll: bool | int | None = None) -> Carry:
    """Compute `carry = body(i, carry)` for `i` from 0 to `n - 1`, starting with `init`; return the last carry.

    `i` is an `int32` scalar. Each iteration is a microbatch: a call with `call_counter = i`. If the loop is
    differentiated, each iteration of the derivative has the counter of the iteration that it differentiates.

    Args:
        n: the number of iterations, a Python int, at least 0.
        body: a function of the index and the carry; its result has the types of the carry.
        init: a pytree of arrays.
        unroll: accepted as in `jax.lax.fori_loop`, without effect: None, True or `n`.

    Raises:
        FrontendError: for a traced or negative `n`, or an `unroll` other than those.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise mistake(
            f"fori_loop needs its number of iterations as a Python int, got {n!r}. The number of microbatches is part "
            "of the compiled program; pass it as a static argument."
        )
    _check_body(body, "fori_loop")

    def step(i: Any, carry: Carry, _: None) -> tuple[Carry, None]:
        return body(i, carry), None

    final: Carry = loop_over("fori_loop", step, init, None, int(n), unroll)[0]
    return final


def enumerated_for(
    body: Callable[[Any, Carry, Any], Any], carry: Carry, inputs: Any, *, unroll: bool | int | None = None
) -> Any:
    """Compute `carry = body(i, carry, inputs[i])` for every slice of `inputs`; return the last carry.

    `body` may also return `(carry, outputs)`. The outputs of all iterations are then stacked along a new
    first axis, and the result is `(carry, stacked)`. A result that has the structure of `carry` is always
    taken as the carry, even if it is a pair.

    Args:
        body: a function of the index (an `int32` scalar), the carry and one slice of the inputs.
        carry: the first carry, a pytree of arrays.
        inputs: a pytree of arrays whose first axes have the same length, such as a tuple of arrays; or a
            list of microbatches, which are pytrees of the same structure and types.
        unroll: accepted as in `jax.lax.scan`, without effect: None, True or the number of slices.

    Raises:
        FrontendError: if the first axes differ or there is no array, if the microbatches of a list differ,
            for a body that takes the carry first, or for another `unroll`.
    """
    _check_body(body, "enumerated_for")
    order = _parameter_order(body)
    inputs, count = _sliced(inputs)
    structure = jax.tree.structure(carry)
    stacks = False

    def step(i: Any, state: Carry, item: Any) -> tuple[Carry, Any]:
        nonlocal stacks
        result = _checked(body, order, i, state, item)
        if jax.tree.structure(result) == structure:
            return result, None
        if not isinstance(result, tuple) or len(result) != 2:
            raise mistake(
                "the body of enumerated_for must return a carry of the structure it got, or "
                f"(carry, outputs); the carry has {structure}, the result "
                f"{jax.tree.structure(result)}."
            )
        stacks = True
        return result

    final, outputs = loop_over("enumerated_for", step, carry, inputs, count, unroll)
    return (final, outputs) if stacks else final


def _sliced(inputs: Any) -> tuple[Any, int]:
    """Return the inputs of a loop as a pytree to be sliced along the first axes, and how many slices there are."""
    if isinstance(inputs, list):
        if not inputs:
            raise mistake("enumerated_for got an empty list of microbatches.")
        _check_alike(inputs)
        # Inside of mpmd_trace.jit nothing is stacked in the end: passes see that each slice is a microbatch.
        return jax.tree.map(lambda *parts: jnp.stack(parts), *inputs), len(inputs)
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    lengths = {jax.tree_util.keystr(p): jnp.shape(x)[:1] for p, x in leaves}
    if not leaves or len(set(lengths.values())) != 1 or () in lengths.values():
        listed = ", ".join(f"inputs{path}: {n[0] if n else 'scalar'}" for path, n in lengths.items())
        raise mistake(
            f"enumerated_for needs inputs whose arrays have first axes of one length, got {listed or 'no array'}."
        )
    return inputs, next(iter(lengths.values()))[0]


def _check_alike(microbatches: list[Any]) -> None:
    """Raise `FrontendError` when the microbatches of a list are of different structures or types."""
    hint = (
        "A list given to enumerated_for is a list of microbatches, which are alike; give several arrays that are "
        "stacked along their first axes as a tuple."
    )
    first = jax.tree_util.tree_leaves_with_path(microbatches[0])
    structure = jax.tree.structure(microbatches[0])
    if not first:
        raise mistake(f"the first microbatch has no array. {hint}")
    for number, other in enumerate(microbatches[1:], 1):
        if jax.tree.structure(other) != structure:
            actual = jax.tree.structure(other)
            raise mistake(f"microbatch {number} has the structure {actual}, the first {structure}. {hint}")
        for (path, a), b in zip(first, jax.tree.leaves(other), strict=True):
            types = [f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in (a, b)]
            if types[0] != types[1]:
                where = jax.tree_util.keystr(path)
                raise mistake(f"microbatch {number}{where} is {types[1]}, the first{where} {types[0]}. {hint}")


def loop_over(
    what: str,
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    init: Any,
    inputs: Any,
    count: int,
    unroll: bool | int | None = None,
) -> tuple[Any, Any]:
    """Compute `carry, output = step(i, carry, inputs[i])` for each i; return the last carry and the stacked outputs."""
    if count < 0:
        raise mistake(f"{what} cannot run {count} iterations.")
    _check_unroll(unroll, count, what)

    def run(start: Any, items: Any) -> Any:
        def scanned(state: Any, indexed: Any) -> tuple[Any, Any]:
            i, item = indexed
            return step(i, state, item)

        # The index comes in as data, not as a carry: no iteration then waits for the one before
        # only to count.
        return jax.lax.scan(scanned, start, (jnp.arange(count, dtype=jnp.int32), items), count)

    result: tuple[Any, Any] = tags.tagged(run, tags.Tag("loop", what))(init, inputs)
    return result


# Whether a body of `enumerated_for` takes its arguments in our order, `(i, carry, x)`.  The reference's is
# `(carry, i, x)`.  With the wrong one, a body such as `lambda c, i, x: c + x` adds the index to `x` silently.  So what
# can be seen is looked at: the names of the parameters first and, where these say nothing, the types of what is
# returned, and what the returned carry is made of.


#: What the names of the parameters say: our order, or nothing.
_Order = Literal["ours", "unknown"]

_INDEX = re.compile(r"(?:[ij]|idx|index|it|iteration)\d?|\w+_(?:i|idx|index|id|number)")
#: Names of a first parameter that may be an index, too.
_FIRST = re.compile(r"_.*|[kmnt]|mb|step|number|count|counter|microbatch")
_CALLED = "enumerated_for calls its body as body(i, carry, x)"


def _parameter_order(body: Callable[..., Any]) -> _Order:
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


def _checked(body: Callable[..., Any], order: _Order, i: Any, carry: Any, x: Any) -> Any:
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
