"""Losses over microbatches that are not linear over rows: other values than those of the whole batch.

The loss of a microbatch is followed from the rows of the batch to its value.  A mean of per-row losses is the same in
microbatches; a ratio of sums, a product of means or a comparison of rows with each other is not.  What cannot be
followed is not warned of.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mpmd_trace.frontend import marker_primitives
from mpmd_trace.frontend.eval_jaxpr import applied, interpret, live_equations
from mpmd_trace.frontend.jaxpr_queries import MARKERS
from mpmd_trace.frontend.scope import tag_of
from mpmd_trace.frontend.stacked.links import ELEMENTWISE, PAIRWISE, REDUCTIONS, linked
from mpmd_trace.jax_compat import tracing
from mpmd_trace.jax_compat.tracing import Closed, Equation

#: The name of the loops whose first stacked result is the loss of a microbatch, made of the rows that are scanned.
LOOP = "value_and_grad"


class _Kind(enum.Enum):
    """The way in which a value depends on the rows of a microbatch."""

    CONSTANT = enum.auto()
    #: Its entries along an axis depend on one row each.
    ROWS = enum.auto()
    #: A linear function of sums over rows.
    SUM = enum.auto()
    #: The sum of one of each.
    ROWS_AND_SUM = enum.auto()
    #: Successive ones of such entries.
    PART = enum.auto()
    #: Its entries along two axes depend on two rows.
    PAIRS = enum.auto()
    UNKNOWN = enum.auto()
    #: A nonlinear function of what depends on several rows.
    NONLINEAR = enum.auto()


class _Order(NamedTuple):
    """An order of rows: entry i depends on row `sign * i + shift` of those that are sorted as `base` says."""

    #: What tells this sort from others; empty where rows are in the order of the batch.
    base: tuple[int, ...] = ()
    sign: int = 1
    shift: int = 0


class _Value(NamedTuple):
    """The dependence of a value on rows, as far as it is known."""

    kind: _Kind
    axes: tuple[int, ...] = ()
    #: For one that is nonlinear: where it becomes so (`file:line`), and how.
    place: str | None = None
    how: str = ""
    order: _Order = _Order()

    @property
    def axis(self) -> int | None:
        return self.axes[0] if len(self.axes) == 1 else None

    @property
    def has_sum(self) -> bool:
        return self.kind in (_Kind.SUM, _Kind.ROWS_AND_SUM)


_CONSTANT, _SUM, _UNKNOWN = (_Value(kind) for kind in (_Kind.CONSTANT, _Kind.SUM, _Kind.UNKNOWN))

_RATIO = 'divides by a sum over rows. For a mean over what counts, return the sum and the count with reduce="weighted"'
_COMPARED = (
    "compares rows with each other; mpmd_trace.gradients.contrastive_value_and_grad computes such a loss over all rows"
)
_OTHER = "computes a nonlinear function of a sum, mean or maximum over rows"

_LINEAR_OPS = """
add add_any broadcast_in_dim concatenate convert_element_type copy cumsum dynamic_slice gather imag neg pad real
reduce_precision reduce_sum reshape rev select_n slice squeeze sub transpose
"""
_LINEAR = frozenset(_LINEAR_OPS.split())
#: Linear in each operand, but not in several.
_PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
_NONLINEAR = (ELEMENTWISE | REDUCTIONS.keys() | _PRODUCTS) - _LINEAR
#: Piecewise constant functions: these may choose what is computed, and tell nothing of values.
_STEPS = frozenset(
    {"argmax", "argmin", "ceil", "eq", "floor", "ge", "gt", "is_finite", "le", "lt", "ne", "round", "sign"}
)
_IDENTITIES = PAIRWISE | MARKERS | {marker_primitives.transposes_p.name, "sharding_constraint", "reshard"}


def nonlinear_losses(closed: Closed) -> Iterator[tuple[str, str | None]]:
    """Find losses of `value_and_grad` that are provably not linear over rows: what to say, and where (`file:line`)."""
    for eqn in tracing.equations(closed):
        tag = tag_of(eqn)
        if tag is None or (tag.kind, tag.name) != ("loop", LOOP):
            continue
        for scan in tracing.opened(eqn.params["jaxpr"]).eqns:
            if scan.primitive.name == "scan":
                loss = _loss(tracing.scan_layout(scan))
                if loss.kind is _Kind.NONLINEAR:
                    yield _text(loss.how), loss.place


def _text(how: str) -> str:
    return (
        f"the loss is not linear over the rows of a microbatch, so it and its gradients depend on the number of "
        f"microbatches: this {how}. If this is meant, ignore this warning (warnings.filterwarnings)"
    )


def _loss(loop: tracing.ScanLayout) -> _Value:
    body = tracing.opened(loop.body)
    rows = [v for v in body.invars[loop.constants + loop.carries :] if v.aval.shape]
    if loop.length < 2 or not rows or body.outvars[loop.carries].aval.shape:
        return _UNKNOWN
    wanted = [i == loop.carries for i in range(len(body.outvars))]
    given = [_Value(_Kind.ROWS, (0,)) if v in rows else _CONSTANT for v in body.invars]
    return _Walk(rows[0].aval.shape[0]).results(loop.body, given, wanted)[loop.carries]


def _sum(values: Sequence[_Value]) -> _Value:
    """Return a linear function of values; where these are the values of branches, one that may be each of them."""
    return functools.reduce(_plus, values, _CONSTANT)


def _plus(a: _Value, b: _Value) -> _Value:
    for one, other in ((a, b), (b, a)):
        if one.kind is _Kind.NONLINEAR or other.kind is _Kind.CONSTANT or one == other:
            return one
    if {_Kind.UNKNOWN, _Kind.PAIRS, _Kind.PART} & {a.kind, b.kind} or len(_orders((a, b))) > 1:
        return _UNKNOWN
    axes = {value.axes for value in (a, b) if value.axes}
    if len(axes) != 1 or not (a.has_sum or b.has_sum):
        return _UNKNOWN
    return _Value(_Kind.ROWS_AND_SUM, axes.pop(), order=_orders((a, b)).pop())


def _orders(values: Iterable[_Value]) -> set[_Order]:
    """Return the orders of the rows that entries of values depend on."""
    return {value.order for value in values if value.axes}


class _Walk:
    """Follows values through a program whose microbatches have `rows` rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._known: dict[Any, list[_Value]] = {}

    def results(self, closed: Closed, given: Sequence[_Value], wanted: Sequence[bool] | None = None) -> list[_Value]:
        """Return the results of a jaxpr, those wanted, on arguments like `given`."""
        key = closed, tuple(given)
        if key not in self._known:
            alive = live_equations(closed, wanted)
            self._known[key] = interpret(closed, given, self._equation, constant=lambda _: _CONSTANT, alive=alive)
        return self._known[key]

    def _equation(self, eqn: Equation, operands: list[_Value]) -> Sequence[_Value]:
        name, count, body = eqn.primitive.name, len(eqn.outvars), applied(eqn)
        if all(value is _CONSTANT for value in operands):
            return [_CONSTANT] * count
        if name in _IDENTITIES and len(operands) == count:
            return operands
        if body is not None:
            return [_placed(value, eqn, operands) for value in self.results(body, operands)]
        if name == "scan":
            return self._scan(tracing.scan_layout(eqn), operands)
        if name == "cond" and operands[0].kind is _Kind.CONSTANT:
            branches = [self.results(branch, operands[1:]) for branch in eqn.params["branches"]]
            return [_sum(values) for values in zip(*branches, strict=True)]
        if name == "mul" and any(tracing.is_literal(v) and not np.any(v.val) for v in eqn.invars):
            return [_CONSTANT]
        if name == "ne" and eqn.invars[0] is eqn.invars[1]:  # whether it is NaN, as `jnp.median` asks
            return [_CONSTANT]
        known = next((value for value in operands if value.kind is _Kind.NONLINEAR), None)
        if name == "div" and operands[0].kind is _Kind.SUM and operands[1] is known:  # as by at least 1
            known = known._replace(how=_RATIO)
        if known is None and all(value.kind is not _Kind.UNKNOWN for value in operands):
            results = _made(eqn, operands, self._rows)
            return [self._checked(eqn, value, v.aval) for v, value in zip(eqn.outvars, results, strict=True)]
        return [self._checked(eqn, known or _UNKNOWN, v.aval) for v in eqn.outvars]

    def _checked(self, eqn: Equation, value: _Value, aval: Any) -> _Value:
        """Return what is known of a result of this type, which is UNKNOWN for one that tells nothing of values."""
        if value.kind is _Kind.PART:
            return value
        if any(aval.shape[axis] % self._rows for axis in value.axes):
            return _UNKNOWN
        is_number = jnp.issubdtype(aval.dtype, jnp.number)
        if value.kind is _Kind.ROWS or value.kind is _Kind.PAIRS or value is _CONSTANT:
            return value
        to_int = eqn.primitive.name == "convert_element_type" and not jnp.issubdtype(aval.dtype, jnp.inexact)
        is_step = eqn.primitive.name in _STEPS or (to_int and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact))
        return value if is_number and not is_step else _UNKNOWN

    def _scan(self, loop: tracing.ScanLayout, operands: list[_Value]) -> list[_Value]:
        constants, carries, scanned = loop.split(operands)
        if any(0 in value.axes for value in scanned):
            return [_UNKNOWN] * len(tracing.opened(loop.body).outvars)
        turns = [_moved(value, -1) for value in scanned]
        before: Sequence[_Value] | None = None
        while carries != before:  # each turn of this makes one of them less certain
            before = carries
            results = self.results(loop.body, [*constants, *carries, *turns])
            carries = [_plus(a, b) for a, b in zip(carries, results, strict=False)]
        stacked = [_moved(value, 1) for value in results[loop.carries :]]
        return [*carries, *stacked]


