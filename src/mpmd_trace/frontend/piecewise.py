"""The interpreter that turns a traced program into one whose stacked layers are in pieces.

It runs the jaxpr once more, under a new trace, with `Pieces` in the place of the values that `Cuts` found.  An op that
computes for each layer alone is bound once per piece.  One that needs all layers gets them joined, which is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mpmd_trace.frontend.calls import live_equations
from mpmd_trace.frontend.errors import warn
from mpmd_trace.frontend.pieces import (
    PAIRWISE,
    REDUCTIONS,
    Cut,
    Cuts,
    contracts_layers,
    is_cut,
    linked,
    rows,
)
from mpmd_trace.frontend.questions import REMAT, applied
from mpmd_trace.frontend.scope import is_computation, tag_of
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

__all__ = ["Pieces", "in_pieces"]


class _Zero:
    """Rows that are known to be zero, as in the derivative of a slice."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    def array(self) -> Any:
        return lax.full(self.aval.shape, 0, self.aval.dtype)


class Pieces:
    """An array whose rows `bounds[k]` to `bounds[k + 1] - 1` are `parts[k]`; `name` is what is told of it."""

    __slots__ = ("bounds", "name", "parts")

    def __init__(self, bounds: Sequence[int], parts: Sequence[Any], name: str | None = None) -> None:
        self.bounds = tuple(bounds)
        self.parts = list(parts)
        self.name = name

    @property
    def arrays(self) -> list[Any]:
        """The parts, with zeros where nothing else is."""
        return [_array(part) for part in self.parts]


def _array(part: Any) -> Any:
    return part.array() if isinstance(part, _Zero) else part


def in_pieces(closed: Closed, cuts: Cuts, names: Sequence[str]) -> Closed:
    """`closed`, with an argument and a result for each piece; `names` are those of its arguments."""
    types: list[Any] = []
    groups: list[tuple[int, ...] | None] = []
    for atom in cuts.parts.invars:
        bounds = _bounds(cuts, atom)
        groups.append(bounds)
        types += [atom.aval] if bounds is None else [_resized(atom.aval, n) for n in _sizes(bounds)]

    def run(*flat: Any) -> list[Any]:
        fill = iter(flat)
        args = [
            next(fill) if b is None else Pieces(b, list(itertools.islice(fill, len(b) - 1)), name)
            for b, name in zip(groups, names, strict=True)
        ]
        return _flat(_Interpreter().evaluate(cuts, args))

    return tracing.make_closed(run, types)


def _bounds(cuts: Cuts, atom: Any) -> tuple[int, ...] | None:
    cut = cuts.get(atom)
    return None if cut is None else rows(cut, atom.aval)


