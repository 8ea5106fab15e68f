"""What belongs to a microbatch as a call of its own, so that a gradient of the loop finds what the forward computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from mpmd_trace.frontend.fingerprint import Fingerprints
from mpmd_trace.frontend.scope import Shared
from mpmd_trace.jax_compat import lowering, tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation


class OutlinedCalls:
    """Makes calls; those of equal things have one body."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        #: With what is called, which its key names by identity.
        self._bodies: dict[Any, tuple[Any, Closed]] = {}

    def equation(self, eqn: Equation, operands: Sequence[Any], params: dict[str, Any], counter: int) -> list[Any]:
        """Return an equation of code without a name; one that reads nothing traced is no call."""
        traced = [i for i, a in enumerate(operands) if isinstance(a, jax.core.Tracer)]
        if not traced:
            return tracing.rebind(eqn, operands, params)

        def run(*values: Any) -> list[Any]:
            given = dict(zip(traced, values, strict=True))
            return tracing.rebind(eqn, [given.get(i, a) for i, a in enumerate(operands)], params)

        written = tuple(self._fingerprints.value(a) for i, a in enumerate(operands) if i not in traced)
        key = (id(eqn), tuple(traced), written)
        if key not in self._bodies:
            self._bodies[key] = eqn, tracing.make_closed(run, [jax.typeof(operands[i]) for i in traced])
        return self._call(key, [operands[i] for i in traced], eqn.primitive.name, counter)

    def computation(self, shared: Shared, operands: Sequence[Any], name: str, count: int, counter: int) -> list[Any]:
        """Return a named computation, transposed `count` times."""
        key = (id(shared), name, count)
        if key not in self._bodies:

            def run(*args: Any) -> Any:
                return lowering.named_computation_p.bind(*args, body=shared.closed, name=name, transpose_count=count)

            self._bodies[key] = shared, tracing.make_closed(run, tracing.in_avals(shared.closed))
        return self._call(key, operands, name, counter)

    def tensor(self, x: Any, name: str, counter: int) -> list[Any]:
        """Return a named tensor."""
        key = (name, jax.typeof(x))
        if key not in self._bodies:
            made = tracing.make_closed(lambda x: lowering.named_tensor_p.bind(x, name=name), [key[1]])
            self._bodies[key] = None, made
        return self._call(key, [x], name, counter)

    def _call(self, key: Any, operands: Sequence[Any], name: str, counter: int) -> list[Any]:
        body = self._bodies[key][1]
        return list(lowering.call_p.bind(*operands, body=body, name=name, call_counter=counter, repeats=1))
