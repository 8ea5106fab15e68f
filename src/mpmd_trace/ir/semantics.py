"""Semantics of ops: is one pure, a constant, which reduction is it ...

The tables are what MLIR answers for StableHLO, CHLO, sdy, func and mpmd ops (measured).  An op of a dialect that
is not listed has unknown effects.
"""

from __future__ import annotations

import functools

from mpmd_trace.ir.attributes import BoolAttr
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.outlined import outlined_callee
from mpmd_trace.ir.types import TensorType

#: What devices do together.
COLLECTIVES = frozenset(
    {
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.reduce_scatter",
    }
)
#: Never removed, even when unused.
EFFECTFUL = COLLECTIVES | frozenset(
    {
        "func.call",
        "func.func",
        "mpmd.call",
        "mpmd.fragment_call",
        "sdy.mesh",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
        "stablehlo.composite",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.recv",
        "stablehlo.rng",
        "stablehlo.send",
    }
)
#: Removable when unused, but not speculatable.
REMOVABLE_ONLY = frozenset(
    {"sdy.manual_computation", "stablehlo.cholesky", "stablehlo.custom_call", "stablehlo.triangular_solve"}
)
_KNOWN_DIALECTS = ("stablehlo.", "chlo.", "mpmd.", "sdy.")
#: Ops of other dialects that programs traced from JAX may contain.
_PURE_ELSEWHERE = frozenset({"arith.constant", "tensor.empty", "builtin.unrealized_conversion_cast"})

_REDUCTIONS = {
    "stablehlo.add": "add",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "mul",
    "stablehlo.or": "or",
    "stablehlo.and": "and",
}
#: The StableHLO op of each reduction kind.
REDUCTION_OPS = {kind: name for name, kind in _REDUCTIONS.items()}


def _is_dynamic(op: Op) -> bool:
    for result in op.results:  # nearly no op is: no generators
        if result.type.is_dynamic:
            return True
    for use in op.operand_uses:  # noqa: SIM110
        if use.value.type.is_dynamic:
            return True
    return False


@functools.cache
def _is_removable(name: str) -> bool:
    """Return whether ops of this name are removable; `is_removable_alone` knows exceptions."""
    return name not in EFFECTFUL and (name.startswith(_KNOWN_DIALECTS) or name in _PURE_ELSEWHERE)


def region_is_removable(region: Region) -> bool:
    """Return whether all ops in the region are removable."""
    return _nested(region, pure=False)


def _nested(region: Region, pure: bool) -> bool:
    key = "is_pure" if pure else "is_removable"
    if region.frozen and key in region.memo:
        return bool(region.memo[key])
    check = is_pure if pure else is_removable
    answer = all(check(op) for block in region.blocks for op in block)
    if region.frozen:
        region.memo[key] = answer
    return answer


def _side_effect(op: Op) -> bool:
    effect = op.attr("has_side_effect")
    return isinstance(effect, BoolAttr) and effect.value


def is_removable(op: Op) -> bool:
    """Return whether MLIR removes the op when no result is used ("dead-able"; terminators count as such here)."""
    return is_removable_alone(op) and (not op.regions or all(_nested(region, pure=False) for region in op.regions))


def is_removable_alone(op: Op) -> bool:
    """Return whether the op is removable if all the ops in it are."""
    if op.name == "stablehlo.custom_call":
        return not _side_effect(op)
    return _is_removable(op.name) or (op.is_terminator and op.name not in EFFECTFUL)


def is_pure(op: Op) -> bool:
    """Return whether the op has no effect and may be executed speculatively."""
    name = op.name
    if name in REMOVABLE_ONLY:
        return outlined_callee(op) is not None
    if not _is_removable(name):
        return op.is_terminator and name not in EFFECTFUL
    if name.startswith("stablehlo.") and _is_dynamic(op):
        return op.is_terminator
    return not op.regions or all(_nested(region, pure=True) for region in op.regions)


def trivially_dead(op: Op) -> bool:
    """Return whether an op is removable, no terminator, and without used results (true for ops without results)."""
    for result in op.results:  # nearly all ops are used: the driver asks of every op that it visits
        if result.first_use is not None:
            return False
    return not op.is_terminator and is_removable(op)


def is_constant_like(op: Op) -> bool:
    """Return whether MLIR treats the op as a constant.

    It does not fold or unify `sdy.constant`: each has a sharding.
    """
    return op.name in ("stablehlo.constant", "arith.constant")


def is_negligible(op: Op) -> bool:
    """No operand and exactly one result: constant, iota, ..."""
    return op.num_operands == 0 and len(op.results) == 1


#: Floating-point types that hold every value of another one.
_HELD_BY = {"f16": ("f16", "f32", "f64"), "bf16": ("bf16", "f32", "f64"), "f32": ("f32", "f64"), "f64": ("f64",)}


def is_exact_conversion(op: Op) -> bool:
    """Return whether a `stablehlo.convert` gives floating-point numbers of a type that holds all of the operand's."""
    source, target = op.operand(0).type, op.results[0].type
    assert isinstance(source, TensorType) and isinstance(target, TensorType)
    return target.element in _HELD_BY.get(source.element, ())


def reduction_kind(op: Op) -> str | None:
    """add, max, min, mul, or, and for the six StableHLO ops that reduce; None for others."""
    return _REDUCTIONS.get(op.name)


def region_reduction_kind(region: Region) -> str | None:
    """Return the reduction that the region of a reduce or scatter computes, or None when it is another function.

    The region has 2n arguments and returns n values; each must be the same reduction op of arguments i and
    i + n, in either order.
    """
    if len(region.blocks) != 1:
        return None
    block = region.block
    returned: list[Value] = block.terminator.operands
    n = len(returned)
    if len(block.args) != 2 * n or n == 0:
        return None
    kinds: set[str | None] = set()
    for i, value in enumerate(returned):
        op = value.defining_op
        if op is None or set(op.operands) != {block.args[i], block.args[i + n]}:
            return None
        kinds.add(reduction_kind(op))
    return kinds.pop() if len(kinds) == 1 else None