def _sizes(bounds: Sequence[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(bounds)]


def _resized(aval: Any, size: int) -> Any:
    return aval.update(shape=(size, *aval.shape[1:]))


def _flat(values: Sequence[Any]) -> list[Any]:
    return [a for v in values for a in (v.arrays if isinstance(v, Pieces) else [v])]


class _Like:
    """The form of some values: takes them apart into arrays, and puts them together again."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._forms = [(v.bounds, v.name) if isinstance(v, Pieces) else None for v in values]

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        fill = iter(arrays)
        return [
            next(fill) if form is None else Pieces(form[0], list(itertools.islice(fill, len(form[0]) - 1)), form[1])
            for form in self._forms
        ]


class _Interpreter:
    """Interprets one program."""

    def __init__(self) -> None:
        self._told: set[tuple[str | None, str]] = set()

    def evaluate(self, cuts: Cuts, args: Sequence[Any], wanted: Sequence[bool] | None = None) -> list[Any]:
        """The results for `args`, which are in pieces as `cuts` says; those that are not `wanted` are None."""
        parts = cuts.parts
        env: dict[Any, Any] = dict(zip(parts.constvars, parts.consts, strict=True))
        env.update(zip(parts.invars, args, strict=True))
        for v in parts.constvars:
            env[v] = self._as_cut(env[v], _bounds(cuts, v))
        alive = cuts.alive if wanted is None else live_equations(cuts.closed, wanted)
        for i, eqn in enumerate(parts.eqns):
            if not alive[i]:
                continue
            operands = [v.val if tracing.is_literal(v) else env[v] for v in eqn.invars]
            bounds = [_bounds(cuts, v) for v in eqn.outvars]
            with tracing.source_of(eqn):
                results = self._equation(eqn, operands, bounds, cuts.inner.get(i))
                for v, result, b in zip(eqn.outvars, results, bounds, strict=True):
                    env[v] = self._as_cut(result, b, eqn)
        return [
            None if wanted is not None and not wanted[i] else v.val if tracing.is_literal(v) else env[v]
            for i, v in enumerate(parts.outvars)
        ]

    # ---- wholes and pieces ----------------------------------------------------------------

    def _as_cut(self, value: Any, bounds: Sequence[int] | None, eqn: Equation | None = None) -> Any:
        """`value` in these pieces, or whole."""
        if bounds is None:
            return self._whole(value, eqn)
        if isinstance(value, Pieces):
            if value.bounds == tuple(bounds):
                return value
            self._tell(value, eqn)
        name = value.name if isinstance(value, Pieces) else None
        return Pieces(bounds, [_rows(value, a, b) for a, b in itertools.pairwise(bounds)], name)

    def _whole(self, value: Any, eqn: Equation | None) -> Any:
        if not isinstance(value, Pieces):
            return value
        self._tell(value, eqn)
        return _rows(value, 0, value.bounds[-1])

    def _tell(self, value: Pieces, eqn: Equation | None) -> None:
        """Warn that a value is joined, unless it has but a number per layer."""
        where = None if eqn is None else tracing.location(eqn)
        what = "the end of the program" if eqn is None else _described(eqn)
        if np.ndim(value.parts[0] if not isinstance(value.parts[0], _Zero) else value.parts[0].aval) < 2:
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
        self, eqn: Equation, args: list[Any], out: Sequence[tuple[int, ...] | None], inner: list[Cuts] | None
    ) -> Sequence[Any]:
        in_pieces = any(isinstance(a, Pieces) for a in args) or any(b is not None for b in out)
        if inner is not None and (in_pieces or any(cuts.any for cuts in inner)):
            return self._control(eqn, args, inner)
        if not in_pieces:
            return tracing.rebind(eqn, args)
        if is_computation(eqn):
            return tracing.rebind(eqn, [self._whole(a, eqn) for a in args])
        if eqn.primitive.name in PAIRWISE:
            like = _Like(args)
            params = dict(eqn.params)
            for key in ("devices", "srcs", "copy_semantics"):  # one for each operand
                if key in params:
                    params[key] = tuple(x for x, a in zip(params[key], args, strict=True) for _ in _flat([a]))
            return like.values(tracing.rebind(eqn, _flat(args), params))
        if is_cut(eqn):
            return [self._moved(eqn, args, out[0])]
        links = linked(eqn)
        if links is not None:
            return self._each(eqn, args, out, links)
        kind = eqn.primitive.name
        if kind in REDUCTIONS and isinstance(args[0], Pieces) and 0 in eqn.params["axes"]:
            return [_combined(REDUCTIONS[kind], [tracing.rebind(eqn, [part])[0] for part in args[0].arrays])]
        if contracts_layers(eqn) and isinstance(args[0], Pieces) and isinstance(args[1], Pieces):
            left, right = args[0], self._as_cut(args[1], args[0].bounds, eqn)
            pairs = zip(left.arrays, right.arrays, strict=True)
            return [_combined("add", [tracing.rebind(eqn, pair)[0] for pair in pairs])]
        return tracing.rebind(eqn, [self._whole(a, eqn) for a in args])

    def _each(
        self,
        eqn: Equation,
        args: list[Any],
        out: Sequence[tuple[int, ...] | None],
        links: tuple[list[bool], list[bool]],
    ) -> list[Any]:
        """An equation that computes piece k of its results from piece k of its operands."""
        atoms = [v for v, has in zip([*eqn.invars, *eqn.outvars], [*links[0], *links[1]], strict=True) if has]
        known = [a for a, has in zip(args, links[0], strict=True) if has and isinstance(a, Pieces)]
        bounds = next((b for b in out if b is not None), None)
        length = eqn.outvars[0].aval.shape[0] if bounds is not None else 0
        if bounds is None:
            if not known:
                return tracing.rebind(eqn, [self._whole(a, eqn) for a in args])
            bounds = known[0].bounds
            length = bounds[-1]
        cut: Cut = tuple(Fraction(b, length) for b in bounds)
        in_rows = {id(v): rows(cut, v.aval) for v in atoms}
        if any(found is None for found in in_rows.values()):
            return tracing.rebind(eqn, [self._whole(a, eqn) for a in args])
        operands = [
            self._as_cut(a, in_rows[id(v)], eqn) if has else self._whole(a, eqn)
            for a, v, has in zip(args, eqn.invars, links[0], strict=True)
        ]
        name = next((a.name for a in known if a.name is not None), None)
        columns: list[list[Any]] = []
        for k in range(len(bounds) - 1):
            mine = [a.parts[k] if isinstance(a, Pieces) else a for a in operands]
            starts = [in_rows[id(v)] for v in eqn.outvars]
            columns.append(_one_piece(eqn, mine, [(b[k], b[k + 1] - b[k]) for b in starts if b is not None]))
        return [
            Pieces(in_rows[id(v)] or (), [column[n] for column in columns], name) for n, v in enumerate(eqn.outvars)
        ]

    def _moved(self, eqn: Equation, args: list[Any], out: tuple[int, ...] | None) -> Any:
        """A slice of rows, or arrays put one after the other along the first axis, perhaps with padding."""
        params = eqn.params
        if eqn.primitive.name == "slice":
            start, stop = params["start_indices"], params["limit_indices"]
            source = args[0]
            name = source.name if isinstance(source, Pieces) else None
            cuts = out or _inside(source, start[0], stop[0])

            def columns(part: Any) -> Any:
                strides = params["strides"]
                lower, upper = (0, *start[1:]), (part.shape[0], *stop[1:])
                is_all = not any(lower) and upper == part.shape and (strides is None or set(strides) <= {1})
                return part if is_all else lax.slice(part, lower, upper, strides)

            parts = [columns(_rows(source, start[0] + a, start[0] + b)) for a, b in itertools.pairwise(cuts)]
            return parts[0] if len(parts) == 1 else Pieces(cuts, parts, name)
        if out is None:
            return tracing.rebind(eqn, [self._whole(a, eqn) for a in args])[0]
        is_pad = eqn.primitive.name == "pad"
        sources, at = [], int(params["padding_config"][0][0]) if is_pad else 0
        for atom, source in zip(eqn.invars[:1] if is_pad else eqn.invars, args, strict=False):
            sources.append((at, at + atom.aval.shape[0], source))
            at += atom.aval.shape[0]
        aval = eqn.outvars[0].aval
        pieces = []
        for a, b in itertools.pairwise(out):
            found = [(max(a, s), min(b, e), s, v) for s, e, v in sources if max(a, s) < min(b, e)]
            arrays = [_rows(v, lower - s, upper - s) for lower, upper, s, v in found]
            if not is_pad:
                pieces.append(arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, 0))
            elif arrays:
                config = [tuple(map(int, c)) for c in params["padding_config"]]
                config[0] = (found[0][0] - a, b - found[0][1], 0)
                has_any = any(c != (0, 0, 0) for c in config)
                pieces.append(lax.pad(arrays[0], args[1], config) if has_any else arrays[0])
            elif tracing.is_literal(eqn.invars[1]) and not np.any(args[1]):
                pieces.append(_Zero(_resized(aval, b - a)))
            else:
                pieces.append(jnp.broadcast_to(args[1], (b - a, *aval.shape[1:])))
        return Pieces(out, pieces)

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
        assert applied(eqn) is not None
        return self.evaluate(inner[0], self._entering(inner[0].parts.invars, inner[0], args, eqn))

    def _entering(self, atoms: Sequence[Any], cuts: Cuts, args: Sequence[Any], eqn: Equation) -> list[Any]:
        return [self._as_cut(a, _bounds(cuts, v), eqn) for v, a in zip(atoms, args, strict=True)]

    def _alike(self, values: Sequence[Any], others: Sequence[Any], eqn: Equation) -> list[Any]:
        """The `others` in pieces as the `values` are."""
        forms = [v.bounds if isinstance(v, Pieces) else None for v in values]
        return [self._as_cut(other, bounds, eqn) for other, bounds in zip(others, forms, strict=True)]

    def _on_flat(
        self, cuts: Cuts, args: Sequence[Any], eqn: Equation
    ) -> tuple[Callable[..., list[Any]], list[Any], list[_Like]]:
        """`cuts` as a function of flat arrays, the arrays for `args`, and the form of the results once it ran."""
        entering = self._entering(cuts.parts.invars, cuts, args, eqn)
        like = _Like(entering)
        results: list[_Like] = []

        def run(*flat: Any) -> list[Any]:
            found = self.evaluate(cuts, like.values(flat))
            results.append(_Like(found))
            return _flat(found)

        return run, _flat(entering), results

    def _call(self, eqn: Equation, args: list[Any], cuts: Cuts) -> list[Any]:
        run, flat, results = self._on_flat(cuts, args, eqn)
        run.__name__ = run.__qualname__ = eqn.params["name"]
        found = jax.jit(run)(*flat)
        return results[-1].values(found)

    def _rebuilt(self, eqn: Equation, args: list[Any], cuts: Cuts) -> list[Any]:
        run, flat, results = self._on_flat(cuts, args, eqn)
        closed = tracing.make_closed(run, [jax.typeof(a) for a in flat])
        return results[-1].values(tracing.rebind_checkpoint(eqn, flat, closed))

    def _scan(self, eqn: Equation, args: list[Any], cuts: Cuts) -> list[Any]:
        layout = tracing.scan_layout(eqn)
        first = layout.constants + layout.carries
        atoms = cuts.parts.invars
        constants = self._entering(atoms[: layout.constants], cuts, args[: layout.constants], eqn)
        start = self._entering(atoms[layout.constants : first], cuts, args[layout.constants : first], eqn)
        scanned = [self._whole(a, eqn) for a in args[first:]]
        like = _Like(start)

        def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            inputs = self._entering(atoms[first:], cuts, xs, eqn)
            results = self.evaluate(cuts, [*constants, *like.values(carry), *inputs])
            outputs = [self._whole(r, eqn) for r in results[layout.carries :]]
            return _flat(self._alike(start, results[: layout.carries], eqn)), outputs

        final, outputs = lax.scan(
            body, _flat(start), scanned, layout.length, reverse=layout.reverse, unroll=eqn.params["unroll"]
        )
        return [*like.values(final), *outputs]

    def _while(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        test, step = inner
        tests, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        for_test = self._entering(test.parts.invars[:tests], test, args[:tests], eqn)
        for_step = self._entering(step.parts.invars[:consts], step, args[tests : tests + consts], eqn)
        start = self._entering(step.parts.invars[consts:], step, args[tests + consts :], eqn)
        like = _Like(start)

        def goes_on(carry: list[Any]) -> Any:
            values = self._entering(test.parts.invars[tests:], test, like.values(carry), eqn)
            return self.evaluate(test, [*for_test, *values])[0]

        def body(carry: list[Any]) -> list[Any]:
            return _flat(self._alike(start, self.evaluate(step, [*for_step, *like.values(carry)]), eqn))

        return like.values(lax.while_loop(goes_on, body, _flat(start)))

    def _cond(self, eqn: Equation, args: list[Any], inner: list[Cuts]) -> list[Any]:
        """A conditional for each piece, and one for what is whole: each piece may be on a mesh of its own."""
        index, *operands = args
        entering = self._entering(inner[0].parts.invars, inner[0], operands, eqn)
        arrays, like = _flat(entering), _Like(entering)
        bounds = [_bounds(inner[0], v) for v in inner[0].parts.outvars]
        results: list[Any] = [None if b is None else Pieces(b, [None] * (len(b) - 1)) for b in bounds]
        groups: dict[int | None, list[int]] = {}
        for n, b in enumerate(bounds):
            for k in [None] if b is None else range(len(b) - 1):
                groups.setdefault(k, []).append(n)
        for k, members in sorted(groups.items(), key=lambda item: -1 if item[0] is None else item[0]):
            branches = [self._branch(cuts, eqn, like, arrays, bounds, members, k) for cuts in inner]
            needed, functions = tracing.pruned(branches)
            number = index.astype(np.int32) if index.dtype == np.bool_ else index
            found = lax.switch(number, functions, *(arrays[i] for i in needed))
            for n, value in zip(members, found, strict=True):
                if k is None:
                    results[n] = value
                else:
                    results[n].parts[k] = value
        return results

    def _branch(
        self,
        cuts: Cuts,
        eqn: Equation,
        like: _Like,
        arrays: Sequence[Any],
        bounds: Sequence[tuple[int, ...] | None],
        members: Sequence[int],
        k: int | None,
    ) -> Closed:
        """Piece `k` of some results of a branch, as a jaxpr of all arrays of its operands."""
        wanted = [n in members for n in range(len(bounds))]

        def run(*flat: Any) -> list[Any]:
            values = self._entering(cuts.parts.invars, cuts, like.values(flat), eqn)
            found = self.evaluate(cuts, values, wanted)
            as_wanted = [self._as_cut(found[n], bounds[n], eqn) for n in members]
            return [jnp.asarray(v) if k is None else _array(v.parts[k]) for v in as_wanted]

        return tracing.make_closed(run, [jax.typeof(a) for a in arrays])


def _described(eqn: Equation) -> str:
    tag = tag_of(eqn)
    if tag is not None and tag.kind == "named_computation":
        return f"the named computation {tag.name!r}"
    return f"{eqn.primitive.name!r}"


def _inside(source: Any, start: int, stop: int) -> list[int]:
    """Where rows `start` to `stop` of `source` are cut."""
    bounds = source.bounds if isinstance(source, Pieces) else ()
    return [0, *(b - start for b in bounds if start < b < stop), stop - start]


def _rows(value: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of a value."""
    if not isinstance(value, Pieces):
        return value if (start, stop) == (0, value.shape[0]) else lax.slice_in_dim(value, start, stop)
    found = []
    for part, a, b in zip(value.parts, value.bounds, value.bounds[1:], strict=False):
        lower, upper = max(a, start), min(b, stop)
        if lower < upper:
            is_all = (lower, upper) == (a, b)
            found.append(part if is_all and lower == start and upper == stop else _array(part))
            if not is_all:
                found[-1] = lax.slice_in_dim(found[-1], lower - a, upper - a)
    if len(found) == 1:
        return found[0]
    return lax.concatenate(found, 0) if found else _array(value.parts[0])[:0]


def _combined(op: str, parts: Sequence[Any]) -> Any:
    ops: dict[str, Callable[[Any, Any], Any]] = {
        "add": lax.add,
        "max": lax.max,
        "min": lax.min,
        "mul": lax.mul,
        "and": lax.bitwise_and,
        "or": lax.bitwise_or,
    }
    whole = parts[0]
    for part in parts[1:]:
        whole = ops[op](whole, part)
    return whole


#: Ops that make zeros of zeros.
_KEEP_ZEROS = frozenset({"neg", "copy", "reshape", "transpose", "squeeze", "reduce_sum", "slice", "reduce_precision"})


def _one_piece(eqn: Equation, args: list[Any], places: Sequence[tuple[int, int]]) -> list[Any]:
    """The results of `eqn` for one piece of its operands; `places` has the first row and the number of rows of each."""
    name = eqn.primitive.name
    zeros = [isinstance(a, _Zero) for a in args]
    start, size = places[0]
    aval = _resized(eqn.outvars[0].aval, size)
    if name in ("add", "add_any") and any(zeros):
        return [args[1] if zeros[0] else args[0]]
    if zeros[:1] == [True] and (name in _KEEP_ZEROS or name == "convert_element_type"):
        return [_Zero(aval)]
    args = [_array(a) for a in args]
    params = dict(eqn.params)
    match name:
        case "iota":
            if params["dimension"] == 0:
                rows_of = lax.broadcasted_iota(params["dtype"], aval.shape, 0)
                return [rows_of + jnp.asarray(start, params["dtype"])]
            params["shape"] = aval.shape
        case "broadcast_in_dim":
            params["shape"] = aval.shape
        case "reshape":
            params["new_sizes"] = aval.shape
        case "slice":
            params["limit_indices"] = (args[0].shape[0], *params["limit_indices"][1:])
    return tracing.rebind(eqn, args, params)
