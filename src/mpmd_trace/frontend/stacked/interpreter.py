"""The interpreter that turns a traced program into one whose stacked layers are in pieces.

It runs the jaxpr once more, under a new trace, with `Pieces` in the place of the values that `Cuts` found.  An op that
computes for each layer alone is bound once per piece.  One that needs all layers gets them joined, which is reported.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mpmd_trace.frontend import control_flow
from mpmd_trace.frontend.errors import warn
from mpmd_trace.frontend.eval_jaxpr import REMAT, interpret
from mpmd_trace.frontend.scope import is_computation, tag_of
from mpmd_trace.frontend.stacked.analysis import Cut, Cuts, Rows, bodies, rows
from mpmd_trace.frontend.stacked.links import (
    PAIRWISE,
    REDUCTIONS,
    Link,
    contracted,
    cut_axis,
    groups_along,
    linked,
    moved_rows,
)
from mpmd_trace.frontend.stacked.values import (
    Pieces,
    Zero,
    as_array,
    cut_rows,
    one_piece,
    resized,
    rows_in,
    solid,
    taken_rows,
    traced,
)
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation


def in_pieces(closed: Closed, cuts: Cuts, names: Sequence[str]) -> Closed:
    """Return `closed`, with an argument and a result for each piece; `names` are those of its arguments."""
    values: list[Any] = []
    for v, known, name in zip(cuts.parts.invars, cuts.rows_of(cuts.parts.invars), names, strict=True):
        value = tracing.struct(v.aval)
        if known is not None:
            pieces = [resized(v.aval, known.axis, b - a) for a, b in known.pairs]
            value = Pieces(known, list(map(tracing.struct, pieces)), name)
        values.append(value)
    return traced(lambda *args: solid(_Interpreter().evaluate(cuts, args)), values)[0]


class _Interpreter:
    """Interprets one program."""

    def __init__(self) -> None:
        self._told: set[tuple[str | None, str]] = set()

    def evaluate(self, cuts: Cuts, args: Sequence[Any]) -> list[Any]:
        """Return the results for `args`, which are in pieces as `cuts` says."""
        parts = cuts.parts
        consts = {id(c): self._as_cut(c, cuts.rows(v)) for v, c in zip(parts.constvars, parts.consts, strict=True)}

        def rule(eqn: Equation, operands: list[Any]) -> list[Any]:
            out = cuts.rows_of(eqn.outvars)
            with tracing.source_of(eqn):
                return self._alike(out, self._equation(eqn, operands, out, cuts.inner.get(id(eqn))), eqn)

        return interpret(cuts.closed, args, rule, constant=lambda c: consts.get(id(c), c), alive=cuts.alive)

    # ---- wholes and pieces ----------------------------------------------------------------

    def _as_cut(self, value: Any, wanted: Rows | None, eqn: Equation | None = None) -> Any:
        """Return `value` in these pieces, or whole."""
        if wanted is None:
            return self._whole(value, eqn)
        if isinstance(value, Pieces):
            if value.rows == wanted:
                return value
            self._tell(value, eqn)
            if value.axis != wanted.axis:
                value = cut_rows(value, value.axis, 0, value.bounds[-1])
        name = value.name if isinstance(value, Pieces) else None
        return Pieces(wanted, [cut_rows(value, wanted.axis, a, b) for a, b in wanted.pairs], name)

    def _alike(self, wanted: Sequence[Rows | None], values: Sequence[Any], eqn: Equation) -> list[Any]:
        """Return the values in these pieces."""
        return [self._as_cut(value, known, eqn) for value, known in zip(values, wanted, strict=True)]

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
            return _of_each_part(eqn, args)
        forms = [*map(rows_in, args), *out]
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
        results = self._across_layers(eqn, args, out[0], axes)
        return self._on_wholes(eqn, args) if results is None else results

    def _across_layers(
        self, eqn: Equation, args: list[Any], out: Rows | None, axes: Sequence[int | None]
    ) -> list[Any] | None:
        """Return the results of an equation that makes the axis of the layers, takes it apart, or sums over it.

        None for other equations.
        """
        kind, first = eqn.primitive.name, args[0] if args else None
        if kind == "stack" and out is not None and out.axis == eqn.params["axis"]:
            layers = [self._whole(a, eqn) for a in args]
            return [Pieces(out, [tracing.rebind(eqn, layers[a:b])[0] for a, b in out.pairs])]
        if kind == "unstack" and isinstance(first, Pieces) and first.axis == eqn.params["axis"]:
            return [layer for part in first.arrays for layer in tracing.rebind(eqn, [part])]
        if kind in REDUCTIONS and isinstance(first, Pieces) and first.axis in eqn.params["axes"]:
            return [functools.reduce(REDUCTIONS[kind], [tracing.rebind(eqn, [part])[0] for part in first.arrays])]
        if isinstance(first, Pieces) and tuple(axes[:2]) in contracted(eqn):
            right = self._as_cut(args[1], Rows(args[1].axis, first.bounds), eqn)
            pairs = zip(first.arrays, right.arrays, strict=True)
            return [functools.reduce(lax.add, [tracing.rebind(eqn, pair)[0] for pair in pairs])]
        return None

    def _each(self, eqn: Equation, args: list[Any], out: Sequence[Rows | None], link: Link) -> list[Any]:
        """Return an equation that computes piece k of its results from piece k of its operands."""
        atoms = [*eqn.invars, *eqn.outvars]
        forms = [*map(rows_in, args), *out]
        order = [*range(len(args), len(forms)), *range(len(args))]  # results say how the operands are cut
        fit = [(i, form) for i in order if (form := forms[i]) is not None and form.axis == link[i]]
        if not fit:
            return self._on_wholes(eqn, args)
        one, form = fit[0]
        parts = tuple(Fraction(b, atoms[one].aval.shape[form.axis]) for b in form.bounds)
        if any(part * count % 1 for count in groups_along(eqn, link[-1]).values() for part in parts):
            return self._on_wholes(eqn, args)
        wanted = [None if axis is None else rows(Cut(axis, parts), v.aval) for axis, v in zip(link, atoms, strict=True)]
        if any(known is None and axis is not None for known, axis in zip(wanted, link, strict=True)):
            return self._on_wholes(eqn, args)
        operands = self._alike(wanted[: len(args)], args, eqn)
        name = next((a.name for a in args if isinstance(a, Pieces) and a.name is not None), None)
        made = [known for known in wanted[len(args) :] if known is not None]
        columns: list[list[Any]] = []
        for k in range(len(parts) - 1):
            mine = [a.parts[k] if isinstance(a, Pieces) else a for a in operands]
            columns.append(one_piece(eqn, mine, made[0].axis, *made[0].pairs[k]))
        return [Pieces(known, [column[n] for column in columns], name) for n, known in enumerate(made)]

    def _moved(self, eqn: Equation, args: list[Any], out: Sequence[Rows | None], axis: int) -> list[Any]:
        """Return rows of an array, or arrays put one after the other along an axis, perhaps with padding."""
        params, kind = eqn.params, eqn.primitive.name
        args = [self._whole(a, eqn) if isinstance(a, Pieces) and a.axis != axis else a for a in args]
        out = [known if known is None or known.axis == axis else None for known in out]
        _, rows_of_parts = moved_rows(eqn, axis)
        if kind in ("split", "slice"):

            def columns(part: Any) -> Any:
                lower, upper, strides = list(params["start_indices"]), list(params["limit_indices"]), params["strides"]
                lower[axis], upper[axis] = 0, part.shape[axis]
                is_all = not any(lower) and tuple(upper) == part.shape and (strides is None or set(strides) <= {1})
                return part if is_all else lax.slice(part, lower, upper, strides)

            of_piece = columns if kind == "slice" else None
            pairs = zip(rows_of_parts, out, strict=True)
            return [taken_rows(args[0], axis, start, stop, known, of_piece) for (_, start, stop), known in pairs]
        if out[0] is None:
            return self._on_wholes(eqn, args)
        is_pad = kind == "pad"
        sources = [(start, stop, source) for (_, start, stop), source in zip(rows_of_parts, args, strict=False)]
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
            length = bounds[k + 1] - bounds[k]
            results = self._scan(eqn, [*constants, *carry, *mine], Cuts(layout.body), length)
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
                run, args = self._inside(inner[0], args, eqn)
                closed, results = traced(run, args)
                made = tracing.rebind_checkpoint(eqn, jax.tree.leaves(args), closed)
                return list(jax.tree.unflatten(results, made))
            case _ if tag is not None and tag.kind == "call":
                run, args = self._inside(inner[0], args, eqn)
                run.__name__ = run.__qualname__ = eqn.params["name"]
                return list(jax.jit(run)(*args))
        args = [args[n] for n in bodies(eqn)[0].operands]
        return self.evaluate(inner[0], self._entering(inner[0], args, eqn))

    def _inside(self, cuts: Cuts, args: Sequence[Any], eqn: Equation) -> tuple[Callable[..., list[Any]], list[Any]]:
        """Return a jaxpr inside of `eqn` as a function, and its arguments."""
        return lambda *values: solid(self.evaluate(cuts, values)), solid(self._entering(cuts, args, eqn))

    def _entering(self, cuts: Cuts, args: Sequence[Any], eqn: Equation) -> list[Any]:
        return self._alike(cuts.rows_of(cuts.parts.invars), args, eqn)

    def _carried(self, before: Sequence[Any], values: Sequence[Any], eqn: Equation) -> list[Any]:
        """Return what a loop carries on, in the form of what it carries."""
        made = solid(self._alike(list(map(rows_in, before)), values, eqn))
        return [a.of(b.parts) if isinstance(a, Pieces) else b for a, b in zip(before, made, strict=True)]

    def _scan(self, eqn: Equation, args: list[Any], cuts: Cuts, length: int | None = None) -> list[Any]:
        layout, known = tracing.scan_layout(eqn), cuts.rows_of(cuts.parts.invars)
        turns = layout.constants + layout.carries
        outside = [*known[:turns], *(rows and rows.along(rows.axis + 1) for rows in known[turns:])]

        def inside(_: Closed, values: Sequence[Any], state: Any) -> tuple[list[Any], Any]:
            items = [v.along(v.axis - 1) if isinstance(v, Pieces) else v for v in values[turns:]]
            results = self.evaluate(cuts, [*values[:turns], *items])
            carry = self._carried(values[layout.constants : turns], results[: layout.carries], eqn)
            outputs = solid(results[layout.carries :])
            return [*carry, *(v.along(v.axis + 1) if isinstance(v, Pieces) else v for v in outputs)], state

        return control_flow.scan(eqn, solid(self._alike(outside, args, eqn)), inside, length=length)[0]

    def _while(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        test, step = inner
        tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        given = self._alike(test.rows_of(test.parts.invars[:tests]), args[:tests], eqn)
        given += self._entering(step, args[tests:], eqn)

        def inside(closed: Closed, values: Sequence[Any], state: Any) -> tuple[list[Any], Any]:
            if closed is test.closed:
                return self.evaluate(test, self._entering(test, values, eqn)), state
            return self._carried(values[consts:], self.evaluate(step, values), eqn), state

        if test.parts.outvars[0].aval.shape:  # for each row of what it carries
            return self._whiles(eqn, inner, solid(given), inside) or self._on_wholes(eqn, args)
        return control_flow.while_loop(eqn, solid(given), inside)[0]

    def _whiles(
        self, eqn: Equation, inner: list[Cuts], args: list[Any], inside: control_flow.Inside
    ) -> list[Any] | None:
        """Return a loop for each piece, whose layers go on until each is done; None where pieces need each other."""
        test, step = inner
        for_test, for_step, start = control_flow.of_while(eqn, args)
        tested, _ = traced(lambda *values: solid(inside(test.closed, values, None)[0]), [*for_test, *start])
        stepped, _ = traced(lambda *values: inside(step.closed, values, None)[0], [*for_step, *start])
        goes_on = test.rows(test.parts.outvars[0])
        if goes_on is None or any(rows_in(v) != goes_on for v in start):
            return None
        (flat, tree), count = jax.tree.flatten(start), len(goes_on.pairs)
        results: list[Any] = [None] * len(flat)
        for k in range(count):
            cond, body = _piece(k, count, tested, for_test), _piece(k, count, stepped, for_step)
            if cond is None or body is None:
                return None
            params = {"cond_jaxpr": cond[0], "body_jaxpr": body[0]}
            params |= {"cond_nconsts": len(cond[1]), "body_nconsts": len(body[1])}
            results[k::count] = tracing.rebind(eqn, [*cond[1], *body[1], *flat[k::count]], eqn.params | params)
        return list(jax.tree.unflatten(tree, results))

    def _cond(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        """Return a conditional for each piece, and one for what is whole: each piece may be on a mesh of its own."""
        index, *operands = args
        values = solid(self._entering(inner[0], operands, eqn))
        out = inner[0].rows_of(inner[0].parts.outvars)

        def branch(cuts: Cuts) -> tuple[Closed, Any]:
            def run(*values: Any) -> Any:
                outputs = self.evaluate(cuts, self._entering(cuts, values, eqn))
                return jax.tree.map(jnp.asarray, solid(self._alike(out, outputs, eqn)))

            return traced(run, values)

        branches = list(map(branch, inner))
        number = index.astype(np.int32) if index.dtype == np.bool_ else index
        groups: dict[int, list[int]] = {}
        for at, k in enumerate(k for b in out for k in ([-1] if b is None else range(len(b.pairs)))):
            groups.setdefault(k, []).append(at)
        arrays = jax.tree.leaves(values)
        results: list[Any] = [None] * sum(map(len, groups.values()))
        for _, members in sorted(groups.items()):
            needed, functions = tracing.pruned([closed for closed, _ in branches], members)
            outputs = lax.switch(number, functions, *(arrays[i] for i in needed))
            for at, value in zip(members, outputs, strict=True):
                results[at] = value
        return list(jax.tree.unflatten(branches[0][1], results))


def _piece(k: int, count: int, closed: Closed, constants: Sequence[Any]) -> tuple[Closed, list[Any]] | None:
    """Return what makes pieces k of a loop, and the arrays that it reads besides; None where it needs other pieces.

    `closed` has the arrays in `constants`, then all that the loop carries, as arguments.
    """
    arrays, avals = jax.tree.leaves(constants), tracing.in_avals(closed)
    first = len(arrays)
    needed, [function] = tracing.pruned([closed], range(k, len(tracing.out_avals(closed)), count))
    if any(i >= first and (i - first) % count != k for i in needed):
        return None
    own = [i for i in needed if i < first]
    places = [*own, *range(first + k, len(avals), count)]
    made = tracing.make_closed(
        lambda *values: function(*(value for i, value in zip(places, values, strict=True) if i in needed)),
        [avals[i] for i in places],
    )
    return made, [arrays[i] for i in own]


def _of_each_part(eqn: Equation, args: list[Any]) -> list[Any]:
    """Return the results of an equation with one result for each operand, which it gets part by part."""
    arrays, tree = jax.tree.flatten(solid(args))
    params = dict(eqn.params)
    for key in ("devices", "srcs", "copy_semantics"):  # one for each operand
        if key in params:
            pairs = zip(params[key], tree.children(), strict=True)
            params[key] = tuple(x for x, array in pairs for _ in range(array.num_leaves))
    return list(jax.tree.unflatten(tree, tracing.rebind(eqn, arrays, params)))


def _described(eqn: Equation) -> str:
    tag = tag_of(eqn)
    if tag is not None and tag.kind == "named_computation":
        return f"the named computation {tag.name!r}"
    return f"{eqn.primitive.name!r}"