def _placed(value: _Value, eqn: Equation, operands: Sequence[_Value]) -> _Value:
    """Return a value inside of `eqn` with its place in the user's code, which code of JAX that is traced once lacks."""
    base = value.order.base
    if base and all(base != operand.order.base for operand in operands):  # sorted in here, as others may be
        value = value._replace(order=value.order._replace(base=(*base, *map(id, eqn.invars))))
    return value._replace(place=tracing.location(eqn)) if value.how and value.place is None else value


def _moved(value: _Value, by: int) -> _Value:
    """Return a value with more axes before its own."""
    return value._replace(axes=tuple(axis + by for axis in value.axes)) if value.axes else value


def _is_linear(eqn: Equation, operands: Sequence[_Value]) -> bool:
    """Return whether an equation is linear in the operands that are not constant, all of them together."""
    name, varying = eqn.primitive.name, [i for i, value in enumerate(operands) if value is not _CONSTANT]
    if name in ("select_n", "gather", "dynamic_slice"):  # by constant masks and numbers
        return varying[0] > 0 if name == "select_n" else varying == [0]
    return name in _LINEAR or (name in _PRODUCTS and len(varying) == 1) or (name == "div" and varying == [0])


def _made(eqn: Equation, operands: list[_Value], rows: int) -> list[_Value]:
    """Return what an op without jaxprs inside makes of operands that are known and not all constant."""
    count = len(eqn.outvars)
    kinds = {value.kind for value in operands}
    if _Kind.PAIRS in kinds:
        return [_of_pairs(eqn, operands)] * count
    if kinds <= {_Kind.CONSTANT, _Kind.SUM}:
        return [_SUM if _is_linear(eqn, operands) else _mixed(eqn, operands)] * count
    if _Kind.PART in kinds:
        return [_joined(eqn, operands, rows)] * count
    axes = [value.axis for value in operands]
    results = _along(eqn, axes)
    if results is None:
        return _reordered(eqn, operands, rows) or [_across(eqn, operands, axes)] * count
    orders = _orders(operands)
    if len(orders) == 1 and not any(value.has_sum for value in operands):
        return [_Value(_Kind.ROWS, (axis,), order=max(orders)) for axis in results]
    if not _is_linear(eqn, operands):
        return [_mixed(eqn, operands)] * count
    if len(orders) == 1:
        how = next((value.how for value in operands if value.how), "")
    elif eqn.primitive.name in ("add", "add_any", "sub"):
        how = _COMPARED
    else:
        return [_UNKNOWN] * count
    return [_Value(_Kind.ROWS_AND_SUM, (axis,), how=how, order=max(orders)) for axis in results]


