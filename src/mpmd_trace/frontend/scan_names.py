"""`name_scans`: names for the scans inside of model code that nobody wants to touch.

The function is traced on its own, and its jaxpr is run in its place, with `mpmd_trace.scan` where it scans over layers.
That happens before it is differentiated, so derivatives follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from mpmd_trace.frontend import layers, tags
from mpmd_trace.frontend.errors import mistake
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.questions import REMAT
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.statics import Statics, divided, join
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

__all__ = ["name_scans"]

T = TypeVar("T")

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", **dict.fromkeys(REMAT, "jaxpr")}


def name_scans(fn: Callable[..., T], name: str) -> Callable[..., T]:
    """Name the `jax.lax.scan` over layers in `fn`, as if it were `mpmd_trace.scan`.

    Use it for models from any library that scan over stacked layers.  It names the outermost scans of `fn`; if these
    have different lengths, the longest.  Outside `mpmd_trace.jit` the result is `fn`.

    Args:
        fn: a function of pytrees; arrays are its inputs, everything else in the arguments is passed unchanged.
        name: the name of the layers.

    Raises:
        FrontendError: for an invalid name; when traced, if `fn` has no scan.
    """
    tags.check_name(name, "name_scans")
    if not callable(fn):
        raise mistake(f"name_scans takes a function, not {fn!r} of type {type(fn).__name__}.")

    @functools.wraps(fn, updated=())
    def named(*args: Any, **kwargs: Any) -> T:
        if not layers.is_assigning():
            return fn(*args, **kwargs)
        arrays, rest = divided((args, kwargs), tags.is_array)
        result: list[Statics] = []

        def flat(*values: Any) -> list[Any]:
            args, kwargs = join(values, rest)
            made, others = divided(fn(*args, **kwargs), tags.is_array)
            result[:] = [others]
            return made

        closed = jax.make_jaxpr(flat)(*arrays)
        found = list(_lengths(closed))
        if not found:
            raise mistake(
                f"name_scans found no jax.lax.scan in {name_of(fn)!r} to be called {name!r}. "
                "Give it the function that scans over the layers."
            )
        made: T = join(_run(closed, arrays, name, max(found)), result[0])
        return made

    return named


def _inner(eqn: Equation) -> Closed | None:
    """The jaxpr that `eqn` only applies, if scans in it are to be named."""
    return eqn.params[_CALLS[eqn.primitive.name]] if eqn.primitive.name in _CALLS and tag_of(eqn) is None else None


def _lengths(closed: Closed) -> Iterator[int]:
    """The lengths of the outermost scans."""
    for eqn in tracing.opened(closed).eqns:
        inner = _inner(eqn)
        if eqn.primitive.name == "scan":
            yield eqn.params["length"]
        elif inner is not None:
            yield from _lengths(inner)


def _run(closed: Closed, args: Sequence[Any], name: str, length: int) -> list[Any]:
    """The results of `closed`, with its outermost scans of this length called `name`."""

    def rule(eqn: Equation, operands: list[Any]) -> list[Any]:
        inner = _inner(eqn)
        with tracing.source_of(eqn):
            if eqn.primitive.name == "scan" and eqn.params["length"] == length:
                return _scan(eqn, operands, name)
            if inner is None or length not in _lengths(inner):
                return tracing.rebind(eqn, operands)
            run: Callable[..., list[Any]] = lambda *values: _run(inner, values, name, length)  # noqa: E731
            if eqn.primitive.name in REMAT:
                run = jax.checkpoint(run, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
            return run(*operands)

    return tracing.interpret(closed, args, rule)


def _scan(eqn: Equation, args: Sequence[Any], name: str) -> list[Any]:
    layout = tracing.scan_layout(eqn)
    constants, carry, scanned = layout.split(args)

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        results = tracing.run(layout.body, [*constants, *carry, *xs])
        return results[: layout.carries], results[layout.carries :]

    carry, outputs = layers.scan(
        body, list(carry), list(scanned), layout.length, name=name, reverse=layout.reverse, unroll=eqn.params["unroll"]
    )
    return [*carry, *outputs]
