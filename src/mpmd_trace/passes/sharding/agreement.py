"""Whether propagation had nothing to decide: all ops agree with their operands and results.

Shardy's rule of an op says which dimensions of its operands and results are one *factor*.  Propagation copies axes from
one of them to another, unless there is something in their way.  Where in the end all values of a factor have the same
axes, at all ops, nothing was in the way of anything: whatever the order in which axes were copied, the result is the
same, and so it is in a program with more stages of the same kind, through which they have a longer way to go.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from mpmd_trace.ir.attributes import Attribute, MeshAttr, TensorShardingAttr, TopologyAttr
from mpmd_trace.ir.core import BlockArg, Op, Value
from mpmd_trace.ir.ops import FragmentOp
from mpmd_trace.passes.sharding.axes import Axes, axes_of
from mpmd_trace.passes.sharding.edges import CONSTRAINT, body_sharding, per_value, rank_of

_RULE = re.compile(r"#sdy\.op_sharding_rule<\((.*?)\)->\((.*?)\) \{(.*?)\}")
_TENSOR = re.compile(r"\[(.*?)\]")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")


def agrees(
    fragments: Iterable[FragmentOp],
    rules: Mapping[Op, Attribute],
    topology: TopologyAttr,
    given: Sequence[TensorShardingAttr | None] = (),
) -> bool:
    """Return whether all ops in the fragments do, except for those that propagation cannot get past.

    Args:
        fragments: after propagation.
        rules: of their ops; an op without one, and with something sharded, counts as one that does not agree.
        topology: the meshes.
        given: the shardings of the arguments of the function before propagation.
    """
    known: dict[tuple[MeshAttr, str, tuple[Axes, ...]], bool] = {}
    for fragment in fragments:
        mesh = topology.meshes[fragment.mesh]
        returned = fragment.body.block.terminator
        for op in fragment.body.walk():
            axes = [_axes(value, fragment) for value in (*op.operands, *op.results)]
            if op is returned:
                outside = [per_value(fragment.out_shardings, i) for i in range(op.num_operands)]
                axes += [axes_of(end, rank_of(value)) for end, value in zip(outside, op.operands, strict=True)]
            if None in axes:
                return False
            tuples = tuple(cast("list[Axes]", axes))
            if not any(names for dims in tuples for names in dims):
                continue
            if op is returned or op.name == CONSTRAINT:
                half = len(tuples) // 2
                if tuples[:half] != tuples[half:]:
                    return False
                continue
            rule = rules.get(op)
            if rule is None:
                if op.operands or len(op.results) > 1:
                    return False
                continue
            key = mesh, rule.text, tuples
            if key not in known:
                known[key] = _fits(rule.text, tuples, dict(mesh.axes))
            if not known[key] and not _between_fixed(op, fragment, given):
                return False
    return True


def _between_fixed(op: Op, fragment: FragmentOp, given: Sequence[TensorShardingAttr | None]) -> bool:
    """Return whether the shardings around the op were fixed before propagation began.

    So it is where microbatches are cut out of an argument whose sharding the user gave, and constrained at once: axes
    come from nowhere else, however long the program is, and go nowhere else.
    """
    if op.num_operands != 1:
        return False
    arg = op.operands[0]
    if not isinstance(arg, BlockArg) or arg.owner is not fragment.body.block:
        return False
    outside = fragment.operands[arg.index]
    if not isinstance(outside, BlockArg) or outside.index >= len(given) or not _is_closed(given[outside.index]):
        return False
    return all(
        user.num_operands == 1 and user.results and all(map(_is_constrained, user.results)) for user in arg.users
    )


def _is_constrained(value: Value) -> bool:
    users = list(value.users)
    return bool(users) and all(user.name == CONSTRAINT and _is_closed(user.attr("sharding")) for user in users)


def _is_closed(sharding: Attribute | None) -> bool:
    return isinstance(sharding, TensorShardingAttr) and not any(map(sharding.is_open, range(len(sharding.dims))))


def _fits(rule: str, axes: tuple[Axes, ...], sizes: Mapping[str, int]) -> bool:
    """Return whether the values of each factor have the same axes."""
    tensors, factors = _parsed(rule)
    held: dict[str, tuple[str, ...]] = {}
    for dims, axes_given in zip(tensors, axes, strict=True):
        for names, those in zip(dims, axes_given, strict=True):
            parts = _spread(names, those, factors, sizes)
            if parts is None or any(held.setdefault(name, part) != part for name, part in parts.items()):
                return False
    return True


def _spread(
    names: tuple[str, ...], axes: tuple[str, ...], factors: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, tuple[str, ...]] | None:
    """Return the axes of each factor of a dimension, the first factor first; None where they do not fit."""
    rest = list(axes)
    spread = {}
    for name in names:
        part: list[str] = []
        left = factors[name]
        while rest and left > 1 and left % sizes[rest[0]] == 0:
            left //= sizes[rest[0]]
            part.append(rest.pop(0))
        spread[name] = tuple(part)
        if rest and left > 1:
            return None
    return None if rest else spread


@functools.lru_cache(maxsize=4096)
def _parsed(rule: str) -> tuple[list[tuple[tuple[str, ...], ...]], dict[str, int]]:
    """Return the factors of each dimension of each operand and result, and the sizes of the factors."""
    match = _RULE.match(rule)
    assert match is not None, rule
    operands, results, factors = match.groups()
    tensors = [
        tuple(tuple(_FACTOR.findall(dim)) for dim in tensor.split(", ")) if tensor else ()
        for tensor in _TENSOR.findall(operands) + _TENSOR.findall(results)
    ]
    sizes = dict(pair.split("=") for pair in factors.split(", ")) if factors else {}
    return tensors, {name: int(size) for name, size in sizes.items()}


def _axes(value: Value, fragment: FragmentOp) -> Axes | None:
    """Return the axes of each dimension of a value in a fragment; None where that cannot be said."""
    is_of_loop = isinstance(value, BlockArg) and value.owner is not fragment.body.block
    return axes_of(None if is_of_loop else body_sharding(fragment, value), rank_of(value))