def _reordered(eqn: Equation, operands: Sequence[_Value], rows: int) -> list[_Value] | None:
    """Return what a sort, reversal or range of rows makes; None for other ops."""
    name, params, first, axis = eqn.primitive.name, eqn.params, operands[0], operands[0].axis
    if name == "sort":
        is_row = [value.kind is _Kind.ROWS and value.axis == params["dimension"] for value in operands]
        if not any(is_row[: params["num_keys"]]):
            return None
        order = _Order(tuple(map(id, eqn.invars)))
        return [value._replace(order=order) if own else _UNKNOWN for value, own in zip(operands, is_row, strict=True)]
    if name in ("top_k", "approx_top_k") and params["k"] != eqn.invars[0].aval.shape[axis]:
        return [_Value(_Kind.NONLINEAR, place=tracing.location(eqn), how=_COMPARED), _UNKNOWN]
    if name in ("slice", "gather", "dynamic_slice") and first.order.base and all(v is _CONSTANT for v in operands[1:]):
        return [_Value(_Kind.NONLINEAR, place=tracing.location(eqn), how=_COMPARED)]
    if first.kind is not _Kind.ROWS or axis is None or eqn.invars[0].aval.shape[axis] != rows:
        return None
    base, sign, shift = first.order
    if name == "rev":
        return [first._replace(order=_Order(base, -sign, (shift - sign) % rows))]
    if name == "slice" and (params["strides"] or (1,) * (axis + 1))[axis] == 1:
        order = _Order(base, sign, (shift + sign * params["start_indices"][axis]) % rows)
        return [first._replace(kind=_Kind.PART, order=order)]
    return None


