"""Sharding rules for the ops of CHLO, for which Shardy has none: it would stop at every `erf`, `top_k` and
`ragged_dot`.

A rule names the dimensions of operands and results that are sharded alike:

    %0 = chlo.erf %x {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}>} : ..
"""

from __future__ import annotations

from collections.abc import Sequence

from mpmd_trace.ir.attributes import Attribute, parse_attribute
from mpmd_trace.ir.bodies import map_ops
from mpmd_trace.ir.core import Op, Region
from mpmd_trace.ir.stablehlo_attributes import listed, ranked, shape_of

RULE = "sdy.sharding_rule"


def with_rules(body: Region) -> Region:
    """Return the body with a rule on each op of CHLO."""
    return map_ops(body, "with rules of CHLO", _add_rules, only=lambda op: op.name.startswith("chlo."))


def _add_rules(region: Region) -> bool:
    """Put rules on the ops of CHLO in the region.  Says whether there are any."""
    changed = False
    for op in region.walk():
        if op.name.startswith("chlo.") and RULE not in op.attrs and (rule := _rule(op)) is not None:
            op.attrs[RULE] = rule
            changed = True
    return changed


def _rule(op: Op) -> Attribute | None:
    values = [*op.operands, *op.results]
    if not all(ranked(value) for value in values):
        return None
    shapes = [shape_of(value) for value in values]
    rank = len(shapes[0])
    if op.name == "chlo.ragged_dot":
        dims, reduced = _ragged_dot(op)
        return _spelled(op, dims, shapes, reduction=reduced)
    if op.name == "chlo.top_k":
        along = list(range(rank - 1))
        return _spelled(op, [[*along, rank - 1], [*along, rank], [*along, rank]], shapes, whole=(rank - 1, rank))
    if rank and all(shape == shapes[0] for shape in shapes):
        return _spelled(op, [list(range(rank))] * len(shapes), shapes)
    return None


def _ragged_dot(op: Op) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return the factor of each dimension of operands and results, and the factors that are summed over.

    Factors are numbered: those of the dimensions of the left operand first, then the others of the right one.
    """

    def numbers(name: str) -> tuple[int, ...]:
        return listed(op, "ragged_dot_dimension_numbers", f"{name}_dimensions")

    left_shape, right_shape, sizes_shape = (shape_of(value) for value in op.operands)
    left = list(range(len(left_shape)))
    right = [len(left) + i for i in range(len(right_shape))]
    contracting = numbers("lhs_contracting")
    batching, ragged, groups = numbers("lhs_batching"), numbers("lhs_ragged"), numbers("rhs_group")
    for i, j in zip((*batching, *contracting), (*numbers("rhs_batching"), *numbers("rhs_contracting")), strict=True):
        right[j] = left[i]
    group = right[groups[0]] if groups else len(left) + len(right_shape)
    sizes = [len(left) + len(right_shape) + 1 + i for i in range(len(sizes_shape) - 1)] + [group]
    shared = {left[i] for i in (*batching, *contracting)}
    result = [left[i] for i in batching]
    result += [factor for factor in left if factor not in shared]
    result += [factor for factor in right if factor not in shared and factor != group]
    if set(ragged) <= set(contracting):  # a sum for each group
        result = [group, *result]
    reduced = [left[i] for i in contracting] + [group] * bool(groups)
    return [left, right, sizes, result], tuple(reduced)


def _spelled(
    op: Op,
    dims: Sequence[Sequence[int]],
    shapes: Sequence[Sequence[int]],
    *,
    reduction: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> Attribute:
    """Return the rule in which dimensions with the same number are a factor.

    `reduction`: those that are summed over; `whole`: those that are not to be sharded.
    """
    order = list(dict.fromkeys(factor for factors in dims for factor in factors))
    names = {factor: _name(i) for i, factor in enumerate(order)}
    sizes = {f: n for factors, shape in zip(dims, shapes, strict=True) for f, n in zip(factors, shape, strict=True)}
    mapped = ["[" + ", ".join(names[factor] for factor in factors) + "]" for factors in dims]
    operands, results = mapped[: op.num_operands], mapped[op.num_operands :]
    extents = ", ".join(f"{names[factor]}={sizes[factor]}" for factor in order)
    text = f"({', '.join(operands)})->({', '.join(results)}) {{{extents}}}"
    for keyword, factors in (("reduction", reduction), ("need_replication", whole)):
        if factors:
            text += f" {keyword}={{{', '.join(names[f] for f in order if f in factors)}}}"
    return parse_attribute(f"#sdy.op_sharding_rule<{text}>")


def _name(number: int) -> str:
    """Return how Shardy spells the factor of this number: i, j ... z, z_1, z_2 ..."""
    return chr(ord("i") + number) if number < 18 else f"z_{number - 17}"
