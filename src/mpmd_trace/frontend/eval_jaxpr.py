"""The interpreter of jaxprs: `interpret` goes through the equations, and a rule says what each of them gives.

What differs from one use to the other is the rule, and what stands for values:

| rule in | values | what becomes of the program |
|---|---|---|
| `mpmd_interpreter.py` | arrays of a new trace, known numbers, stacks of slices | `mpmd` equations and plain JAX |
| `stacked/interpreter.py` | arrays of a new trace, pieces of stacked layers | an argument for each piece |
| `scan_names.py` | arrays; what a value depends on | scans over layers get names |
| `remat.py` | numbers of expressions | what is recomputed is recognized |
| `nonlinear_losses.py` | how a value depends on the rows of a batch | a warning |
| `jaxpr_queries.py` | numbers of arguments | arguments that are only returned |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

#: The primitives of `jax.checkpoint`, by name.
REMAT = frozenset({"checkpoint", "remat", "remat2"})
# Primitives that only apply a function to their operands, and the parameter that holds it. What
# their rules were for (differentiation, batching) is over when programs are interpreted.
INLINED = {
    **dict.fromkeys(("jit", "pjit"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
_APPLYING = {**INLINED, **dict.fromkeys(REMAT, "jaxpr")}

#: What an equation gives for values of its operands.
Rule: TypeAlias = Callable[[Equation, list[Any]], Sequence[Any]]


def interpret(
    closed: Closed,
    args: Sequence[Any],
    rule: Rule,
    *,
    constant: Callable[[Any], Any] = lambda value: value,
    alive: Sequence[bool] | None = None,
    unused: Rule = lambda eqn, _: [None] * len(eqn.outvars),
) -> list[Any]:
    """Return the results of a jaxpr on `args`.

    Args:
        closed: the jaxpr; `rule` decides what becomes of those inside of its equations.
        args: values of its arguments.
        rule: gives the results of an equation on its operands.
        constant: gives the value of a constant or literal.
        alive: for each equation, whether to ask `rule`; by default for all.
        unused: gives the results of the other equations.
    """
    parts = opened(closed)
    env: dict[Any, Any] = dict(zip(parts.constvars, map(constant, parts.consts), strict=True))
    env.update(zip(parts.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return constant(atom.val) if tracing.is_literal(atom) else env[atom]

    for i, eqn in enumerate(parts.eqns):
        results = (rule if alive is None or alive[i] else unused)(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in parts.outvars]


def applied(eqn: Equation) -> Closed | None:
    """Return the jaxpr that `eqn` only applies to its operands, if it does."""
    param = _APPLYING.get(eqn.primitive.name)
    return None if param is None else eqn.params[param]


def live_equations(closed: Closed, wanted: Sequence[bool] | None = None, given: set[Any] | None = None) -> list[bool]:
    """For each equation, whether a (`wanted`) result depends on it, when `given` is known."""
    return _liveness(closed, wanted, given or set())[0]


def needed_variables(closed: Closed, wanted: Sequence[bool], given: set[Any]) -> set[Any]:
    """Return the variables on which the wanted results depend, when the values of `given` are known."""
    return _liveness(closed, wanted, given)[1]


def _liveness(closed: Closed, wanted: Sequence[bool] | None, given: set[Any]) -> tuple[list[bool], set[Any]]:
    parts = opened(closed)
    needed = {v for i, v in enumerate(parts.outvars) if (wanted is None or wanted[i]) and not tracing.is_literal(v)}
    alive = [False] * len(parts.eqns)
    for i in range(len(parts.eqns) - 1, -1, -1):
        eqn = parts.eqns[i]
        if eqn.effects or any(v in needed and v not in given for v in eqn.outvars):
            alive[i] = True
            needed.update(v for v in eqn.invars if not tracing.is_literal(v))
    return alive, needed
