"""Loops and conditionals that stay what they are, with ordered callbacks inside.

A token goes into each of them, from one iteration to the next, and out again, as in JAX's own lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax import lax

from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

#: The results of a jaxpr on arguments, and the token behind it, for the token before it.
Inside: TypeAlias = Callable[[Closed, Sequence[Any], Any], tuple[list[Any], Any]]


def can_thread(eqn: Equation) -> bool:
    """Return whether a token can go through `eqn`; a batch of loops, each with its own end, has no order."""
    if eqn.primitive.name == "while":
        return not tracing.out_avals(eqn.params["cond_jaxpr"])[0].shape
    return eqn.primitive.name in ("scan", "cond")


def threaded(eqn: Equation, args: Sequence[Any], token: Any, inside: Inside) -> tuple[list[Any], Any]:
    """Return the results of a `scan`, `while` or `cond`, and the token behind it."""
    rule = {"scan": _scan, "while": _while, "cond": _cond}[eqn.primitive.name]
    *results, token = rule(eqn, list(args), token, inside)
    return results, token


def _scan(eqn: Equation, args: list[Any], token: Any, inside: Inside) -> list[Any]:
    layout = tracing.scan_layout(eqn)
    constants, carry, scanned = layout.split(args)

    def body(state: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        *carry, token = state
        results, token = inside(layout.body, [*constants, *carry, *items], token)
        return [*results[: layout.carries], token], results[layout.carries :]

    unroll = eqn.params["unroll"]
    (*final, token), stacks = lax.scan(body, [*carry, token], scanned, layout.length, layout.reverse, unroll)
    return [*final, *stacks, token]


def _while(eqn: Equation, args: list[Any], token: Any, inside: Inside) -> list[Any]:
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    loop = len(opened(body).invars) - len(opened(body).outvars)
    outside = len(args) - len(opened(body).invars)
    of_cond, of_body = args[:outside], args[outside : outside + loop]

    def goes_on(state: Sequence[Any], token: Any) -> tuple[Any, Any]:
        (condition,), token = inside(cond, [*of_cond, *state], token)
        return condition, token

    def turn(state: Sequence[Any], token: Any) -> list[Any]:
        results, token = inside(body, [*of_body, *state], token)
        return [*results, token]

    start = [*args[outside + loop :], token]
    if not tracing.is_ordered(cond):
        return list(lax.while_loop(lambda s: goes_on(s[:-1], s[-1])[0], lambda s: turn(s[:-1], s[-1]), start))

    # The condition of a loop returns nothing but whether it goes on: it is computed at the end of each turn.
    def behind(state: list[Any]) -> list[Any]:
        condition, token = goes_on(state[:-1], state[-1])
        return [condition, *state[:-1], token]

    return list(lax.while_loop(lambda s: s[0], lambda s: behind(turn(s[1:-1], s[-1])), behind(start)))[1:]


def _cond(eqn: Equation, args: list[Any], token: Any, inside: Inside) -> list[Any]:
    index, *operands = args
    types = [jax.typeof(token), *map(jax.typeof, operands)]

    def branch(closed: Closed) -> Closed:
        def run(token: Any, *values: Any) -> list[Any]:
            results, token = inside(closed, values, token)
            return [*results, token]

        return tracing.make_closed(run, types)

    branches = tuple(map(branch, eqn.params["branches"]))
    return tracing.rebind(eqn, [index, token, *operands], {**eqn.params, "branches": branches})
