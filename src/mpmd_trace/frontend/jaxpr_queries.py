"""Queries on jaxprs, which decide how they are rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend import marker_primitives, memory_kinds
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.eval_jaxpr import REMAT, applied, interpret
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.shardings import without_devices
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

MARKERS = frozenset(p.name for p in marker_primitives.MARKERS)


def kind_of(eqn: Equation) -> str:
    """Return the control flow of `eqn` in words."""
    kinds = {
        "cond": "a conditional (jax.lax.cond, switch or a branch of while)",
        "while": "a loop with a number of iterations that is not known (jax.lax.while_loop)",
        "shard_map": "jax.shard_map",
    }
    return kinds.get(eqn.primitive.name, f"jax primitive {eqn.primitive.name!r}")


def cannot_open(eqn: Equation, names: Sequence[str]) -> Diagnostic:
    """Control flow with these names inside that cannot be opened."""
    listed = ", ".join(map(repr, names)) or "a name"
    return problem(
        f"{listed} occurs inside {kind_of(eqn)}. Which mesh computes what must be known when compiling: "
        "put the whole control flow into one named computation, or use fori_loop / "
        "jax.lax.scan with a fixed number of iterations.",
        tracing.location(eqn),
    )


def has_no_order(eqn: Equation) -> Diagnostic:
    """Ordered callbacks inside something through which no token can go."""
    return problem(
        f"ordered callbacks occur inside {kind_of(eqn)}, where nothing comes before or after anything else. "
        "Take ordered=False, or move them out.",
        tracing.location(eqn),
    )


class _Flow(NamedTuple):
    """The arguments of a jaxpr that are returned or read, by number."""

    #: For each result that is an argument as it came, that argument.
    returned: dict[int, int]
    #: Those that something computes with.
    read: frozenset[int]


def only_returned(closed: Closed) -> list[int]:
    """Return the arguments that are results as they came and that nothing computes with.

    Also by way of functions that are only applied, as named layers, and of loops: these may hand them on, or not look
    at them.
    """
    flow = _flow(closed)
    return sorted(set(flow.returned.values()) - flow.read)


@tracing.per_jaxpr
def _flow(closed: Closed) -> _Flow:
    read: set[int] = set()

    def rule(eqn: Equation, numbers: list[int | None]) -> list[int | None]:
        body = applied(eqn)
        if eqn.primitive is marker_primitives.transposes_p:
            inside = _Flow({0: 0}, frozenset())
        elif body is not None:
            inside = _flow(body)
        elif eqn.primitive.name == "scan":
            inside = _flow_of_loop(tracing.scan_layout(eqn), len(numbers))
        else:
            inside = _Flow({}, frozenset(range(len(numbers))))
        read.update(n for i in inside.read if (n := numbers[i]) is not None)
        return [numbers[inside.returned[i]] if i in inside.returned else None for i in range(len(eqn.outvars))]

    results = interpret(closed, range(len(opened(closed).invars)), rule, constant=lambda _: None)
    return _Flow({i: n for i, n in enumerate(results) if n is not None}, frozenset(read))


def _flow_of_loop(loop: tracing.ScanLayout, operands: int) -> _Flow:
    """Return what becomes of arguments in a loop, if each turn hands on to the next what the first one was given."""
    turn = _flow(loop.body)
    carried = {i: loop.constants + i for i in range(loop.carries) if turn.returned.get(i) == loop.constants + i}
    others = (n for i, n in turn.returned.items() if carried.get(i) != n)
    changed = set(range(loop.constants, operands)).difference(carried.values())
    return _Flow(carried, turn.read.union(others, changed))


#: What the interpreter looks at by name, and what may change when some of its operands are known.
_LOOKED_AT = MARKERS | {marker_primitives.transposes_p.name, "sharding_constraint", "device_put", "dynamic_slice"}


def stays(eqn: Equation, args: Sequence[Any]) -> bool:
    """Return whether `eqn` stays what it is on these operands, wherever it stands."""
    if eqn.effects or eqn.primitive.name in _LOOKED_AT or any(True for _ in tracing.subjaxprs(eqn)):
        return False
    return any(isinstance(a, jax.core.Tracer) for a in args)


@tracing.per_jaxpr
def has_names(closed: Closed) -> bool:
    """Return whether `closed` contains a tagged jit or a mark, at any depth."""
    return any(
        eqn.primitive.name in MARKERS or tag_of(eqn) is not None or any(map(has_names, tracing.subjaxprs(eqn)))
        for eqn in opened(closed).eqns
    )


def has_calls(closed: Closed, kinds: tuple[str, ...]) -> bool:
    """Return whether `closed` contains a call, or, if its kind is asked for, a loop that makes calls."""
    return any((tag := tag_of(eqn)) is not None and tag.kind in kinds for eqn in tracing.equations(closed))


def recomputes(closed: Closed) -> bool:
    """Return whether anything named in `closed` is recomputed for a backward."""
    return any(
        has_names(inner) and (eqn.primitive.name in REMAT or recomputes(inner))
        for eqn in opened(closed).eqns
        for inner in tracing.subjaxprs(eqn)
    )


@tracing.per_jaxpr
def must_change(closed: Closed) -> bool:
    """Return whether control flow that stays contains something that cannot stay."""
    return has_names(closed) or any(
        eqn.primitive.name == "sharding_constraint"
        or (tracing.calls_out(eqn) and tracing.is_ordered(eqn))
        or memory_kinds.names_devices(eqn)
        or without_devices(eqn) is not eqn.params
        for eqn in tracing.equations(closed)
    )


def names_in(eqn: Equation) -> list[str]:
    """Return the names of the computations and tensors inside of `eqn`, sorted."""
    inside = [one for inner in tracing.subjaxprs(eqn) for one in tracing.equations(inner)]
    names = {tag.name for one in inside if (tag := tag_of(one)) is not None and tag.kind == "named_computation"}
    return sorted(
        names.union(one.params["name"] for one in inside if one.primitive is marker_primitives.named_tensor_p)
    )


# Constants that are too large to be written into a program: they become inputs of it, and of each body with them.


#: Constants of more bytes become inputs of the program; smaller ones are written into it.
LARGE_CONSTANT_BYTES = 16 * 1024


@tracing.per_jaxpr
def large_constants(closed: Closed) -> dict[int, Any]:
    """Return the large constants anywhere in `closed`, by identity."""
    parts = opened(closed)
    result = {id(c): c for c in parts.consts if is_large(c)}
    for eqn in parts.eqns:
        result.update({id(v.val): v.val for v in eqn.invars if tracing.is_literal(v) and is_large(v.val)})
        for inner in tracing.subjaxprs(eqn):
            result.update(large_constants(inner))
    return result


def is_large(value: Any) -> bool:
    """Return whether a constant becomes an input."""
    return getattr(value, "nbytes", 0) > LARGE_CONSTANT_BYTES
