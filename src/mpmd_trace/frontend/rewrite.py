"""The interpreter that turns a traced program into one whose equations are `mpmd` ops or plain JAX.

It runs the user's jaxpr once more, under a new trace. Tagged jits become the primitives that lower
to `mpmd` ops, everything around names is opened (calls inlined, scans unrolled), everything else is
bound as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend import folding, markers, memories, tags
from mpmd_trace.frontend.calls import Place, Plan, live_equations, plan
from mpmd_trace.frontend.errors import problem
from mpmd_trace.frontend.fingerprint import Fingerprints
from mpmd_trace.frontend.shardings import Meshes, without_devices
from mpmd_trace.jax_compat import lowering, tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened

#: Constants of more bytes become inputs of the program; smaller ones are written into it.
LARGE_CONSTANT_BYTES = 16 * 1024

# Primitives that only apply a function to their operands, and the parameter that holds it. What
# their rules were for (differentiation, batching) is over when this interpreter runs.
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
_REMAT = frozenset({"checkpoint", "remat", "remat2"})
_MARKERS = frozenset(p.name for p in (markers.named_tensor_p, markers.broadcast_p, markers.reduce_p))


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds the equations being interpreted.

    `level` is `main`, `callee` (the body of a call), `named` (of a named computation) or `kept`
    (control flow that stays as it is, inside a named computation).
    """

    level: str = "main"
    transposes: int = 0
    counter: int | None = None
    rematerialised: bool = False
    parent: str | None = None

    def at(self, eqn: Equation) -> Scope:
        """The scope inside `eqn`."""
        scopes = tracing.scopes(eqn)
        counter = tags.counter_in(scopes)
        return dataclasses.replace(
            self,
            transposes=self.transposes + tracing.transposes(eqn),
            counter=self.counter if counter is None else counter,
            rematerialised=self.rematerialised or any("rematted_computation" in scope for scope in scopes),
        )


@dataclasses.dataclass(frozen=True)
class Shared:
    """A rewritten body, and where each result of the original comes from.

    A source is `(True, i)` for the i-th result of `closed`, `(False, i)` for its i-th argument:
    results that are equal, or that only pass an argument on, do not leave the body.
    """

    closed: Closed
    sources: tuple[tuple[bool, int], ...]

    @property
    def emits(self) -> bool:
        """Whether any result is computed."""
        return any(computed for computed, _ in self.sources)

    def results(self, operands: Sequence[Any], out: Sequence[Any]) -> list[Any]:
        """The results of the original, for the operands and results of `closed`."""
        return [(out if computed else operands)[i] for computed, i in self.sources]