def _joined(eqn: Equation, operands: Sequence[_Value], rows: int) -> _Value:
    """Return what an op makes of parts, which is known of all rows one after another, as `jnp.roll` makes it."""
    first = operands[0]
    if eqn.primitive.name != "concatenate" or first.axes != (eqn.params["dimension"],):
        return _UNKNOWN
    base, sign, at = first.order
    for value, v in zip(operands, eqn.invars, strict=True):
        if value != first._replace(order=_Order(base, sign, at % rows)):
            return _UNKNOWN
        at += sign * v.aval.shape[eqn.params["dimension"]]
    return first._replace(kind=_Kind.ROWS) if abs(at - first.order.shift) == rows else _UNKNOWN


def _along(eqn: Equation, axes: Sequence[int | None]) -> list[int] | None:
    """Return the axis of rows of each result, if it is computed row by row from operands with these axes of rows."""
    if eqn.primitive.name == "conv_general_dilated":
        numbers = eqn.params["dimension_numbers"]
        is_rows = tuple(axes) == (numbers.lhs_spec[0], None) and eqn.params["batch_group_count"] == 1
        return [numbers.out_spec[0]] if is_rows else None
    if eqn.primitive.name == "concatenate" and all(axis == eqn.params["dimension"] for axis in axes):
        return [eqn.params["dimension"]]
    link = linked(eqn, [*axes, *(None for _ in eqn.outvars)])
    if link is None or any(axis is not None and axis != own for axis, own in zip(axes, link, strict=False)):
        return None
    results = link[len(axes) :]
    return None if any(axis is None for axis in results) else list(results)  # type: ignore[arg-type]


