"""Which ops cost nothing to make again on another mesh: cheap ones whose result is no smaller than what they read."""

from __future__ import annotations

import math

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.ops import FuncOp, local_type
from mpmd_trace.ir.semantics import is_pure
from mpmd_trace.ir.shardings import bit_width
from mpmd_trace.ir.types import TensorType, Type
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.placement.call_graph import CallGraph
from mpmd_trace.passes.run_caches import run_cache
from mpmd_trace.passes.trivially_canonical import ELEMENTWISE

#: Ops that are cheap for each element.
CHEAP = ELEMENTWISE | {
    f"stablehlo.{name}" for name in ("bitcast_convert", "broadcast_in_dim", "reshape", "reverse", "transpose")
}
#: An op that reads one value of at most so many bytes may give a result of the same size.
_SMALL_BYTES = 8
#: Ops that read more values than this, directly or through free ops, are not free.
_MOST_SOURCES = 8


def is_cheap(op: Op) -> bool:
    """Return whether computing the op again costs little more than reading what it reads."""
    return op.name in CHEAP or not op.num_operands or op.name in ("stablehlo.slice", "stablehlo.dynamic_slice")


_byte_sizes: dict[Type, int] = run_cache()


def byte_size(type: Type) -> int:
    """Return the bytes of a whole value, at least 1; 0 for what is no tensor of known size."""
    result = _byte_sizes.get(type)
    if result is None:
        result = _byte_sizes[type] = _count_bytes(type)
    return result


def _count_bytes(type: Type) -> int:
    local = local_type(type)
    if not isinstance(local, TensorType) or local.shape is None:
        return 0
    count = math.prod(max(size, 1) for size in local.shape)
    try:
        return -(-count * bit_width(local.element) // 8)
    except ValueError:
        return count


def _is_thin(op: Op) -> bool:
    """Return whether the op multiplies matrices that are much smaller than the product, as those of LoRA are."""
    if op.name != "stablehlo.dot_general":
        return False
    return 2 * sum(byte_size(value.type) for value in op.operands) <= byte_size(op.results[0].type)


def free_ops(function: FuncOp, graph: CallGraph) -> dict[Op, tuple[Value, ...]]:
    """Return the free ops at the top of a function, each with the values that it is made of where it is needed.

    Constants are free; so are masks and other values made of constants, scalars that fill an array, and weights
    that each call of a callee converts: they are sent once, what they become as often as there are calls.  What
    leaves a callee is not free: it is in one place.
    """
    runs = graph.runs[function]
    result: dict[Op, tuple[Value, ...]] = {}
    leaving = set() if function.is_entry_point else set(function.returned)
    for op in function.body:
        if len(op.results) != 1 or op.regions or not is_meshless(op):
            continue
        if not is_pure(op):
            continue
        if not op.num_operands:
            result[op] = ()
            continue
        if op.results[0] in leaving:
            continue
        sources: dict[Value, None] = {}
        for value in op.operands:
            producer = value.defining_op
            sources.update(dict.fromkeys(result[producer]) if producer in result else {value: None})
        if not sources:
            result[op] = ()
        if (op.name not in CHEAP and not _is_thin(op)) or len(sources) > _MOST_SOURCES:
            continue
        size = byte_size(op.results[0].type)
        needed = sum(byte_size(value.type) * graph.passed.get(value, runs) for value in sources)
        if 2 * needed <= size * runs or (len(sources) <= 1 and needed <= min(size, _SMALL_BYTES) * runs):
            result[op] = tuple(sources)
    return result