class Rewriter:
    """Interprets one program; collects the names, meshes and mistakes that it finds."""

    def __init__(self, meshes: Meshes) -> None:
        self.names: dict[str, list[str]] = {}
        self.computations: dict[str, str | None] = {}
        self.nested: dict[tuple[str, str], str | None] = {}
        self.problems: list[Diagnostic] = []
        self.meshes = meshes
        self._fingerprints = Fingerprints()
        self._named_memo: dict[int, tuple[Closed, bool]] = {}
        self._large_memo: dict[int, tuple[Closed, dict[int, Any]]] = {}
        self._bodies: dict[Any, Shared] = {}
        self._constants: list[dict[int, Any]] = []

    # ---- constants ------------------------------------------------------------------------

    def large_constants(self, closed: Closed) -> dict[int, Any]:
        """The constants anywhere in `closed` that are too large to be written out, by identity."""
        if id(closed) in self._large_memo:
            return self._large_memo[id(closed)][1]
        parts = opened(closed)
        found = {id(c): c for c in parts.consts if _is_large(c)}
        for eqn in parts.eqns:
            found.update({id(v.val): v.val for v in eqn.invars if _is_large_literal(v)})
            for inner in tracing.subjaxprs(eqn):
                found.update(self.large_constants(inner))
        self._large_memo[id(closed)] = (closed, found)
        return found

    @contextmanager
    def _constants_from(self, values: dict[int, Any]) -> Iterator[None]:
        self._constants.append(values)
        try:
            yield
        finally:
            self._constants.pop()

    def _constant(self, value: Any) -> Any:
        return self._constants[-1].get(id(value), value)

    # ---- queries --------------------------------------------------------------------------

    def has_names(self, closed: Closed) -> bool:
        """Whether `closed` contains a tagged jit or a mark, at any depth."""
        if id(closed) not in self._named_memo:
            answer = any(self._is_named(eqn) for eqn in opened(closed).eqns)
            self._named_memo[id(closed)] = (closed, answer)
        return self._named_memo[id(closed)][1]

    def _is_named(self, eqn: Equation) -> bool:
        if eqn.primitive.name in _MARKERS or tag_of(eqn) is not None:
            return True
        return any(self.has_names(inner) for inner in tracing.subjaxprs(eqn))

    def _has_calls(self, closed: Closed) -> bool:
        for eqn in opened(closed).eqns:
            tag = tag_of(eqn)
            if tag is not None and tag.kind == "call":
                return True
            if any(self._has_calls(inner) for inner in tracing.subjaxprs(eqn)):
                return True
        return False

    def _must_change(self, closed: Closed) -> bool:
        """Whether control flow that stays contains something that cannot stay."""
        return self.has_names(closed) or any(
            eqn.primitive.name == "sharding_constraint"
            or memories.names_devices(eqn)
            or without_devices(eqn) is not eqn.params
            or any(self._must_change(inner) for inner in tracing.subjaxprs(eqn))
            for eqn in opened(closed).eqns
        )

    # ---- interpretation -------------------------------------------------------------------

    def program(self, closed: Closed) -> Callable[..., list[Any]]:
        """`closed` as a function of its large constants, then its arguments."""
        large = self.large_constants(closed)

        def run(*args: Any) -> list[Any]:
            constants = dict(zip(large, args, strict=False))
            with self._constants_from(constants):
                results = self.evaluate(closed, args[len(large) :], Scope())
            return [folding.whole(r) for r in results]

        return run

    def evaluate(
        self,
        closed: Closed,
        args: Sequence[Any],
        scope: Scope,
        wanted: Sequence[bool] | None = None,
        given: dict[Place, Any] | None = None,
    ) -> list[Any]:
        """The results of `closed` on `args`; those that are not `wanted` may be None.

        `given` holds values inside `closed` that need not be computed.
        """
        parts = opened(closed)
        constants = map(self._constant, parts.consts)
        env: dict[Any, Any] = dict(zip(parts.constvars, constants, strict=True))
        env.update(zip(parts.invars, args, strict=True))
        ready = {parts.eqns[i].outvars[k]: value for (i, k), value in (given or {}).items()}
        env.update(ready)

        def read(atom: Any) -> Any:
            return self._constant(atom.val) if tracing.is_literal(atom) else env.get(atom)

        alive = live_equations(closed, wanted, set(ready))
        for eqn, used in zip(parts.eqns, alive, strict=True):
            if used:
                results = self._equation(eqn, [read(v) for v in eqn.invars], scope)
                env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in parts.outvars]

    def _equation(self, eqn: Equation, args: list[Any], outer: Scope) -> list[Any]:
        scope = outer.at(eqn)
        name = eqn.primitive.name
        tag = tag_of(eqn)
        with tracing.source_of(eqn):
            if scope.level in ("main", "callee"):
                folded = folding.fold(eqn, args) or folding.sliced(eqn, args)
                if folded is not None:
                    return folded
            if eqn.primitive is markers.transposes_p:
                return args
            if name in _MARKERS:
                return self._marker(eqn, folding.whole(args[0]), scope)
            if tag is not None and tag.kind == "named_computation":
                return self._named(eqn, tag.name, args, scope)
            if tag is not None and tag.kind == "call" and scope.level == "main":
                return self.call(eqn.params["jaxpr"], tag.name, args, scope)
            if name in _INLINED:
                return self.evaluate(eqn.params[_INLINED[name]], args, scope)
            if name == "sharding_constraint":
                return [self._sharded(eqn, 0, folding.whole(args[0]), eqn.params["sharding"])]
            if memories.names_devices(eqn):
                return self._put(eqn, [folding.whole(a) for a in args])
            if name == "shard_map" and (mistake := self.meshes.unknown(eqn.params["mesh"].shape)):
                self.problems.append(problem(mistake, tracing.location(eqn)))
            if any(self._must_change(inner) for inner in tracing.subjaxprs(eqn)):
                return self._open(eqn, args, scope)
            return tracing.rebind(eqn, [folding.whole(a) for a in args], without_devices(eqn))

    def _open(self, eqn: Equation, args: list[Any], scope: Scope) -> list[Any]:
        """Interpret an equation with jaxprs inside, some of which must change."""
        name = eqn.primitive.name
        named = any(self.has_names(inner) for inner in tracing.subjaxprs(eqn))
        if named and name in _REMAT:
            return self.evaluate(eqn.params["jaxpr"], args, scope)
        if named and scope.level in ("main", "callee"):
            if name == "scan":
                return self._unroll(eqn, args, scope)
            self.problems.append(self._cannot_open(eqn))
        inside = dataclasses.replace(scope, level="kept")
        params = dict(without_devices(eqn))
        if name != "shard_map":
            for key, value in params.items():
                params[key] = self._changed(value, inside)
        return tracing.rebind(eqn, [folding.whole(a) for a in args], params)

    def _cannot_open(self, eqn: Equation) -> Diagnostic:
        kinds = {
            "cond": "a conditional (jax.lax.cond, switch or a branch of while)",
            "while": "a loop with a number of iterations that is not known (jax.lax.while_loop)",
            "shard_map": "jax.shard_map",
        }
        kind = kinds.get(eqn.primitive.name, f"jax primitive {eqn.primitive.name!r}")
        names = sorted({n for inner in tracing.subjaxprs(eqn) for n in self._names_inside(inner)})
        listed = ", ".join(map(repr, names)) or "a name"
        return problem(
            f"{listed} occurs inside {kind}. Which mesh computes what must be known when compiling: "
            "put the whole control flow into one named computation, or use fori_loop / "
            "jax.lax.scan with a fixed number of iterations.",
            tracing.location(eqn),
        )

    def _names_inside(self, closed: Closed) -> Iterator[str]:
        for eqn in opened(closed).eqns:
            tag = tag_of(eqn)
            if tag is not None and tag.kind == "named_computation":
                yield tag.name
            elif eqn.primitive is markers.named_tensor_p:
                yield eqn.params["name"]
            for inner in tracing.subjaxprs(eqn):
                yield from self._names_inside(inner)

    def _changed(self, value: Any, scope: Scope) -> Any:
        """A parameter with the jaxprs in it rewritten."""
        if isinstance(value, (tuple, list)):
            return type(value)([self._changed(v, scope) for v in value]) if _plain(value) else value
        if not tracing.is_jaxpr(value) or not self._must_change(value):
            return value
        avals = tracing.in_avals(value)
        with self._constants_from({}):
            return tracing.make_closed(
                lambda *a: [folding.whole(r) for r in self.evaluate(value, a, scope)], avals
            )

    # ---- names ----------------------------------------------------------------------------

    def _found(self, name: str, eqn: Equation, scope: Scope) -> None:
        where = tracing.location(eqn)
        places = self.names.setdefault(name, [])
        if where is not None and where not in places:
            places.append(where)
        if scope.parent is not None:
            self.nested.setdefault((scope.parent, name), where)

    def _named(self, eqn: Equation, name: str, args: list[Any], scope: Scope) -> list[Any]:
        self._found(name, eqn, scope)
        if scope.parent is None:
            self.computations.setdefault(name, tracing.location(eqn))
        body = eqn.params["jaxpr"]
        if scope.level == "kept":
            return self.evaluate(body, args, dataclasses.replace(scope, parent=name))
        inside = Scope("named", scope.transposes, None, scope.rematerialised, name)
        shared = self._body(body, inside, barrier=scope.rematerialised)
        operands = [
            *map(self._constant, self.large_constants(body).values()),
            *map(folding.whole, args),
        ]
        if not shared.emits:  # the derivative of something that does not depend on its arguments
            return shared.results(operands, [])
        # A forward computation below a transposition is recomputed for the backward pass.
        count = _count_in(body) or scope.transposes
        out = lowering.named_computation_p.bind(
            *operands, body=shared.closed, name=name, transpose_count=count
        )
        return shared.results(operands, out)

    def _marker(self, eqn: Equation, x: Any, scope: Scope) -> list[Any]:
        is_name = eqn.primitive is markers.named_tensor_p
        if is_name:
            self._found(eqn.params["name"], eqn, scope)
        if scope.level == "kept":
            return [x]
        if is_name:
            return list(lowering.named_tensor_p.bind(x, name=eqn.params["name"]))
        if eqn.primitive is markers.broadcast_p:
            return list(lowering.broadcast_p.bind(x))
        return list(lowering.reduce_p.bind(x, reduction="none"))

    def _sharded(self, eqn: Equation, index: int, x: Any, sharding: Any) -> Any:
        """`x`, the result number `index` of `eqn`, with this sharding."""
        text, mistake = self.meshes.text(sharding, eqn.outvars[index].aval)
        if mistake is not None:
            self.problems.append(problem(mistake, tracing.location(eqn)))
        if text is None:
            return x
        return lowering.sharding_p.bind(x, sharding=text, mesh=self.meshes.op(sharding))[0]

    def _put(self, eqn: Equation, values: list[Any]) -> list[Any]:
        """A `device_put`: of its targets, only the axes and the memory count."""
        found = []
        for i, (x, target) in enumerate(zip(values, eqn.params["devices"], strict=True)):
            is_sharding = isinstance(target, jax.sharding.Sharding)
            found.append(memories.put(self._sharded(eqn, i, x, target) if is_sharding else x, target))
        return found

    def _body(
        self,
        body: Closed,
        scope: Scope,
        *,
        barrier: bool = False,
        plan: Plan | None = None,
    ) -> Shared:
        """`body` interpreted on its own: a jaxpr of its large constants, then its arguments.

        With a `plan`, of the arguments and given values, and for the results, that it lists.
        """
        parts = opened(body)
        key = (
            self._fingerprints.of(body),
            dataclasses.replace(scope, counter=None),
            barrier,
            None if plan is None else (plan.arguments, plan.given, plan.wanted),
        )
        if key in self._bodies:
            return self._bodies[key]
        positions = range(len(parts.invars)) if plan is None else plan.arguments
        places = () if plan is None else plan.given
        wanted = None if plan is None else plan.wanted
        large = self.large_constants(body)
        sources: list[tuple[bool, int]] = []

        def run(*values: Any) -> list[Any]:
            constants = dict(zip(large, values, strict=False))
            inputs = list(values[len(large) :])
            if barrier and inputs:
                # Without it, the recomputation would be merged with what it repeats.
                inputs = list(lax.optimization_barrier(inputs))
            args: list[Any] = [None] * len(parts.invars)
            for position, value in zip(positions, inputs, strict=False):
                args[position] = value
            given = dict(zip(places, inputs[len(positions) :], strict=True))
            with self._constants_from(constants):
                found = self.evaluate(body, args, scope, wanted, given)
                needed = [r for i, r in enumerate(found) if wanted is None or wanted[i]]
                distinct, sources[:] = _distinct([folding.whole(r) for r in needed], values)
            return distinct

        types = [jax.typeof(c) for c in large.values()]
        types += [parts.invars[i].aval for i in positions]
        types += [parts.eqns[i].outvars[k].aval for i, k in places]
        closed = tracing.make_closed(run, types)
        self._bodies[key] = shared = Shared(closed, tuple(sources))
        return shared

    # ---- calls and loops ------------------------------------------------------------------

    def call(self, body: Closed, name: str, args: list[Any], scope: Scope) -> list[Any]:
        """One `mpmd.call` of `body`.

        Results that only pass an argument or a known value on do not go through the call, and
        arguments that are not used do not either.
        """
        args = [folding.as_known(a, t) for a, t in zip(args, tracing.in_avals(body), strict=True)]
        division = plan(body, args)
        results = dict(division.direct)
        if any(division.wanted):
            inside = Scope("callee", scope.transposes, None, scope.rematerialised)
            shared = self._body(body, inside, plan=division)
            operands = [
                *map(self._constant, self.large_constants(body).values()),
                *(folding.whole(args[i]) for i in division.arguments),
                *map(folding.whole, division.values),
            ]
            suffix = "_transposed" if scope.transposes else ""
            out: Sequence[Any] = ()
            if shared.emits:
                out = lowering.call_p.bind(
                    *operands, body=shared.closed, name=name + suffix, call_counter=scope.counter
                )
            computed = [i for i, w in enumerate(division.wanted) if w]
            results.update(zip(computed, shared.results(operands, out), strict=True))
        return [results[i] for i in range(len(division.wanted))]

    def _unroll(self, eqn: Equation, args: list[Any], scope: Scope) -> list[Any]:
        """A scan, one iteration after the other, each a call when calls are possible here."""
        layout = tracing.scan_layout(eqn)
        first = layout.constants + layout.carries
        constants, carry, scanned = args[: layout.constants], args[layout.constants : first], args[first:]
        avals = tracing.in_avals(layout.body)
        as_calls = scope.level == "main" and not self._has_calls(layout.body)
        order = range(layout.length)
        outputs: dict[int, list[Any]] = {}
        for i in reversed(order) if layout.reverse else order:
            values = [*constants, *carry, *(folding.slice_at(x, i) for x in scanned)]
            values = [folding.as_known(v, a) for v, a in zip(values, avals, strict=True)]
            inside = dataclasses.replace(scope, counter=i)
            if as_calls:
                results = self.call(layout.body, "iteration", values, inside)
            else:
                results = self.evaluate(layout.body, values, inside)
            carry, outputs[i] = results[: layout.carries], results[layout.carries :]
        if not outputs:  # no iteration: nothing to open, and the scan gives empty stacks
            return tracing.rebind(eqn, [folding.whole(a) for a in args])
        stacks = [folding.Stack([outputs[i][k] for i in order]) for k in range(len(outputs[0]))]
        return [*carry, *stacks]


def tag_of(eqn: Equation) -> tags.Tag | None:
    """The tag of a tagged jit, None for any other equation."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return None
    return tags.decode(eqn.params["name"])


def _count_in(body: Closed) -> int:
    """How often the named computation with this body was transposed."""
    eqns = opened(body).eqns
    counts = [e.params["count"] for e in eqns if e.primitive is markers.transposes_p]
    return max(counts, default=0)


def _distinct(results: Sequence[Any], arguments: Sequence[Any]) -> tuple[list[Any], list[tuple[bool, int]]]:
    """The results without arguments and repetitions, and the source of each of them."""
    distinct: list[Any] = []
    place = {id(a): (False, i) for i, a in enumerate(arguments)}
    sources = []
    for result in results:
        if id(result) not in place:
            place[id(result)] = (True, len(distinct))
            distinct.append(result)
        sources.append(place[id(result)])
    return distinct, sources


def _plain(value: Any) -> bool:
    return type(value) in (tuple, list)


def _is_large(value: Any) -> bool:
    return getattr(value, "nbytes", 0) > LARGE_CONSTANT_BYTES


def _is_large_literal(atom: Any) -> bool:
    return tracing.is_literal(atom) and _is_large(atom.val)
