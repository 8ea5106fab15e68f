"""FLOPs of a piece of a program, counted from its ops: enough to compare programs before XLA sees them.

A multiply-add of a contraction counts two, an element that is computed one, moving data nothing.  Bodies
remember their count, so the microbatches that share one are counted once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.outlined import outlined_callee, outlined_work
from mpmd_trace.ir.sharding_attributes import TensorShardingPerValueAttr
from mpmd_trace.ir.stablehlo_attributes import listed, shape_of
from mpmd_trace.ir.types import TensorType

#: Products of rows with the matrix of their group, as in a mixture of experts.
RAGGED_DOT = "chlo.ragged_dot"
#: Ops that move, reinterpret or make up data; XLA fuses them away or they cost bandwidth alone.
_FREE_NAMES = """
bitcast_convert broadcast_in_dim concatenate constant convert copy dynamic_slice dynamic_update_slice gather
get_tuple_element iota optimization_barrier pad partition_id replica_id reshape return reverse slice transpose tuple
"""
_FREE = frozenset(f"stablehlo.{name}" for name in _FREE_NAMES.split())
#: Ops whose regions say how two elements are combined; the work is in the operands.
_COMBINING = frozenset(
    f"stablehlo.{name}" for name in ("all_reduce", "map", "reduce", "reduce_scatter", "scatter", "select_and_scatter")
)
_KERNEL = re.compile(r"x\[([^\]]*)\]->")


#: Own work, and how often each function is called from here.
_Count = tuple[float, tuple[tuple[str, float], ...]]
#: What is counted of an op; None where that is what its regions have.
Leaf = Callable[[Op], float | None]


def flops(body: Region, module: Module | None = None) -> float:
    """Return the floating point operations of one run of a body, about as XLA counts them.

    Loops count as often as they run where the bound is a constant (otherwise once), branches as their most
    expensive case.  Functions that are called are looked up in `module` and count nothing without it.
    """
    return counted(body, module, work_of)


def flops_of(ops: Iterable[Op]) -> float:
    """Return the same for some ops; functions that they call count nothing."""
    return _sum(ops, work_of)[0]


def counted(body: Region, module: Module | None, count: Leaf) -> float:
    """Return what `count` says of the ops of a body, of what runs inside of them, and of what they call."""
    own, calls = _region(body, count)
    if not calls or module is None:
        return own
    return _resolve((own, calls), {f.sym_name: f for f in module.functions}, {}, count)


def _resolve(counted: _Count, functions: dict[str, FuncOp], known: dict[str, float], count: Leaf) -> float:
    own, calls = counted
    for name, times in calls:
        if name not in known:
            known[name] = 0.0  # a function that calls itself does not exist, but must not hang us
            function = functions.get(name)
            if function is not None and not function.is_declaration:
                known[name] = _resolve(_region(function.regions[0], count), functions, known, count)
        own += times * known[name]
    return own


def _region(region: Region, count: Leaf) -> _Count:
    if region.frozen:
        return remembered(region, count, lambda: _sum((op for block in region.blocks for op in block), count))
    return _sum((op for block in region.blocks for op in block), count)


def _sum(ops: Iterable[Op], count: Leaf) -> _Count:
    own = 0.0
    calls: dict[str, float] = {}
    for op in ops:
        work, called = _op(op, count)
        own += work
        for name, times in called:
            calls[name] = calls.get(name, 0.0) + times
    return own, tuple(calls.items())


def _times(count: _Count, factor: float) -> _Count:
    own, calls = count
    return own * factor, tuple((name, times * factor) for name, times in calls)


def _op(op: Op, count: Leaf) -> _Count:
    name = op.name
    if name == "stablehlo.while":
        return _times(_sum((o for r in op.regions for b in r.blocks for o in b), count), _trips(op))
    if name in ("stablehlo.case", "stablehlo.if"):
        return max((_region(r, count) for r in op.regions), key=lambda c: c[0], default=(0.0, ()))
    if name in ("func.call", "mpmd.call"):
        return 0.0, ((_callee(op), 1.0),)
    if name == "sdy.manual_computation":
        return _times(_region(op.regions[0], count), manual_devices(op) if count is work_of else 1.0)
    own = count(op)
    if own is None:
        return _sum((o for r in op.regions for b in r.blocks for o in b), count)
    return own, ()


def work_of(op: Op) -> float | None:
    """Return the floating point operations of an op; None where they are those of its regions."""
    name = op.name
    if outlined_callee(op) is not None:
        return float(outlined_work(op))
    products = products_of(op)
    if products is not None:
        return 2.0 * _elements(op.results) * products
    if name in _FREE or name.startswith(("sdy.", "mpmd.return", "func.")):
        return 0.0
    if name in _COMBINING:
        return float(_elements(op.operands))
    if name in ("stablehlo.sort", "chlo.top_k"):
        count = _elements(op.operands)
        return count * max(1.0, math.log2(max(count, 1)))
    return None if op.regions else float(_elements(op.results))


def products_of(op: Op) -> float | None:
    """Return how many products a contraction adds up for an element of its result; None for other ops."""
    if op.name == "stablehlo.dot_general":
        shape = shape_of(op.operand(0))
        return math.prod(shape[d] for d in listed(op, "dot_dimension_numbers", "lhs_contracting_dimensions"))
    if op.name == "stablehlo.convolution":
        return _window(op)
    return _of_ragged_dot(op) if op.name == RAGGED_DOT else None


def _of_ragged_dot(op: Op) -> float:
    """Return the same for a `chlo.ragged_dot`: no row is multiplied twice."""
    left, sizes = shape_of(op.operand(0)), shape_of(op.operand(2))
    contracting, ragged = (
        listed(op, "ragged_dot_dimension_numbers", f"lhs_{kind}_dimensions") for kind in ("contracting", "ragged")
    )
    total = math.prod(left[i] for i in contracting)
    # Groups of what is contracted have a result each.
    return total / max(sizes[-1], 1) if set(ragged) <= set(contracting) else float(total)


def manual_devices(op: Op) -> float:
    """Return on how many devices a manual computation computes something else: over the axes that shard a value of it.

    The sizes of axes are those of dimensions outside of it over those inside.
    """
    block = op.regions[0].block
    sizes: dict[tuple[str, ...], float] = {}
    for name, outside, inside in (
        ("in_shardings", op.operands, block.args),
        ("out_shardings", op.results, block.terminator.operands),
    ):
        attribute = op.props.get(name)
        shardings = attribute.shardings if isinstance(attribute, TensorShardingPerValueAttr) else ()
        for sharding, whole, part in zip(shardings, outside, inside, strict=False):
            for dim, (many, few) in enumerate(zip(shape_of(whole), shape_of(part), strict=False)):
                if few and many != few:
                    sizes[tuple(sorted(axis.name for axis in sharding.dim_axes(dim)))] = many / few
    counted: set[str] = set()
    factor = 1.0
    for axes in sorted(sizes, key=lambda axes: (len(axes), axes)):
        if not counted.issuperset(axes):
            factor *= sizes[axes] / math.prod(sizes.get((a,), 1.0) for a in axes if a in counted)
            counted.update(axes)
    return factor


def _elements(values: Iterable[Value]) -> int:
    return sum(v.type.num_elements for v in values if isinstance(v.type, TensorType) and v.type.is_ranked)


def _window(op: Op) -> float:
    """Return what one output element of a convolution adds up: the kernel without its output features."""
    kernel = shape_of(op.operands[1])
    numbers = op.props.get("dimension_numbers")
    match = _KERNEL.search(numbers.text) if numbers is not None else None
    order = [part.strip() for part in match.group(1).split(",")] if match is not None else []
    features = kernel[order.index("o")] if "o" in order else 1
    return math.prod(kernel) / max(features, 1)


def _callee(op: Op) -> str:
    attribute = op.props.get("callee")
    return attribute.text.removeprefix("@").strip('"') if attribute is not None else ""


def _trips(op: Op) -> float:
    """Return how often a loop runs, when its condition compares with a constant, as those of JAX do; else 1."""
    for inner in op.regions[0].blocks[0]:
        if inner.name != "stablehlo.compare":
            continue
        for owner in (operand.defining_op for operand in inner.operands):
            if owner is not None and owner.name == "stablehlo.constant":
                digits = re.search(r"dense<(\d+)>", owner.props["value"].text)
                if digits:
                    return float(digits.group(1))
    return 1.0
