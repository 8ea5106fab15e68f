"""`name_scans`: names for the scans in model code that should stay as it is.

The function is traced on its own, and its jaxpr is run in its place, with `mpmd_trace.scan` where it scans over layers.
That happens before it is differentiated, so derivatives follow.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from mpmd_trace.frontend import control_flow, layer_scan, tags
from mpmd_trace.frontend.errors import mistake, warn
from mpmd_trace.frontend.eval_jaxpr import REMAT, applied, interpret
from mpmd_trace.frontend.functions import name_of
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.statics import Statics, divided, join
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

T = TypeVar("T")


def name_scans(fn: Callable[..., T], name: str) -> Callable[..., T]:
    """Name the `jax.lax.scan` over layers in `fn`, as if it were `mpmd_trace.scan`.

    Use it for models from any library that scan over stacked layers.  A scan is over layers if it scans over
    parameters and multiplies its carry by them.  Scans over microbatches (which carry sums) and over time (which
    scan over no parameters) are not named, but a scan inside them may be.  If several scans are over layers, the
    longest ones are named, with a warning.  Outside `mpmd_trace.jit`, the result does the same as `fn`.

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
        if not layer_scan.is_assigning():
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

    return interpret(closed, args, rule)


def _has(closed: Closed, chosen: Mapping[tuple[int, int], Closed]) -> bool:
    """Return whether a chosen scan is in `closed`."""
    return any(
        e.primitive.name == "scan" and (id(e.params["jaxpr"]), e.params["length"]) in chosen
        for e in tracing.equations(closed)
    )


def _scan(eqn: Equation, args: Sequence[Any], name: str, chosen: Mapping[tuple[int, int], Closed]) -> list[Any]:
    layout = tracing.scan_layout(eqn)
    is_chosen = (id(layout.body), layout.length) in chosen
    if not is_chosen and not _has(layout.body, chosen):
        return tracing.rebind(eqn, args)

    def inside(body: Closed, values: Sequence[Any], state: Any) -> tuple[list[Any], Any]:
        return tracing.run(body, values) if is_chosen else _run(body, values, name, chosen), state

    scan = functools.partial(layer_scan.scan, name=name) if is_chosen else jax.lax.scan
    return control_flow.scan(eqn, args, inside, scan=scan)[0]


_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
_SUMS = frozenset({"add", "add_any", "max", "min", "or", "and", "convert_element_type"})
#: What a value depends on: what the scan carries, and numbers that it scans.
_CARRIED, _SCANNED = 1, 2


def inner_of(eqn: Equation) -> Closed | None:
    """Return the jaxpr that `eqn` only applies, if scans in it are looked for."""
    has_rule = eqn.primitive.name.startswith("custom_")  # of its own for derivatives, which it would lose
    return None if has_rule or tag_of(eqn) is not None else applied(eqn)


class Scan(NamedTuple):
    """A scan, and whether it is over layers."""

    #: Its body, by whose identity it is known.
    body: Closed
    length: int
    #: Where it is in the program of the user.
    place: str | None
    #: Why it is not over layers, "" if it may be.
    reason: str
    #: Whether it multiplies what it carries by what it scans.
    multiplies: bool

    def __str__(self) -> str:
        return f"that of length {self.length}" + ("" if self.place is None else f" at {self.place}")


def scans_of(closed: Closed) -> list[Scan]:
    """Return the outermost scans of a jaxpr that may be over layers, and those around and beside them."""
    return _scans(closed, [False] * len(tracing.opened(closed).invars))


def _scans(closed: Closed, computed: Sequence[bool]) -> list[Scan]:
    """Return the scans; `computed` says of each argument whether it is the result of a product, and so no parameter."""
    scans: list[Scan] = []

    def rule(eqn: Equation, known: list[bool]) -> Sequence[bool]:
        body = inner_of(eqn)
        if eqn.primitive.name == "scan":
            scans.append(_judged(eqn, known))
            body = None if scans[-1].multiplies else scans[-1].body
        if body is not None:
            scans.extend(_scans(body, known))
        return [any(known) or _multiplies(eqn)] * len(eqn.outvars)

    interpret(closed, computed, rule, constant=lambda _: False)
    return scans


def _multiplies(eqn: Equation) -> bool:
    """Return whether there is a product in `eqn`."""
    inside = (one for inner in tracing.subjaxprs(eqn) for one in tracing.equations(inner))
    return eqn.primitive.name in _PRODUCTS or any(one.primitive.name in _PRODUCTS for one in inside)


def _judged(eqn: Equation, computed: Sequence[bool]) -> Scan:
    layout = tracing.scan_layout(eqn)
    place = tracing.location(eqn)
    scanned = zip(layout.split(eqn.invars)[2], layout.split(computed)[2], strict=True)
    numbers = [jnp.issubdtype(v.aval.dtype, jnp.inexact) and not is_computed for v, is_computed in scanned]
    if not any(numbers):
        return Scan(layout.body, layout.length, place, "it scans no parameters", False)
    masks = [*[0] * layout.constants, *[_CARRIED] * layout.carries, *(_SCANNED * n for n in numbers)]
    if _only_sums(layout):
        return Scan(layout.body, layout.length, place, "it carries sums, as over microbatches", False)
    return Scan(layout.body, layout.length, place, "", _flow(layout.body, masks)[1])


def _only_sums(layout: tracing.ScanLayout) -> bool:
    """Return whether what the scan carries is only passed on or added to, and nothing else reads it."""
    parts = tracing.opened(layout.body)
    users: dict[Any, list[Equation]] = {}
    for eqn in parts.eqns:
        for v in eqn.invars:
            if not tracing.is_literal(v):
                users.setdefault(v, []).append(eqn)

    def is_sum(v: Any, result: Any) -> bool:
        while v is not result and v in users:
            if len(users[v]) > 1 or users[v][0].primitive.name not in _SUMS:
                return False
            v = users[v][0].outvars[0]
        return True  # or nothing looks at it

    carried = parts.invars[layout.constants : layout.constants + layout.carries]
    return all(is_sum(v, result) for v, result in zip(carried, parts.outvars, strict=False))


def _flow(closed: Closed, masks: Sequence[int]) -> tuple[list[int], bool]:
    """Return what the results depend on, for arguments of these; and whether parameters multiply what is carried."""
    multiplies = False

    def rule(eqn: Equation, operands: list[int]) -> Sequence[int]:
        nonlocal multiplies
        body = applied(eqn)
        if body is not None:
            results, inside = _flow(body, operands)
        else:
            inside = _SCANNED in operands and any(m & _CARRIED for m in operands) and _multiplies(eqn)
            results = [functools.reduce(operator.or_, operands, 0)] * len(eqn.outvars)
        multiplies |= inside
        return results

    return interpret(closed, masks, rule, constant=lambda _: 0), multiplies
