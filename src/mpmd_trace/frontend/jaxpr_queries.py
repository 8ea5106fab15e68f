"""What a jaxpr contains that decides how it is rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend import marker_primitives, memory_kinds
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.shardings import without_devices
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

#: The primitives of `jax.checkpoint`, by name, and those of marks.
REMAT = frozenset({"checkpoint", "remat", "remat2"})
MARKERS = frozenset(
    p.name for p in (marker_primitives.named_tensor_p, marker_primitives.broadcast_p, marker_primitives.reduce_p)
)

# Primitives that only apply a function to their operands, and the parameter that holds it. What
# their rules were for (differentiation, batching) is over when this interpreter runs.
INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


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


def applied(eqn: Equation) -> Closed | None:
    """Return the jaxpr that `eqn` only applies to its operands, if it does."""
    name = eqn.primitive.name
    return eqn.params["jaxpr" if name in REMAT else INLINED[name]] if name in INLINED or name in REMAT else None


class _Flow(NamedTuple):
    """What becomes of the arguments of a jaxpr, by number."""

    #: For each result that is an argument as it came, that argument.
    returned: dict[int, int]
    #: Those that something computes with.
    read: frozenset[int]


def only_returned(closed: Closed) -> list[int]:
    """Return the arguments that are results as they came and that nothing computes with.

    Also by way of functions that are only applied, as named layers, and of loops: these may hand them on, or not look
    at them.
    """
    flow = _flow(closed, {})
    return sorted(set(flow.returned.values()) - flow.read)


def _flow(closed: Closed, known: dict[int, tuple[Closed, _Flow]]) -> _Flow:
    """`known`: those of the jaxprs inside, each of which may be applied many times."""
    if id(closed) in known:
        return known[id(closed)][1]
    parts = opened(closed)
    numbers = {var: i for i, var in enumerate(parts.invars)}
    read: set[int] = set()

    def argument(atom: Any) -> int | None:
        return None if tracing.is_literal(atom) else numbers.get(atom)

    for eqn in parts.eqns:
        body = applied(eqn)
        if eqn.primitive is marker_primitives.transposes_p:
            inside = _Flow({0: 0}, frozenset())
        elif body is not None:
            inside = _flow(body, known)
        elif eqn.primitive.name == "scan":
            inside = _flow_of_loop(tracing.scan_layout(eqn), len(eqn.invars), known)
        else:
            inside = _Flow({}, frozenset(range(len(eqn.invars))))
        read.update(n for i in inside.read if (n := argument(eqn.invars[i])) is not None)
        for result, i in inside.returned.items():
            if (n := argument(eqn.invars[i])) is not None:
                numbers[eqn.outvars[result]] = n
    returned = {i: n for i, atom in enumerate(parts.outvars) if (n := argument(atom)) is not None}
    results = _Flow(returned, frozenset(read))
    known[id(closed)] = closed, results
    return results


def _flow_of_loop(loop: tracing.ScanLayout, operands: int, known: dict[int, tuple[Closed, _Flow]]) -> _Flow:
    """Return what each turn hands on to the next is what the first one was given."""
    turn = _flow(loop.body, known)
    carried = {i: loop.constants + i for i in range(loop.carries) if turn.returned.get(i) == loop.constants + i}
    others = (n for i, n in turn.returned.items() if carried.get(i) != n)
    changed = set(range(loop.constants, operands)).difference(carried.values())
    return _Flow(carried, turn.read.union(others, changed))


#: What the rewriter looks at by name, and what may change when some of its operands are known.
_LOOKED_AT = MARKERS | {marker_primitives.transposes_p.name, "sharding_constraint", "device_put", "dynamic_slice"}


def stays(eqn: Equation, args: Sequence[Any]) -> bool:
    """Return whether `eqn` stays what it is on these operands, wherever it stands."""
    if eqn.effects or eqn.primitive.name in _LOOKED_AT or any(True for _ in tracing.subjaxprs(eqn)):
        return False
    return any(isinstance(a, jax.core.Tracer) for a in args)


class JaxprQueries:
    """Asked again and again of the same jaxprs; answers are remembered where that pays."""

    def __init__(self) -> None:
        self._named_memo: dict[int, tuple[Closed, bool]] = {}

    def has_names(self, closed: Closed) -> bool:
        """Return whether `closed` contains a tagged jit or a mark, at any depth."""
        if id(closed) not in self._named_memo:
            answer = any(
                eqn.primitive.name in MARKERS
                or tag_of(eqn) is not None
                or any(map(self.has_names, tracing.subjaxprs(eqn)))
                for eqn in opened(closed).eqns
            )
            self._named_memo[id(closed)] = (closed, answer)
        return self._named_memo[id(closed)][1]

    def has_calls(self, closed: Closed, kinds: tuple[str, ...]) -> bool:
        """Return whether `closed` contains a call, or, if its kind is asked for, a loop that makes calls."""
        return any((tag := tag_of(eqn)) is not None and tag.kind in kinds for eqn in tracing.equations(closed))

    def recomputes(self, closed: Closed) -> bool:
        """Return whether anything named in `closed` is recomputed for a backward."""
        return any(
            self.has_names(inner) and (eqn.primitive.name in REMAT or self.recomputes(inner))
            for eqn in opened(closed).eqns
            for inner in tracing.subjaxprs(eqn)
        )

    def must_change(self, closed: Closed) -> bool:
        """Return whether control flow that stays contains something that cannot stay."""
        return self.has_names(closed) or any(
            eqn.primitive.name == "sharding_constraint"
            or (tracing.calls_out(eqn) and tracing.is_ordered(eqn))
            or memory_kinds.names_devices(eqn)
            or without_devices(eqn) is not eqn.params
            for eqn in tracing.equations(closed)
        )

    def names_in(self, eqn: Equation) -> list[str]:
        """Return the names of the computations and tensors inside of `eqn`, sorted."""
        inside = [one for inner in tracing.subjaxprs(eqn) for one in tracing.equations(inner)]
        names = {tag.name for one in inside if (tag := tag_of(one)) is not None and tag.kind == "named_computation"}
        return sorted(
            names.union(one.params["name"] for one in inside if one.primitive is marker_primitives.named_tensor_p)
        )
