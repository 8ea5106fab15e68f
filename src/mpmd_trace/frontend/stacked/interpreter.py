"""The interpreter that turns a traced program into one whose stacked layers are in pieces.

It runs the jaxpr once more, under a new trace, with `Pieces` in the place of the values that `Cuts` found.  An op that
computes for each layer alone is bound once per piece.  One that needs all layers gets them joined, which is reported.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mpmd_trace.frontend.errors import warn
from mpmd_trace.frontend.jaxpr_queries import REMAT
from mpmd_trace.frontend.scope import is_computation, tag_of
from mpmd_trace.frontend.stacked.analysis import Cut, Cuts, Rows, bodies, rows
from mpmd_trace.frontend.stacked.links import PAIRWISE, REDUCTIONS, Link, contracted, cut_axis, groups_along, linked
from mpmd_trace.frontend.stacked.values import (
    Form,
    Pieces,
    Zero,
    as_array,
    cut_rows,
    flat_arrays,
    one_piece,
    resized,
    sizes,
    taken_rows,
)
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation


def in_pieces(closed: Closed, cuts: Cuts, names: Sequence[str]) -> Closed:
    """`closed`, with an argument and a result for each piece; `names` are those of its arguments."""
    atoms = cuts.parts.invars
    like = Form([cuts.rows(atom) for atom in atoms], names)
    types: list[Any] = []
    for atom, known in zip(atoms, like.rows, strict=True):
        types += [atom.aval] if known is None else [resized(atom.aval, known.axis, n) for n in sizes(known.bounds)]

    def run(*flat: Any) -> list[Any]:
        return flat_arrays(_Interpreter().evaluate(cuts, like.values(flat)))

    return tracing.make_closed(run, types)


class _Interpreter:
    """Interprets one program."""

    def __init__(self) -> None:
        self._told: set[tuple[str | None, str]] = set()

    def evaluate(self, cuts: Cuts, args: Sequence[Any]) -> list[Any]:
        """Return the results for `args`, which are in pieces as `cuts` says."""
        parts = cuts.parts
        env: dict[Any, Any] = dict(zip(parts.constvars, parts.consts, strict=True))
        env.update(zip(parts.invars, args, strict=True))
        for v in parts.constvars:
            env[v] = self._as_cut(env[v], cuts.rows(v))
        for i, eqn in enumerate(parts.eqns):
            if not cuts.alive[i]:
                continue
            operands = [v.val if tracing.is_literal(v) else env[v] for v in eqn.invars]
            bounds = [cuts.rows(v) for v in eqn.outvars]
            with tracing.source_of(eqn):
                results = self._equation(eqn, operands, bounds, cuts.inner.get(i))
                for v, result, b in zip(eqn.outvars, results, bounds, strict=True):
                    env[v] = self._as_cut(result, b, eqn)
        return [v.val if tracing.is_literal(v) else env[v] for v in parts.outvars]

    # ---- wholes and pieces ----------------------------------------------------------------

    def _as_cut(self, value: Any, wanted: Rows | None, eqn: Equation | None = None) -> Any:
        """`value` in these pieces, or whole."""
        if wanted is None:
            return self._whole(value, eqn)
        if isinstance(value, Pieces):
            if value.rows == wanted:
                return value
            self._tell(value, eqn)
            if value.axis != wanted.axis:
                value = cut_rows(value, value.axis, 0, value.bounds[-1])
        name = value.name if isinstance(value, Pieces) else None
        return Pieces(wanted, [cut_rows(value, wanted.axis, a, b) for a, b in itertools.pairwise(wanted.bounds)], name)

    def _whole(self, value: Any, eqn: Equation | None) -> Any:
        if not isinstance(value, Pieces):
            return value
        self._tell(value, eqn)
        return cut_rows(value, value.axis, 0, value.bounds[-1])

    def _on_wholes(self, eqn: Equation, args: Sequence[Any]) -> list[Any]:
        """Return the results of an equation that needs all layers."""
        return list(tracing.rebind(eqn, [self._whole(a, eqn) for a in args]))

    def _tell(self, value: Pieces, eqn: Equation | None) -> None:
        """Warn that a value is joined, unless it has but a number per layer."""
        where = None if eqn is None else tracing.location(eqn)
        what = "the end of the program" if eqn is None else _described(eqn)
        if np.ndim(value.parts[0] if not isinstance(value.parts[0], Zero) else value.parts[0].aval) < 2:
            return
        if (where, what) in self._told:
            return
        self._told.add((where, what))
        warn(
            f"{what} needs all layers of {value.name or 'an array of stacked layers'} in one place, so their parts are "
            "sent to one mesh in every step. Compute it for each layer alone (in the body of the scan, elementwise, or "
            "with jax.vmap over the layers), or as a sum or maximum over the layers",
            where,
        )

    # ---- equations ------------------------------------------------------------------------

    def _equation(
        self, eqn: Equation, args: list[Any], out: Sequence[Rows | None], inner: list[Cuts] | None
    ) -> Sequence[Any]:
        in_pieces = any(isinstance(a, Pieces) for a in args) or any(known is not None for known in out)
        if inner is not None and (in_pieces or any(cuts.any for cuts in inner)):
            return self._control(eqn, args, inner)
        if not in_pieces:
            return tracing.rebind(eqn, args)
        if is_computation(eqn):
            return self._on_wholes(eqn, args)
        if eqn.primitive.name in PAIRWISE:
            like = Form.of(args)
            params = dict(eqn.params)
            for key in ("devices", "srcs", "copy_semantics"):  # one for each operand
                if key in params:
                    params[key] = tuple(x for x, a in zip(params[key], args, strict=True) for _ in flat_arrays([a]))
            return like.values(tracing.rebind(eqn, flat_arrays(args), params))
        forms = [*Form.of(args).rows, *out]
        if eqn.primitive.name == "scan":
            layout = tracing.scan_layout(eqn)
            turns = [*layout.split(forms[: len(args)])[2], *out[layout.carries :]]
            bounds = next((form.bounds for form in turns if form is not None and form.axis == 0), None)
            return self._on_wholes(eqn, args) if bounds is None else self._in_turns(eqn, args, bounds)
        axes = [None if known is None else known.axis for known in forms]
        axis = cut_axis(eqn, axes)
        if axis is not None:
            return self._moved(eqn, args, out, axis)
        link = linked(eqn, [*(None for _ in args), *axes[len(args) :]]) or linked(eqn, axes)
        if link is not None:
            return self._each(eqn, args, out, link)
        kind, first = eqn.primitive.name, args[0] if args else None
        if kind == "stack" and out[0] is not None and out[0].axis == eqn.params["axis"]:
            layers = [self._whole(a, eqn) for a in args]
            return [Pieces(out[0], [tracing.rebind(eqn, layers[a:b])[0] for a, b in out[0].pairs])]
        if kind == "unstack" and isinstance(first, Pieces) and first.axis == eqn.params["axis"]:
            return [layer for part in first.arrays for layer in tracing.rebind(eqn, [part])]
        if kind in REDUCTIONS and isinstance(first, Pieces) and first.axis in eqn.params["axes"]:
            return [functools.reduce(REDUCTIONS[kind], [tracing.rebind(eqn, [part])[0] for part in first.arrays])]
        if isinstance(first, Pieces) and tuple(axes[:2]) in contracted(eqn):
            right = self._as_cut(args[1], Rows(args[1].axis, first.bounds), eqn)
            pairs = zip(first.arrays, right.arrays, strict=True)
            return [functools.reduce(lax.add, [tracing.rebind(eqn, pair)[0] for pair in pairs])]
        return self._on_wholes(eqn, args)

    def _each(self, eqn: Equation, args: list[Any], out: Sequence[Rows | None], link: Link) -> list[Any]:
        """Return an equation that computes piece k of its results from piece k of its operands."""
        atoms = [*eqn.invars, *eqn.outvars]
        forms = [*Form.of(args).rows, *out]
        order = [*range(len(args), len(forms)), *range(len(args))]  # results say how the operands are cut
        fit = [(i, form) for i in order if (form := forms[i]) is not None and form.axis == link[i]]
        if not fit:
            return self._on_wholes(eqn, args)
        one, form = fit[0]
        parts = tuple(Fraction(b, atoms[one].aval.shape[form.axis]) for b in form.bounds)
        if any(part * count % 1 for count in groups_along(eqn, link[-1]).values() for part in parts):
            return self._on_wholes(eqn, args)
        wanted = [None if axis is None else rows(Cut(axis, parts), v.aval) for axis, v in zip(link, atoms, strict=True)]
        if any(wanted_axis is None and axis is not None for wanted_axis, axis in zip(wanted, link, strict=True)):
            return self._on_wholes(eqn, args)
        operands = [self._as_cut(a, wanted_axis, eqn) for a, wanted_axis in zip(args, wanted, strict=False)]
        name = next((a.name for a in args if isinstance(a, Pieces) and a.name is not None), None)
        made = [wanted_axis for wanted_axis in wanted[len(args) :] if wanted_axis is not None]
        columns: list[list[Any]] = []
        for k in range(len(parts) - 1):
            mine = [a.parts[k] if isinstance(a, Pieces) else a for a in operands]
            columns.append(one_piece(eqn, mine, made[0].axis, made[0].bounds[k], sizes(made[0].bounds)[k]))
        return [Pieces(wanted_axis, [column[n] for column in columns], name) for n, wanted_axis in enumerate(made)]

    def _moved(self, eqn: Equation, args: list[Any], out: Sequence[Rows | None], axis: int) -> list[Any]:
        """Rows of an array, or arrays put one after the other along an axis, perhaps with padding."""
        params, kind = eqn.params, eqn.primitive.name
        args = [self._whole(a, eqn) if isinstance(a, Pieces) and a.axis != axis else a for a in args]
        out = [known if known is None or known.axis == axis else None for known in out]
        if kind == "split":
            result, start = [], 0
            for v, known in zip(eqn.outvars, out, strict=True):
                stop = start + v.aval.shape[axis]
                result.append(taken_rows(args[0], axis, start, stop, known))
                start = stop
            return result
        if kind == "slice":
            starts, stops, strides = params["start_indices"], params["limit_indices"], params["strides"]

            def columns(part: Any) -> Any:
                lower, upper = list(starts), list(stops)
                lower[axis], upper[axis] = 0, part.shape[axis]
                is_all = not any(lower) and tuple(upper) == part.shape and (strides is None or set(strides) <= {1})
                return part if is_all else lax.slice(part, lower, upper, strides)

            return [taken_rows(args[0], axis, starts[axis], stops[axis], out[0], columns)]
        if out[0] is None:
            return self._on_wholes(eqn, args)
        is_pad = kind == "pad"
        sources, at = [], int(params["padding_config"][axis][0]) if is_pad else 0
        for atom, source in zip(eqn.invars[:1] if is_pad else eqn.invars, args, strict=False):
            sources.append((at, at + atom.aval.shape[axis], source))
            at += atom.aval.shape[axis]
        aval = eqn.outvars[0].aval
        pieces = []
        for a, b in itertools.pairwise(out[0].bounds):
            inside = [(max(a, s), min(b, e), s, v) for s, e, v in sources if max(a, s) < min(b, e)]
            arrays = [cut_rows(v, axis, lower - s, upper - s) for lower, upper, s, v in inside]
            if not is_pad:
                pieces.append(arrays[0] if len(arrays) == 1 else lax.concatenate(list(map(as_array, arrays)), axis))
            elif arrays:
                config = [tuple(map(int, c)) for c in params["padding_config"]]
                config[axis] = (inside[0][0] - a, b - inside[0][1], 0)
                has_any = any(c != (0, 0, 0) for c in config)
                pieces.append(lax.pad(as_array(arrays[0]), args[1], config) if has_any else arrays[0])
            elif tracing.is_literal(eqn.invars[1]) and not np.any(args[1]):
                pieces.append(Zero(resized(aval, axis, b - a)))
            else:
                pieces.append(jnp.broadcast_to(args[1], resized(aval, axis, b - a).shape))
        return [Pieces(out[0], pieces)]

    def _in_turns(self, eqn: Equation, args: list[Any], bounds: tuple[int, ...]) -> list[Any]:
        """Return what a scan over the layers gives, as one scan for each piece, which hand on what they carry."""
        layout, known = tracing.scan_layout(eqn), Rows(0, bounds)
        constants, carry, scanned = layout.split(args)
        constants, carry = ([self._whole(a, eqn) for a in own] for own in (constants, carry))
        scanned = [self._as_cut(a, known, eqn) for a in scanned]
        pieces: list[list[Any]] = [[] for _ in known.pairs]
        for k in reversed(range(len(pieces))) if layout.reverse else range(len(pieces)):
            mine = [as_array(a.parts[k]) for a in scanned]
            results = self._scan(eqn, [*constants, *carry, *mine], Cuts(layout.body), sizes(bounds)[k])
            carry, pieces[k] = results[: layout.carries], results[layout.carries :]
        return [*carry, *(Pieces(known, parts) for parts in zip(*pieces, strict=True))]

    # ---- control flow ---------------------------------------------------------------------

    def _control(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> Sequence[Any]:
        tag = tag_of(eqn)
        match eqn.primitive.name:
            case "scan":
                return self._scan(eqn, args, inner[0])
            case "while":
                return self._while(eqn, args, inner)
            case "cond":
                return self._cond(eqn, args, inner)
            case name if name in REMAT:
                return self._rebuilt(eqn, args, inner[0])
            case _ if tag is not None and tag.kind == "call":
                return self._call(eqn, args, inner[0])
        args = [args[n] for n in bodies(eqn)[0].operands]
        return self.evaluate(inner[0], self._entering(inner[0].parts.invars, inner[0], args, eqn))

    def _entering(self, atoms: Sequence[Any], cuts: Cuts, args: Sequence[Any], eqn: Equation) -> list[Any]:
        return [self._as_cut(a, cuts.rows(v), eqn) for v, a in zip(atoms, args, strict=True)]

    def _alike(self, like: Form, values: Sequence[Any], eqn: Equation) -> list[Any]:
        """Return the values in pieces as those of this form."""
        return [self._as_cut(value, wanted, eqn) for value, wanted in zip(values, like.rows, strict=True)]

    def _on_flat(
        self, cuts: Cuts, args: Sequence[Any], eqn: Equation
    ) -> tuple[Callable[..., list[Any]], list[Any], list[Form]]:
        """`cuts` as a function of flat arrays, the arrays for `args`, and the form of the results once it ran."""
        entering = self._entering(cuts.parts.invars, cuts, args, eqn)
        like = Form.of(entering)
        results: list[Form] = []

        def run(*flat: Any) -> list[Any]:
            values = self.evaluate(cuts, like.values(flat))
            results.append(Form.of(values))
            return flat_arrays(values)

        return run, flat_arrays(entering), results

    def _call(self, eqn: Equation, args: list[Any], cuts: Cuts) -> list[Any]:
        run, flat, results = self._on_flat(cuts, args, eqn)
        run.__name__ = run.__qualname__ = eqn.params["name"]
        outputs = jax.jit(run)(*flat)
        return results[-1].values(outputs)

    def _rebuilt(self, eqn: Equation, args: list[Any], cuts: Cuts) -> list[Any]:
        run, flat, results = self._on_flat(cuts, args, eqn)
        closed = tracing.make_closed(run, [jax.typeof(a) for a in flat])
        return results[-1].values(tracing.rebind_checkpoint(eqn, flat, closed))

    def _scan(self, eqn: Equation, args: list[Any], cuts: Cuts, length: int | None = None) -> list[Any]:
        layout = tracing.scan_layout(eqn)
        constant_atoms, carry_atoms, scanned_atoms = layout.split(cuts.parts.invars)
        constants, carry, scanned = layout.split(args)
        constants = self._entering(constant_atoms, cuts, constants, eqn)
        start = self._entering(carry_atoms, cuts, carry, eqn)
        turns = Form(
            [cuts.rows(v) for v in scanned_atoms], [a.name if isinstance(a, Pieces) else None for a in scanned]
        )
        scanned = [self._as_cut(a, _of_turns(r), eqn) for a, r in zip(scanned, turns.rows, strict=True)]
        like = Form.of(start)
        outputs: list[Form] = []

        def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self.evaluate(cuts, [*constants, *like.values(carry), *turns.values(xs)])
            outputs.append(Form.of(results[layout.carries :]))
            return (
                flat_arrays(self._alike(like, results[: layout.carries], eqn)),
                flat_arrays(results[layout.carries :]),
            )

        final, result = lax.scan(
            body,
            flat_arrays(start),
            flat_arrays(scanned),
            layout.length if length is None else length,
            reverse=layout.reverse,
            unroll=eqn.params["unroll"],
        )
        stacked = dataclasses.replace(outputs[-1], rows=list(map(_of_turns, outputs[-1].rows)))
        return [*like.values(final), *stacked.values(result)]

    def _while(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        test, step = inner
        tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        for_test = self._entering(test.parts.invars[:tests], test, args[:tests], eqn)
        for_step = self._entering(step.parts.invars[:consts], step, args[tests : tests + consts], eqn)
        start = self._entering(step.parts.invars[consts:], step, args[tests + consts :], eqn)
        like = Form.of(start)

        if test.parts.outvars[0].aval.shape:  # for each row of what it carries
            return self._whiles(eqn, inner, for_test, for_step, start) or self._on_wholes(eqn, args)

        def goes_on(carry: list[Any]) -> Any:
            values = self._entering(test.parts.invars[tests:], test, like.values(carry), eqn)
            return self.evaluate(test, [*for_test, *values])[0]

        def body(carry: list[Any]) -> list[Any]:
            return flat_arrays(self._alike(like, self.evaluate(step, [*for_step, *like.values(carry)]), eqn))

        return like.values(lax.while_loop(goes_on, body, flat_arrays(start)))

    def _whiles(
        self, eqn: Equation, inner: list[Cuts], for_test: list[Any], for_step: list[Any], start: list[Any]
    ) -> list[Any] | None:
        """Return a loop for each piece, whose layers go on until each is done; None where pieces need each other."""
        test, step = inner
        like = Form.of(start)
        flat = flat_arrays(start)

        def run_test(*arrays: Any) -> list[Any]:
            constants, carry = arrays[: len(flat_test)], arrays[len(flat_test) :]
            values = self._entering(test.parts.invars[len(for_test) :], test, like.values(carry), eqn)
            return flat_arrays(self.evaluate(test, [*Form.of(for_test).values(constants), *values])[:1])

        def run_step(*arrays: Any) -> list[Any]:
            constants, carry = arrays[: len(flat_step)], arrays[len(flat_step) :]
            result = self.evaluate(step, [*Form.of(for_step).values(constants), *like.values(carry)])
            return flat_arrays(self._alike(like, result, eqn))

        flat_test, flat_step = flat_arrays(for_test), flat_arrays(for_step)
        tested = tracing.make_closed(run_test, list(map(jax.typeof, [*flat_test, *flat])))
        stepped = tracing.make_closed(run_step, list(map(jax.typeof, [*flat_step, *flat])))
        goes_on = test.rows(test.parts.outvars[0])
        if goes_on is None or any(r != goes_on for r in like.rows):
            return None
        count = len(goes_on.pairs)
        results: list[Any] = [None] * len(flat)
        for k in range(count):
            mine = range(k, len(flat), count)
            output = tracing.rebind_while(
                eqn, tracing.LoopPart(tested, flat_test, [k]), tracing.LoopPart(stepped, flat_step, mine), mine, flat
            )
            if output is None:
                return None
            for n, value in zip(mine, output, strict=True):
                results[n] = value
        return like.values(results)

    def _cond(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        """Return a conditional for each piece, and one for what is whole: each piece may be on a mesh of its own."""
        index, *operands = args
        entering = self._entering(inner[0].parts.invars, inner[0], operands, eqn)
        arrays, like = flat_arrays(entering), Form.of(entering)
        bounds = [inner[0].rows(v) for v in inner[0].parts.outvars]
        branches = [self._branch(cuts, eqn, like, arrays, bounds) for cuts in inner]
        number = index.astype(np.int32) if index.dtype == np.bool_ else index
        groups: dict[int, list[int]] = {}
        for at, k in enumerate(k for b in bounds for k in ([-1] if b is None else range(len(b.pairs)))):
            groups.setdefault(k, []).append(at)
        results: list[Any] = [None] * sum(map(len, groups.values()))
        for _, members in sorted(groups.items()):
            needed, functions = tracing.pruned(branches, members)
            outputs = lax.switch(number, functions, *(arrays[i] for i in needed))
            for at, value in zip(members, outputs, strict=True):
                results[at] = value
        return Form(bounds, [None] * len(bounds)).values(results)

    def _branch(
        self, cuts: Cuts, eqn: Equation, like: Form, arrays: Sequence[Any], bounds: Sequence[Rows | None]
    ) -> Closed:
        """Return a branch as a jaxpr of arrays, which returns those of its results."""

        def run(*flat: Any) -> list[Any]:
            outputs = self.evaluate(cuts, self._entering(cuts.parts.invars, cuts, like.values(flat), eqn))
            as_wanted = [self._as_cut(value, b, eqn) for value, b in zip(outputs, bounds, strict=True)]
            return list(map(jnp.asarray, flat_arrays(as_wanted)))

        return tracing.make_closed(run, [jax.typeof(a) for a in arrays])


def _of_turns(known: Rows | None) -> Rows | None:
    """Return how an array is cut that has such arrays along a new first axis."""
    return None if known is None else known._replace(axis=known.axis + 1)


def _described(eqn: Equation) -> str:
    tag = tag_of(eqn)
    if tag is not None and tag.kind == "named_computation":
        return f"the named computation {tag.name!r}"
    return f"{eqn.primitive.name!r}"
