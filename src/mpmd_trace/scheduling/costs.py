"""How much work a piece of a program is, counted from its ops: enough to balance stages before XLA sees them.

A multiply-add of a contraction counts two, an element that is computed one, moving data nothing.  Bodies
remember their count, so the microbatches that share one are counted once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mpmd_trace.ir.bodies import remembered
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.ops import FragmentOp, FuncOp, Module
from mpmd_trace.ir.outlined import outlined_callee, outlined_work
from mpmd_trace.ir.reading import listed, shape_of
from mpmd_trace.ir.sharding_attributes import TensorShardingPerValueAttr
from mpmd_trace.ir.shardings import bit_width, mesh_symbols
from mpmd_trace.ir.types import TensorType
from mpmd_trace.ir.work import RAGGED_DOT, products_of_ragged_dot
from mpmd_trace.passes.programs.overlap_microbatches import Work

#: Ops that move, reinterpret or make up data; XLA fuses them away or they cost bandwidth alone.
_FREE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("bitcast_convert", "broadcast_in_dim", "concatenate", "constant", "convert", "copy", "custom_call"),
        *("dynamic_slice", "dynamic_update_slice", "gather", "get_tuple_element", "iota"),
        *("optimization_barrier", "pad", "partition_id", "replica_id", "reshape", "return", "reverse"),
        *("slice", "transpose", "tuple"),
    )
)
#: Ops whose regions say how two elements are combined; the work is in the operands.
_COMBINING = frozenset(
    f"stablehlo.{name}" for name in ("all_reduce", "map", "reduce", "reduce_scatter", "scatter", "select_and_scatter")
)
#: How many devices a group of a collective has, where the groups are listed.
_MEMBERS = re.compile(r"tensor<\d+x(\d+)xi64>")
#: The mesh and the axes over which a group goes, as the newest JAX writes it; of an axis also the size of its part.
_GROUP_AXES = re.compile(r"replica_group_mesh_axes<mesh = @(\"?)([^\s,\"]+)\1, axes = \[(.*)\]>")
_AXIS = re.compile(r'axis_ref<name = "([^"]*)"(?:[^>]*?\bsize = (\d+)[^>]*>)?')
_KERNEL = re.compile(r"x\[([^\]]*)\]->")

#: Own work, and how often each function is called from here.
_Count = tuple[float, tuple[tuple[str, float], ...]]
#: What is counted of an op; None where that is what its regions have.
_Leaf = Callable[[Op], float | None]


def flops(body: Region, module: Module | None = None) -> float:
    """Return the floating point operations of one run of a body, about as XLA counts them.

    Loops count as often as they run where the bound is a constant (otherwise once), branches as their most
    expensive case.  Functions that are called are looked up in `module` and count nothing without it.
    """
    return _counted(body, module, _work)


def collective_bytes(body: Region, module: Module | None = None) -> float:
    """Return the bytes that a device sends in one run of a body, in the collectives that the program writes out.

    Those are the ones inside of `shard_map`.  What XLA adds for shardings is not known before it compiles the body.
    """
    meshes = {} if module is None else mesh_symbols(module)
    return _counted(body, module, _Sent(tuple((name, meshes[name].axes) for name in sorted(meshes))))


def _counted(body: Region, module: Module | None, count: _Leaf) -> float:
    own, calls = _region(body, count)
    if not calls or module is None:
        return own
    return _resolve((own, calls), {f.sym_name: f for f in module.functions}, {}, count)


def _resolve(counted: _Count, functions: dict[str, FuncOp], known: dict[str, float], count: _Leaf) -> float:
    own, calls = counted
    for name, times in calls:
        if name not in known:
            known[name] = 0.0  # a function that calls itself does not exist, but must not hang us
            function = functions.get(name)
            if function is not None and not function.is_declaration:
                known[name] = _resolve(_region(function.regions[0], count), functions, known, count)
        own += times * known[name]
    return own


def _region(region: Region, count: _Leaf) -> _Count:
    if region.frozen:
        return remembered(region, count, lambda: _sum((op for block in region.blocks for op in block), count))
    return _sum((op for block in region.blocks for op in block), count)


def _sum(ops: Iterable[Op], count: _Leaf) -> _Count:
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


def _op(op: Op, count: _Leaf) -> _Count:
    name = op.name
    if name == "stablehlo.while":
        return _times(_sum((o for r in op.regions for b in r.blocks for o in b), count), _trips(op))
    if name in ("stablehlo.case", "stablehlo.if"):
        return max((_region(r, count) for r in op.regions), key=lambda c: c[0], default=(0.0, ()))
    if name in ("func.call", "mpmd.call"):
        return 0.0, ((_callee(op), 1.0),)
    if name == "sdy.manual_computation":
        return _times(_region(op.regions[0], count), _devices(op) if count is _work else 1.0)
    own = count(op)
    if own is None:
        return _sum((o for r in op.regions for b in r.blocks for o in b), count)
    return own, ()


def _work(op: Op) -> float | None:
    """Return the operations of an op; None for those of its regions."""
    name = op.name
    if name == "stablehlo.dot_general":
        return 2.0 * _elements(op.results) * _contracted(op)
    if name == "stablehlo.convolution":
        return 2.0 * _elements(op.results) * _window(op)
    if outlined_callee(op) is not None:
        return float(outlined_work(op))
    if name == RAGGED_DOT:
        return 2.0 * _elements(op.results) * products_of_ragged_dot(op)
    if name in _FREE or name.startswith(("sdy.", "mpmd.return", "func.")):
        return 0.0
    if name in _COMBINING:
        return float(_elements(op.operands))
    if name in ("stablehlo.sort", "chlo.top_k"):
        count = _elements(op.operands)
        return count * max(1.0, math.log2(max(count, 1)))
    return None if op.regions else float(_elements(op.results))


@dataclass(frozen=True)
class _Sent:
    """Tells the bytes that a device sends in an op: all but its own part, and twice as much where sums come back.

    `meshes` are those of the module, with their axes, by name.
    """

    meshes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]

    def __call__(self, op: Op) -> float | None:
        values = {
            "stablehlo.all_gather": op.results,
            "stablehlo.all_to_all": op.results,
            "stablehlo.all_reduce": (*op.operands, *op.operands),
            "stablehlo.collective_permute": op.results,
            "stablehlo.reduce_scatter": op.operands,
        }.get(op.name)
        if values is None:
            return None if op.regions else 0.0
        tensors = [v.type for v in values if isinstance(v.type, TensorType) and v.type.is_ranked]
        size = sum(t.num_elements * bit_width(t.element) / 8 for t in tensors)
        groups = op.props.get("replica_groups")
        members = None if groups is None else self._members(groups.text)
        return size * (1 - 1 / members) if members else size

    def _members(self, groups: str) -> int | None:
        """Return how many devices a group has; None where that cannot be told."""
        listed = _MEMBERS.search(groups)
        if listed is not None:
            return int(listed[1])
        over = _GROUP_AXES.search(groups)
        axes = None if over is None else dict(self.meshes).get(over[2])
        if over is None or axes is None:
            return None
        sizes = dict(axes)
        return math.prod(int(part) if part else sizes[name] for name, part in _AXIS.findall(over[3]))


def _devices(op: Op) -> float:
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


def _contracted(op: Op) -> int:
    shape = shape_of(op.operand(0))
    return math.prod(shape[d] for d in listed(op, "dot_dimension_numbers", "lhs_contracting_dimensions"))


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


def work_by_counts(
    flops_per_second: float | None = None, bytes_per_second: float | None = None
) -> Callable[[FragmentOp, Module], Work]:
    """Return what tells the work of a fragment on devices of that speed, whose links to each other have that speed.

    Without speeds, what a device computes is counted, and nothing is sent.
    """

    def work(op: FragmentOp, module: Module) -> Work:
        topology = module.main.topology
        devices = 1 if topology is None else topology.meshes[op.mesh].size
        sent = collective_bytes(op.body, module) / bytes_per_second if bytes_per_second else 0.0
        return Work(flops(op.body, module) / devices / (flops_per_second or 1.0), sent)

    return work
