"""The interpreter that turns a traced program into one whose equations are `mpmd` ops or plain JAX.

It runs the user's jaxpr once more, under a new trace. Tagged jits become the primitives that lower
to `mpmd` ops, everything around names is opened (calls inlined, scans unrolled), everything else is
bound as it was.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax

from mpmd_trace.diagnostics.messages import Diagnostic
from mpmd_trace.frontend import folding, marker_primitives, memory_kinds
from mpmd_trace.frontend.calls import Division, Divisions, OutlinedCalls, Place
from mpmd_trace.frontend.control_flow import can_thread
from mpmd_trace.frontend.effects import TOKEN, Order, once
from mpmd_trace.frontend.errors import problem, warn
from mpmd_trace.frontend.eval_jaxpr import INLINED, REMAT, applied, interpret, live_equations
from mpmd_trace.frontend.fingerprint import Fingerprints
from mpmd_trace.frontend.jaxpr_queries import (
    MARKERS,
    cannot_open,
    has_calls,
    has_names,
    has_no_order,
    kind_of,
    large_constants,
    must_change,
    names_in,
    recomputes,
    stays,
)
from mpmd_trace.frontend.remat import Expressions, Later, Site, Values, now
from mpmd_trace.frontend.repeated import WRITTEN, hands_on, is_regular
from mpmd_trace.frontend.scope import Scope, Shared, count_in, distinct, is_computation, tag_of
from mpmd_trace.frontend.shardings import Meshes, without_devices
from mpmd_trace.jax_compat import lowering, tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation, opened


class MpmdInterpreter:
    """Interprets one program; collects the names, meshes and mistakes that it finds.

    Args:
        meshes: the meshes of the topology.
        place: where a name is, for what `jax.checkpoint` recomputes; None when that is not known.
        is_short: whether one call may stand for many alike iterations of a loop.
    """

    def __init__(self, meshes: Meshes, place: Callable[[str], Site] | None = None, *, is_short: bool = False) -> None:
        self.names: dict[str, list[str]] = {}
        self.computations: dict[str, str | None] = {}
        self.nested: dict[tuple[str, ...], str | None] = {}
        self.problems: list[Diagnostic] = []
        self.meshes = meshes
        self._fingerprints = Fingerprints()
        self._told: set[str | None] = set()
        self._bodies: dict[Any, Shared] = {}
        self._divisions = Divisions()
        self._place = place
        self._order = Order(lambda name: place(name)[0] if place else None)
        self._expressions = Expressions(self._fingerprints)
        #: Of the traces that are being made, innermost last: the values, where some are recomputed.
        self._values: list[Values | None] = []
        #: What stands there for large constants, by id.
        self._constants: list[dict[int, Any]] = []
        #: By id, equations of the forward pass that only the backward needs.
        self._kept: dict[int, Equation] = {}
        #: Where something recomputed is handed to another place by another call than that of the forward pass.
        self.recomputed: str | None = None
        #: Whether each named computation of a loop or call is a call of its own, so that the forward pass is at hand.
        self._apart = False
        self._calls = OutlinedCalls(self._fingerprints)
        self._is_short = is_short
        #: Whether a call stands for several iterations.
        self.repeats = False

    @contextmanager
    def _trace_of(self, closed: Closed, scope: Scope, constants: dict[int, Any]) -> Iterator[None]:
        """Keep track of the values of the trace that `closed` is interpreted in."""
        self._constants.append(constants)
        known = self._place is not None and scope.is_open and recomputes(closed)
        self._values.append(Values(self._expressions, self._place) if known and self._place else None)
        try:
            with self._order.trace({}):
                yield
        finally:
            self._values.pop()
            self._constants.pop()

    def _constant(self, value: Any) -> Any:
        """Return what stands for a constant."""
        return self._constants[-1].get(id(value), value)

    # ---- interpretation -------------------------------------------------------------------

    def program(self, closed: Closed, name: str) -> Any:
        """Return `closed`, rewritten, as a program with its large constants before its arguments."""
        result = self._program(closed, name)
        if self.recomputed is None:
            return result
        # The gradient of a loop is another one, whose calls do not see what those of the first one have computed.
        self._apart, self.problems, self.repeats = True, [], False
        self._bodies.clear()
        return self._program(closed, name)

    def _program(self, closed: Closed, name: str) -> Any:
        large = large_constants(closed)

        def run(*args: Any) -> list[Any]:
            constants = dict(zip(large, args, strict=False))
            scope = Scope()
            with self._trace_of(closed, scope, constants):
                results = self.evaluate(closed, args[len(large) :], scope)
            return [folding.whole(r) for r in results]

        types = [jax.typeof(c) for c in large.values()] + list(tracing.in_avals(closed))
        return self._traced(run, lambda run: tracing.make_program(run, types, name, without_unused=self._apart))

    def _traced(self, run: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> Any:
        """Return what `make` traces of `run`; what only the backward needs of the forward pass goes first."""
        before = len(self._kept)
        made = make(run)
        # A function of its own: JAX remembers what it traced.
        return made if len(self._kept) == before else make(lambda *args: run(*args))

    def evaluate(
        self,
        closed: Closed,
        args: Sequence[Any],
        scope: Scope,
        wanted: Sequence[bool] | None = None,
        given: dict[Place, Any] | None = None,
    ) -> list[Any]:
        """Return the results of `closed` on `args`; those that are not `wanted` may be None.

        `given` holds values inside `closed` that need not be computed.
        """
        parts = opened(closed)
        ready = {parts.eqns[i].outvars[k]: value for (i, k), value in (given or {}).items()}
        # Neither values are tracked here, nor is each equation a call.
        as_it_is = not self._apart and (self._values[-1] is None or not scope.is_open)

        def used(eqn: Equation, operands: list[Any]) -> Sequence[Any]:
            same = tracing.staged(eqn, operands) if as_it_is and stays(eqn, operands) else None
            results = same or self._equation(eqn, operands, scope)
            return [ready.get(v, r) for v, r in zip(eqn.outvars, results, strict=True)] if ready else results

        def unused(eqn: Equation, operands: list[Any]) -> Sequence[Any]:
            if id(eqn) in self._kept and all(a is not None for a in operands):
                return used(eqn, [now(a) for a in operands])
            results = self._unused(eqn, operands, scope)
            return [ready.get(v, r) for v, r in zip(eqn.outvars, results, strict=True)]

        alive = live_equations(closed, wanted, set(ready))
        return interpret(closed, args, used, constant=self._constant, alive=alive, unused=unused)

    def _equation(self, eqn: Equation, args: list[Any], outer: Scope) -> list[Any]:
        scope = outer.at(eqn)
        values = self._values[-1] if scope.is_open else None
        if values is None or (self._opens(eqn) and not is_computation(eqn)):
            return self._interpret(eqn, args, scope)
        tag = tag_of(eqn)
        name = None if tag is None else tag.name
        if scope.is_backward:
            args = values.operands(args, name)
            if name is not None and values.crosses(args, name):
                self.recomputed = self.recomputed or tracing.location(eqn)
        results = self._interpret(eqn, args, scope)
        values.add(eqn, args, results, name, scope)
        return results

    def _unused(self, eqn: Equation, args: list[Any], outer: Scope) -> Sequence[Any]:
        """Return the results of an equation that no result depends on: values for the backward to keep, or None."""
        scope = outer.at(eqn)
        values = self._values[-1] if scope.is_open else None
        if values is None or scope.is_backward or any(a is None for a in args):
            return [None] * len(eqn.outvars)
        if not self._opens(eqn) or is_computation(eqn):

            def compute(args: Sequence[Any]) -> list[Any]:
                self._kept[id(eqn)] = eqn
                return self._equation(eqn, list(args), outer)

            return values.add_later(eqn, args, scope, compute)
        if eqn.primitive.name == "scan" and not any(isinstance(a, Later) for a in args):
            return self._unroll(eqn, args, scope, unused=True) if self._apart else [None] * len(eqn.outvars)
        inner = applied(eqn)
        if inner is None:
            return [None] * len(eqn.outvars)
        return self.evaluate(inner, args, scope, [False] * len(eqn.outvars))

    def _opens(self, eqn: Equation) -> bool:
        """Return whether the equations inside of `eqn` are interpreted in its place, where no call is."""
        tag = tag_of(eqn)
        if tag is not None and tag.kind == "call":
            return True
        names = any(map(has_names, tracing.subjaxprs(eqn)))
        return eqn.primitive.name in INLINED or (names and eqn.primitive.name in {*REMAT, "scan"})

    def _interpret(self, eqn: Equation, args: list[Any], scope: Scope) -> list[Any]:
        name = eqn.primitive.name
        tag = tag_of(eqn)
        with tracing.source_of(eqn):
            if scope.is_open:
                folded = folding.fold(eqn, args) or folding.sliced(eqn, args)
                if folded is not None:
                    return folded
            if eqn.primitive is marker_primitives.transposes_p:
                return args
            if tracing.calls_out(eqn):
                results = self._order.bind(eqn, [folding.whole(a) for a in args], scope.chain)
                return once(results) if scope.is_open else results
            if name in MARKERS:
                return self._marker(eqn, folding.whole(args[0]), scope)
            if tag is not None and tag.kind == "named_computation":
                return self._named(eqn, tag.name, args, scope)
            if tag is not None and tag.kind == "call" and scope.level == "main" and not self._apart:
                return self.call(eqn.params["jaxpr"], tag.name, args, scope)
            if name in INLINED:
                scope = dataclasses.replace(scope, is_ours=tag is not None and tag.kind == "loop")
                return self.evaluate(eqn.params[INLINED[name]], args, scope)
            if name == "sharding_constraint":
                return self._constrained(eqn, args, [eqn.params["sharding"]])
            if memory_kinds.names_devices(eqn):  # of its targets, only the axes and the memory count
                targets = eqn.params["devices"]
                return list(map(memory_kinds.put, self._constrained(eqn, args, targets), targets))
            if name == "shard_map" and (mistake := self.meshes.unknown(eqn.params["mesh"].shape)):
                self.problems.append(problem(mistake, tracing.location(eqn)))
            if any(map(must_change, tracing.subjaxprs(eqn))):
                return self._open(eqn, args, scope)
            return self._bind(eqn, args, without_devices(eqn), scope)

    def _open(self, eqn: Equation, args: list[Any], scope: Scope) -> list[Any]:
        """Interpret an equation with jaxprs inside, some of which must change."""
        name = eqn.primitive.name
        named = any(map(has_names, tracing.subjaxprs(eqn)))
        ordered = any(map(tracing.is_ordered, tracing.subjaxprs(eqn)))
        if (named or ordered) and name in REMAT:
            return self.evaluate(eqn.params["jaxpr"], args, scope)
        if named and scope.is_open:
            if name == "scan":
                return self._unroll(eqn, args, scope)
            names = names_in(eqn)
            places = {self._place(n) for n in names} if self._place else set()
            if not places or name not in ("while", "cond"):
                self.problems.append(cannot_open(eqn, names))
            elif len(places) == 1 and not scope.around:
                return self._whole(eqn, args, scope, names[0])
            elif (place := tracing.location(eqn)) not in self._told:
                self._told.add(place)
                warn(
                    f"{', '.join(map(repr, names))} occur inside {kind_of(eqn)}, which runs whole on one mesh with all "
                    "that it uses, because which mesh computes what must be known when compiling. To choose the mesh, "
                    "put the loop or conditional into a named computation; to run its parts where their names are, "
                    "use fori_loop or jax.lax.scan with a fixed number of iterations",
                    place,
                )
        inside = dataclasses.replace(scope, level="kept")
        if ordered and can_thread(eqn):

            def evaluate(closed: Closed, values: Sequence[Any]) -> list[Any]:
                return [folding.whole(r) for r in self.evaluate(closed, values, inside)]

            return self._order.loop(eqn, [folding.whole(a) for a in args], scope, evaluate)
        if ordered:
            self.problems.append(has_no_order(eqn))
        params = without_devices(eqn)
        if name != "shard_map":
            params = {key: self._changed(value, inside) for key, value in params.items()}
        return self._bind(eqn, args, params, scope)

    def _bind(self, eqn: Equation, args: Sequence[Any], params: dict[str, Any], scope: Scope) -> list[Any]:
        """Return an equation that stays what it is."""
        operands = [folding.whole(a) for a in args]
        if eqn.effects:
            results = tracing.rebind(eqn, operands, params)
            return once(results) if scope.is_open else results
        counter = self._counter(scope)
        if counter is None:
            return tracing.rebind(eqn, operands, params)
        return self._calls.equation(eqn, operands, params, counter)

    def _counter(self, scope: Scope) -> int | None:
        """Return the microbatch that calls here are of, where each part of it is a call of its own; else None."""
        return scope.counter if self._apart and scope.level == "main" else None

    def _whole(self, eqn: Equation, args: list[Any], scope: Scope, name: str) -> list[Any]:
        """Return a loop or conditional, all names in which are at one place, as the computation `name`."""
        chain = self._order.chain(name)
        inside = dataclasses.replace(scope, level="named", around=(*scope.around, name), chain=chain)
        chains = (chain,) if any(map(tracing.is_ordered, tracing.subjaxprs(eqn))) else ()
        operands = [*map(folding.whole, args), *self._order.given(chains)]

        def run(*values: Any) -> list[Any]:
            with self._order.trace(dict(zip(chains, values[len(args) :], strict=True))):
                return [*self._open(eqn, list(values[: len(args)]), inside), *self._order.given(chains)]

        body = tracing.make_closed(run, [jax.typeof(a) for a in operands])
        count = scope.transposes
        out = lowering.named_computation_p.bind(*operands, body=body, name=name, transpose_count=count)
        return self._taken(chains, list(out))

    def _changed(self, value: Any, scope: Scope) -> Any:
        """Return a parameter with the jaxprs in it rewritten."""
        if type(value) in (tuple, list):
            return type(value)([self._changed(v, scope) for v in value])
        if not tracing.is_jaxpr(value) or not must_change(value):
            return value
        avals = tracing.in_avals(value)
        with self._trace_of(value, scope, {}):
            return tracing.make_closed(lambda *a: [folding.whole(r) for r in self.evaluate(value, a, scope)], avals)

    # ---- names ----------------------------------------------------------------------------

    def _found(self, name: str, eqn: Equation, scope: Scope) -> None:
        where = tracing.location(eqn)
        places = self.names.setdefault(name, [])
        if where is not None and where not in places:
            places.append(where)
        if scope.around:
            self.nested.setdefault((*scope.around, name), where)

    def _named(self, eqn: Equation, name: str, args: list[Any], scope: Scope) -> list[Any]:
        self._found(name, eqn, scope)
        if not scope.around:
            self.computations.setdefault(name, tracing.location(eqn))
        body, around = eqn.params["jaxpr"], (*scope.around, name)
        if scope.level == "kept":
            return self.evaluate(body, args, dataclasses.replace(scope, around=around))
        chain = self._order.chain(name) if scope.is_open else scope.chain
        inside = Scope("named", scope.transposes, None, scope.rematerialized, around, chain)
        shared = self._body(body, inside, barrier=scope.rematerialized)
        # A forward computation below a transposition is recomputed for the backward pass.
        count, counter = count_in(body) or scope.transposes, self._counter(scope)

        def bind(*operands: Any) -> list[Any]:
            if counter is not None:
                return self._calls.computation(shared, operands, name, count, counter)
            made = lowering.named_computation_p.bind(*operands, body=shared.closed, name=name, transpose_count=count)
            return list(made)

        return self._made(body, shared, args, inside, bind)

    def _made(
        self, body: Closed, shared: Shared, values: Sequence[Any], scope: Scope, bind: Callable[..., list[Any]]
    ) -> list[Any]:
        """Return what a body gives, rewritten for `scope`, for its large constants, these values, and tokens."""
        chains = self._order.chains(body, scope)
        large = map(self._constant, large_constants(body).values())
        operands = [*large, *map(folding.whole, values), *self._order.given(chains)]
        # The derivative of something that does not depend on its arguments has no results, and no effects.
        out = bind(*operands) if shared.emits or tracing.effects(body) else []
        return self._taken(chains, shared.results(operands, out))

    def _taken(self, chains: Sequence[Any], results: list[Any]) -> list[Any]:
        """Return the results without the tokens of these chains, which are known from now on."""
        count = len(results) - len(chains)
        self._order.take(chains, results[count:])
        return results[:count]

    def _marker(self, eqn: Equation, x: Any, scope: Scope) -> list[Any]:
        if eqn.primitive is marker_primitives.named_tensor_p:
            self._found(eqn.params["name"], eqn, scope)
        if scope.level == "kept":
            return [x]
        if eqn.primitive is marker_primitives.broadcast_p:
            return list(lowering.broadcast_p.bind(x))
        if eqn.primitive is marker_primitives.reduce_p:
            return list(lowering.reduce_p.bind(x, reduction="none"))
        # Between calls it is in a call of its own, as a named computation is.
        name, counter = eqn.params["name"], self._counter(scope)
        if counter is not None:
            return self._calls.tensor(x, name, counter)
        return list(lowering.named_tensor_p.bind(x, name=name))

    def _constrained(self, eqn: Equation, args: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        """Return what an equation gives of its operands: each in the sharding that is its target, if that is one."""
        results, mistakes = self.meshes.constrained([folding.whole(a) for a in args], targets, eqn.outvars)
        self.problems += [problem(mistake, tracing.location(eqn)) for mistake in mistakes]
        return results

    def _body(self, body: Closed, scope: Scope, *, barrier: bool = False, division: Division | None = None) -> Shared:
        """Return `body` interpreted on its own: a jaxpr of its large constants, then its arguments.

        With a `division`, of the arguments and given values, and for the results, that it lists.
        """
        parts = opened(body)
        plan = division or Division((), (True,) * len(parts.outvars), tuple(range(len(parts.invars))))
        # Which computation it is the body of matters for names and ordered callbacks alone.
        effects = tracing.effects(body)
        places = tuple(place for place, _ in plan.given)
        around = scope.around if has_names(body) or effects else ()
        chain = scope.chain if effects else None
        key = (
            self._fingerprints.of(body),
            dataclasses.replace(scope, counter=None, around=around, chain=chain),
            barrier,
            (plan.arguments, places, plan.wanted),
        )
        if key in self._bodies:
            return self._bodies[key]
        large = large_constants(body)
        sources: list[tuple[bool, int]] = []
        chains = self._order.chains(body, scope)

        def run(*values: Any) -> list[Any]:
            constants = dict(zip(large, values, strict=False))
            tokens = values[len(values) - len(chains) :]
            inputs = list(values[len(large) : len(values) - len(chains)])
            if barrier and inputs:
                # Without it, the recomputation would be merged with what it repeats.
                inputs = list(lax.optimization_barrier(inputs))
            known = dict(zip(plan.arguments, inputs, strict=False))
            args = [known.get(i) for i in range(len(parts.invars))]
            given = dict(zip(places, inputs[len(plan.arguments) :], strict=True))
            with self._trace_of(body, scope, constants):
                self._order.take(chains, tokens)
                outputs = self.evaluate(body, args, scope, plan.wanted, given)
                needed = [*itertools.compress(outputs, plan.wanted), *self._order.given(chains)]
                kept, sources[:] = distinct([folding.whole(r) for r in needed], values)
            return kept

        types = [jax.typeof(c) for c in large.values()]
        types += [parts.invars[i].aval for i in plan.arguments]
        types += [parts.eqns[i].outvars[k].aval for i, k in places]
        types += [TOKEN for _ in chains]
        closed = self._traced(run, lambda run: tracing.make_closed(run, types))
        self._bodies[key] = shared = Shared(closed, tuple(sources))
        return shared

    # ---- calls and loops ------------------------------------------------------------------

    def call(self, body: Closed, name: str, args: list[Any], scope: Scope, repeats: int = 1) -> list[Any]:
        """One `mpmd.call` of `body`, which stands for so many iterations.

        Results that only pass an argument or a known value on do not go through the call, and
        arguments that are not used do not either.
        """
        args = [folding.as_known(a, t) for a, t in zip(args, tracing.in_avals(body), strict=True)]
        division, results, values = self._divisions.divide(body, args)
        if any(division.wanted) or tracing.effects(body):
            inside = Scope("callee", scope.transposes, None, scope.rematerialized)
            key = division, inside
            if key not in self._bodies:
                self._bodies[key] = self._body(body, inside, division=division)
            shared = self._bodies[key]
            symbol = f"{name}_transposed" if scope.transposes else name
            params = {"name": symbol, "call_counter": scope.counter, "repeats": repeats}
            bind = functools.partial(lowering.call_p.bind, body=shared.closed, **params)
            made = self._made(body, shared, [*(args[i] for i in division.arguments), *values], inside, bind)
            results.update(zip(itertools.compress(itertools.count(), division.wanted), made, strict=True))
        return [results[i] for i in range(len(division.wanted))]

    def _unroll(self, eqn: Equation, args: list[Any], scope: Scope, unused: bool = False) -> list[Any]:
        """Return a scan, one iteration after the other, each a call when calls are possible here.

        Of a scan that is `unused`, the equations are known to those who may want their results kept.
        """
        layout = tracing.scan_layout(eqn)
        constants, carry, scanned = layout.split(args)
        avals = tracing.in_avals(layout.body)
        # A loop around loops over microbatches (epochs) is opened; theirs are the calls.
        calls = ("call",) if scope.is_ours else ("call", "loop")
        as_calls = scope.level == "main" and not has_calls(layout.body, calls) and not self._apart
        wanted = [False] * len(tracing.out_avals(layout.body)) if unused else None
        order = range(layout.length)
        # Where values are tracked, those of all iterations are.
        short = as_calls and self._is_short and not unused and self._values[-1] is None
        short = short and is_regular(layout, [*constants, *carry], scanned)
        outputs: dict[int, list[Any]] = {}
        for i in reversed(order) if layout.reverse else order:
            items = [folding.slice_at(x, i) for x in scanned]
            if scope.is_open and (known := self._values[-1]) is not None:
                known.add_slices(scanned, i, items)
            values = [*constants, *carry, *items]
            values = [folding.as_known(v, a) for v, a in zip(values, avals, strict=True)]
            inside = dataclasses.replace(scope, counter=i, is_ours=False)
            repeats = layout.length - i if short and i + 1 == WRITTEN else 1
            if as_calls:
                results = self.call(layout.body, "iteration", values, inside, repeats)
            else:
                results = self.evaluate(layout.body, values, inside, wanted)
            carry, outputs[i] = results[: layout.carries], results[layout.carries :]
            if repeats > 1:
                self.repeats = True
                break
            short = short and not hands_on(layout, values, results)
        if not outputs:  # no iteration: nothing to open, and the scan gives empty stacks
            return tracing.rebind(eqn, [folding.whole(a) for a in args])
        if unused:
            return [*carry, *[None] * len(outputs[0])]
        repeats = layout.length - len(outputs) + 1
        stacks = [folding.Stack([outputs[i][k] for i in sorted(outputs)], repeats) for k in range(len(outputs[0]))]
        return [*carry, *stacks]