def _across(eqn: Equation, operands: Sequence[_Value], axes: Sequence[int | None]) -> _Value:
    """Return what an op makes that computes with several rows."""
    name, has_sum = eqn.primitive.name, any(value.has_sum for value in operands)
    if name in ELEMENTWISE:
        both = tuple(sorted({axis for axis in axes if axis is not None}))
        return _Value(_Kind.PAIRS, both) if len(both) == 2 and not has_sum else _UNKNOWN
    if name in REDUCTIONS:
        return _SUM if name == "reduce_sum" else _mixed(eqn, operands)
    if name == "scatter-add" and operands[0].axis is None:
        return _UNKNOWN if operands[2].has_sum or axes[2] in _window(eqn) else _SUM
    if name != "dot_general":
        return _UNKNOWN
    (left, right), (lbatch, rbatch) = eqn.params["dimension_numbers"]
    pairs = [*zip(left, right, strict=True)]
    lhs, rhs = axes
    if lhs is None or rhs is None or (lhs, rhs) in pairs:
        own, other = (0, 1) if lhs is not None else (1, 0)
        of_same = operands[own].kind is operands[other].kind is _Kind.ROWS and len(_orders(operands)) == 1
        if of_same or operands[other].kind is _Kind.CONSTANT:
            return _SUM
        return _mixed(eqn, operands)
    if has_sum or lhs in (*left, *lbatch) or rhs in (*right, *rbatch):
        return _UNKNOWN
    ranks = [len(v.aval.shape) for v in eqn.invars]
    first = [axis for axis in range(ranks[0]) if axis not in (*left, *lbatch)]
    second = [axis for axis in range(ranks[1]) if axis not in (*right, *rbatch)]
    at = len(lbatch) + first.index(lhs), len(lbatch) + len(first) + second.index(rhs)
    return _Value(_Kind.PAIRS, at)


def _window(eqn: Equation) -> tuple[int, ...]:
    """Return the axes of the updates of a scatter that are not scattered."""
    return tuple(eqn.params["dimension_numbers"].update_window_dims)


def _of_pairs(eqn: Equation, operands: Sequence[_Value]) -> _Value:
    """Return what an op makes of values of pairs of rows."""
    name = eqn.primitive.name
    pairs = next(value for value in operands if value.kind is _Kind.PAIRS)
    if name in ELEMENTWISE:
        is_mask = name == "select_n" and operands[0] is not _CONSTANT  # perhaps all but those of the same row
        fits = all(set(value.axes) <= set(pairs.axes) and not value.has_sum for value in operands)
        return pairs if fits and not is_mask else _UNKNOWN
    if name in REDUCTIONS and not set(pairs.axes).isdisjoint(eqn.params["axes"]):
        return _mixed(eqn, operands)
    moved: list[int] = []
    for axis in pairs.axes:
        results = _along(eqn, [axis if value is pairs else value.axis for value in operands])
        moved += results or []
    return _Value(_Kind.PAIRS, tuple(sorted(moved))) if len(set(moved)) == 2 else _UNKNOWN


def _mixed(eqn: Equation, operands: Sequence[_Value]) -> _Value:
    """Return a nonlinear function of several rows, UNKNOWN for ops of which that is not known."""
    name = eqn.primitive.name
    if name not in _NONLINEAR and name != "select_n":
        return _UNKNOWN
    how = _OTHER
    if any(value.kind is _Kind.PAIRS or value.how for value in operands) or len(_orders(operands)) > 1:
        how = _COMPARED
    elif name == "div" and operands[1] is not _CONSTANT:
        how = _RATIO
    return _Value(_Kind.NONLINEAR, place=tracing.location(eqn), how=how)
