"""Loops and conditionals that stay what they are, made again with other jaxprs inside.

What goes through them may be pytrees, and a state goes into each of them, from one iteration to the next, and out
again: the token of ordered callbacks, as in JAX's own lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax import lax

from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

#: The results of a jaxpr on arguments, and the state behind it, for the state before it.
Inside: TypeAlias = Callable[[Closed, Sequence[Any], Any], tuple[Sequence[Any], Any]]


def can_thread(eqn: Equation) -> bool:
    """Return whether a token can go through `eqn`; a batch of loops, each with its own end, has no order."""
    if eqn.primitive.name == "while":
        return not tracing.out_avals(eqn.params["cond_jaxpr"])[0].shape
    return eqn.primitive.name in ("scan", "cond")


def threaded(eqn: Equation, args: Sequence[Any], token: Any, inside: Inside) -> tuple[list[Any], Any]:
    """Return the results of a `scan`, `while` or `cond`, and the token behind it."""
    rules: dict[str, Callable[..., tuple[list[Any], Any]]] = {"scan": scan, "while": while_loop, "cond": _cond}
    return rules[eqn.primitive.name](eqn, args, inside, token)


def scan(
    eqn: Equation,
    args: Sequence[Any],
    inside: Inside,
    state: Any = None,
    *,
    length: int | None = None,
    scan: Callable[..., tuple[Any, Any]] = lax.scan,
) -> tuple[list[Any], Any]:
    """Return the results of a `scan`, perhaps of another length or made by another function, and the state behind."""
    layout = tracing.scan_layout(eqn)
    constants, carry, scanned = layout.split(args)

    def body(carried: Any, items: Any) -> Any:
        results, state = inside(layout.body, [*constants, *carried[0], *items], carried[1])
        return (list(results[: layout.carries]), state), list(results[layout.carries :])

    length, unroll = layout.length if length is None else length, eqn.params["unroll"]
    (carry, state), stacks = scan(
        body, (list(carry), state), list(scanned), length, reverse=layout.reverse, unroll=unroll
    )
    return [*carry, *stacks], state


def of_while(eqn: Equation, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Divide the operands of a `while`: the constants of its test and of its body, and what it carries."""
    tests = eqn.params["cond_nconsts"]
    first = tests + eqn.params["body_nconsts"]
    return args[:tests], args[tests:first], args[first:]


def while_loop(eqn: Equation, args: Sequence[Any], inside: Inside, state: Any = None) -> tuple[list[Any], Any]:
    """Return the results of a `while`, and the state behind it."""
    for_test, for_turn, start = of_while(eqn, args)
    test = eqn.params["cond_jaxpr"]

    def goes_on(carried: Any) -> Any:
        (condition,), state = inside(test, [*for_test, *carried[0]], carried[1])
        return condition, (carried[0], state)

    def turn(carried: Any) -> Any:
        results, state = inside(eqn.params["body_jaxpr"], [*for_turn, *carried[0]], carried[1])
        return list(results), state

    before: Any = list(start), state
    result: tuple[list[Any], Any]
    if tracing.is_ordered(test):
        # The condition of a loop returns nothing but whether it goes on: it is computed at the end of each turn.
        _, result = lax.while_loop(lambda s: s[0], lambda s: goes_on(turn(s[1])), goes_on(before))
    else:
        result = lax.while_loop(lambda s: goes_on(s)[0], turn, before)
    return result


def _cond(eqn: Equation, args: Sequence[Any], inside: Inside, token: Any) -> tuple[list[Any], Any]:
    index, *operands = args
    types = [jax.typeof(token), *map(jax.typeof, operands)]

    def branch(closed: Closed) -> Closed:
        def run(token: Any, *values: Any) -> list[Any]:
            results, token = inside(closed, values, token)
            return [*results, token]

        return tracing.make_closed(run, types)

    branches = tuple(map(branch, eqn.params["branches"]))
    *results, token = tracing.rebind(eqn, [index, token, *operands], {**eqn.params, "branches": branches})
    return results, token
