"""`name_scans`: names for the scans inside of model code that nobody wants to touch.

The function is traced on its own, and its jaxpr is run in its place, with `mpmd_trace.scan` where it scans over layers.
That happens before it is differentiated, so derivatives follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from mpmd_trace.frontend import layers, tags
from mpmd_trace.frontend.errors import mistake, warn
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.jaxpr_queries import REMAT
from mpmd_trace.frontend.layer_scans import inner_of, scans_of
from mpmd_trace.frontend.statics import Statics, divided, join
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

T = TypeVar("T")


def name_scans(fn: Callable[..., T], name: str) -> Callable[..., T]:
    """Name the `jax.lax.scan` over layers in `fn`, as if it were `mpmd_trace.scan`.

    Use it for models from any library that scan over stacked layers.  A scan over layers scans parameters and
    multiplies what it carries by them.  Scans that only carry sums (as over microbatches) or that scan no parameters
    (as over time) are not named, but searched.  If several scans are over layers, the longest ones are named, with a
    warning.  Outside `mpmd_trace.jit` the result is `fn`.

    Args:
        fn: a function of pytrees; arrays are its inputs, everything else in the arguments is passed unchanged.  For a
            training step that you did not write, pass the loss or the model in it if you can, not the step.
        name: the name of the layers.

    Raises:
        FrontendError: for an invalid name; when traced, if `fn` has no scan over layers.
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
        chosen = _chosen(closed, fn, name)
        made: T = join(_run(closed, arrays, name, chosen), result[0])
        return made

    return named


def _chosen(closed: Closed, fn: Callable[..., Any], name: str) -> dict[tuple[int, int], Closed]:
    """Return the bodies of the scans over layers, by identity and length.  Raises `FrontendError` if there is none."""
    result = scans_of(closed)
    possible = [one for one in result if not one.reason]
    possible = [one for one in possible if one.multiplies] or possible
    if not possible:
        others = "".join(f"; {one} is not: {one.reason}" for one in result)
        raise mistake(
            f"name_scans found no jax.lax.scan over layers in {name_of(fn)!r} to be called {name!r}{others}. "
            "Give it the function that scans over the layers."
        )
    longest = max(one.length for one in possible)
    chosen = [one for one in possible if one.length == longest]
    others = ", ".join(dict.fromkeys(str(one) for one in possible if one.length != longest))
    if others:
        warn(
            f"name_scans calls the longest scan {name!r}, {chosen[0]}, and not {others}, which may be over layers as "
            "well. Give it the function that holds the scan you mean and no other"
        )
    # JAX caches bodies, so scans of different lengths may share one.
    return {(id(one.body), one.length): one.body for one in chosen}


def _run(closed: Closed, args: Sequence[Any], name: str, chosen: Mapping[tuple[int, int], Closed]) -> list[Any]:
    """Return the results of `closed`, with the chosen scans called `name`."""

    def rule(eqn: Equation, operands: list[Any]) -> list[Any]:
        with tracing.source_of(eqn):
            if eqn.primitive.name == "scan":
                return _scan(eqn, operands, name, chosen)
            inner = inner_of(eqn)
            if inner is None or not _has(inner, chosen):
                return tracing.rebind(eqn, operands)
            run: Callable[..., list[Any]] = lambda *values: _run(inner, values, name, chosen)  # noqa: E731
            if eqn.primitive.name in REMAT:
                run = jax.checkpoint(run, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
            return run(*operands)

    return tracing.interpret(closed, args, rule)


def _has(closed: Closed, chosen: Mapping[tuple[int, int], Closed]) -> bool:
    """Return whether a chosen scan is in `closed`."""
    return any(
        e.primitive.name == "scan" and (id(e.params["jaxpr"]), e.params["length"]) in chosen
        for e in tracing.equations(closed)
    )


def _scan(eqn: Equation, args: Sequence[Any], name: str, chosen: Mapping[tuple[int, int], Closed]) -> list[Any]:
    layout = tracing.scan_layout(eqn)
    constants, carry, scanned = layout.split(args)
    is_chosen = (id(layout.body), layout.length) in chosen
    if not is_chosen and not _has(layout.body, chosen):
        return tracing.rebind(eqn, args)

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        values = [*constants, *carry, *xs]
        results = tracing.run(layout.body, values) if is_chosen else _run(layout.body, values, name, chosen)
        return results[: layout.carries], results[layout.carries :]

    scan = functools.partial(layers.scan, name=name) if is_chosen else jax.lax.scan
    carry, outputs = scan(
        body, list(carry), list(scanned), layout.length, reverse=layout.reverse, unroll=eqn.params["unroll"]
    )
    return [*carry, *outputs]
