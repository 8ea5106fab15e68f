"""Trees of sums (and of products, maxima ...) over values of several meshes, and how they are built again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

from mpmd_trace.ir.bodies import effective_operands
from mpmd_trace.ir.core import Op, Value, make_op, op_like
from mpmd_trace.ir.ops import CallOp, FuncOp, Module, UnassignOp
from mpmd_trace.ir.postorder import postorder
from mpmd_trace.ir.semantics import REDUCTION_OPS, is_exact_conversion, reduction_kind
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.import_.mesh_sets import is_meshless
from mpmd_trace.passes.mesh_order import in_topology_order
from mpmd_trace.passes.placement.call_graph import CallGraph
from mpmd_trace.passes.placement.rematerializable import byte_size, free_ops

_PRODUCT = "stablehlo.dot_general"
#: A term passes at most so many linear ops on its way to a sum: each of them is computed for each term behind it.
_LONGEST_PATH = 8
#: Whether to ask for the meshes of a value's terms, or whether there are several; and whether others may read it.
_Question = tuple[bool, Value, bool]


class Origins:
    """From which mesh a value comes, judged by the largest of what it is made of; None where that is no one mesh."""

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.found: dict[Value, str | None] = {}
        self.free: dict[Op, tuple[Value, ...]] = {}

    def learn(self, function: FuncOp) -> bool:
        """Learn the origins of the values of a function, whose callees have been learnt.

        Gives whether some op brings values of several meshes together.
        """
        mixes = False
        self.free.update(free_ops(function, self.graph))
        for op in function.body:
            if isinstance(op, UnassignOp):
                self.found[op.results[0]] = op.mesh_type.mesh
            elif isinstance(op, CallOp):
                callee = self.graph.callees.get(op.callee)
                if callee is not None:
                    for result, value in zip(op.results, callee.returned, strict=True):
                        self.found[result] = self.found.get(value)
            elif is_meshless(op) and op not in self.free:
                meshes = self._meshes_of(op)
                origin = meshes[0] if len(meshes) == 1 else None
                mixes = mixes or len(meshes) > 1
                for result in op.results:
                    self.found[result] = origin
        return mixes

    def of(self, value: Value) -> str | None:
        """Return the mesh of a value; for what is free, such as a widened gradient, that of all that it is made of."""
        free = self.free.get(value.defining_op) if value.defining_op is not None else None
        if not free:
            return self.found.get(value)
        meshes = {self.found.get(source) for source in free}
        return meshes.pop() if len(meshes) == 1 else None

    def _meshes_of(self, op: Op) -> list[str]:
        """Return the origins of the operands that are not much smaller than the largest one."""
        if not op.regions and op.num_operands == 2:
            one, other = op.operands
            if one.type is other.type:  # nearly all ops
                first, second = self.found.get(one), self.found.get(other)
                if first == second or second is None:
                    return [first] if first is not None else []
                return [second] if first is None else [first, second]
        operands = [(byte_size(v.type), v) for v in effective_operands(op) if v.defining_op not in self.free]
        largest = max((size for size, _ in operands), default=0)
        meshes = {self.found.get(v) for size, v in operands if 2 * size >= largest}
        return [mesh for mesh in meshes if mesh is not None]


def change_each(module: Module, kinds: Collection[str], change: Callable[[FuncOp, Origins], bool]) -> bool:
    """Change the functions of a module, callees first, each with its origins; gives whether one was changed.

    Nothing is looked at where no function has an op of these kinds at its top.
    """
    defined = (function for function in module.mpmd_functions if not function.is_declaration)
    if not any(op.name in kinds for function in defined for op in function.body):
        return False
    graph = CallGraph(module)
    origins = Origins(graph)
    changed = False
    for function in graph.functions:
        origins.learn(function)
        changed = change(function, origins) or changed
    return changed


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A term of a sum: a value, and the linear ops that it passes on its way to the sum, the first one first."""

    value: Value
    path: tuple[Op, ...] = ()


def leaves_of(root: Op, origins: Origins) -> list[Leaf]:
    """Return the terms of the tree below `root`, in order.

    The tree is as large as its inner values have one use.  Sums of several meshes are also looked for behind a
    linear op: a widening conversion, a reshape, a product with a scalar.
    """
    kind = reduction_kind(root)
    mixed = _Mixed(origins)
    result: list[Leaf] = []
    pending = [Leaf(value) for value in reversed(root.operands)]
    while pending:
        leaf = pending.pop()
        op = leaf.value.defining_op
        alone = leaf.value.has_one_use or (leaf.path and leaf.path[0].name == _PRODUCT)
        if op is not None and op.block is root.block and alone:
            same = reduction_kind(op) == kind and op.results[0].type is _scale_type(root, leaf)
            if same and op not in origins.free:
                pending += [Leaf(value, leaf.path) for value in reversed(op.operands)]
                continue
            inner = _linear_operand(op, origins) if kind == "add" and len(leaf.path) < _LONGEST_PATH else None
            if inner is not None and mixed.is_mixed(inner, shared=op.name == _PRODUCT):
                pending.append(Leaf(inner, (op, *leaf.path)))
                continue
        result.append(leaf)
    return result


def _scale_type(root: Op, leaf: Leaf) -> object:
    """Return the type that a term has where it is summed."""
    return leaf.path[0].operand(0).type if leaf.path else root.results[0].type


def _linear_operand(op: Op, origins: Origins) -> Value | None:
    """Return the operand in which the op is linear, if it is an op that may trade places with a sum."""
    if op.name in ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.negate"):
        return op.operand(0)
    if op.name == "stablehlo.convert":
        return op.operand(0) if is_exact_conversion(op) else None
    if op.name == _PRODUCT:  # with a thin matrix: the gradient of a product of two, as LoRA has
        sizes = [byte_size(value.type) for value in (*op.operands, op.results[0])]
        return op.operand(0) if 2 * max(sizes[1:]) <= sizes[0] and _is_float(op.results[0]) else None
    scales = op.name in ("stablehlo.multiply", "stablehlo.divide") and _is_float(op.results[0])
    return op.operand(0) if scales and op.operand(1).defining_op in origins.free else None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and "f" in value.type.element


class _Mixed:
    """Which values are sums, perhaps behind linear ops, of values of several meshes; each is looked at once."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._seen: set[_Question] = set()
        self._mixed: dict[tuple[Value, bool], bool] = {}
        #: Two of the meshes of the terms of a sum, or as many as there are.
        self._meshes: dict[tuple[Value, bool], frozenset[str]] = {}

    def is_mixed(self, value: Value, *, shared: bool = False) -> bool:
        """Return whether the value is such a sum.

        Args:
          value: the value.
          shared: whether others may read it, too, such as the products for the gradients of the other matrix.
        """
        for asks_for_meshes, one, alone in postorder([(False, value, shared)], self._needed, self._seen):
            if asks_for_meshes:
                self._meshes[one, alone] = self._meshes_below(one, alone)
            else:
                self._mixed[one, alone] = self._is_mixed(one, alone)
        return self._mixed[value, shared]

    def _needed(self, question: _Question) -> list[_Question]:
        asks_for_meshes, value, shared = question
        op = value.defining_op
        if op is None or not (shared or value.has_one_use):
            return []
        if reduction_kind(op) == "add" and not (asks_for_meshes and op in self._origins.free):
            return [(True, operand, shared and asks_for_meshes) for operand in op.operands]
        inner = _linear_operand(op, self._origins)
        if inner is None:
            return []
        is_product = op.name == _PRODUCT
        return [(False, inner, is_product), *([(True, inner, is_product)] if asks_for_meshes else [])]

    def _is_mixed(self, value: Value, shared: bool) -> bool:
        needed = self._needed((False, value, shared))
        meshes = [self._meshes[v, alone] for asks_for_meshes, v, alone in needed if asks_for_meshes]
        return len(frozenset[str]().union(*meshes)) > 1 or any(
            self._mixed[v, alone] for asks_for_meshes, v, alone in needed if not asks_for_meshes
        )

    def _meshes_below(self, value: Value, shared: bool) -> frozenset[str]:
        needed = self._needed((True, value, shared))
        if not needed or not all(asked or self._mixed[v, alone] for asked, v, alone in needed):
            mesh = self._origins.of(value)
            return frozenset() if mesh is None else frozenset({mesh})
        meshes = frozenset[str]().union(*(self._meshes[v, alone] for asked, v, alone in needed if asked))
        return frozenset(sorted(meshes)[:2])


def _origins_of(leaves: Iterable[Leaf], origins: Origins) -> dict[str, None]:
    origins_found = dict.fromkeys(origins.of(leaf.value) for leaf in leaves)
    return {mesh: None for mesh in origins_found if mesh is not None}


def by_mesh(leaves: Sequence[Leaf], origins: Origins) -> dict[str | None, list[Leaf]]:
    """Return the terms of each mesh, in the order of the topology; those of no mesh are last."""
    meshes = in_topology_order(_origins_of(leaves, origins), origins.graph.functions[0].topology)
    groups: dict[str | None, list[Leaf]] = {mesh: [] for mesh in meshes}
    groups[None] = []
    for leaf in leaves:
        groups[origins.of(leaf.value)].append(leaf)
    return {mesh: group for mesh, group in groups.items() if group}


def summed(root: Op, leaves: Sequence[Leaf]) -> Value:
    """Return the sum of terms of the tree below `root`: first of those with the same way, then over the ways."""
    ways: dict[tuple[Op, ...], list[Value]] = {}
    for leaf in leaves:
        ways.setdefault(leaf.path, []).append(leaf.value)
    values = []
    for path, terms in ways.items():
        value = total(root, terms)
        for op in path:
            copy = op.clone(operands=[value, *op.operands[1:]])
            _insert(copy, root)
            value = copy.results[0]
        values.append(value)
    return total(root, values)


def total(root: Op, values: Sequence[Value]) -> Value:
    """Return the values combined, from the first to the last, by ops like `root`, each as early as possible."""
    result = values[0]
    for value in values[1:]:
        op = op_like(root, [result, value], [result.type])
        _insert(op, root)
        result = op.results[0]
    return result


def reduced(op: Op, kind: str, values: Sequence[Value]) -> Value:
    """Return the values combined, from the first to the last, right in front of an op whose result is that."""
    assert op.block is not None
    result = values[0]
    for value in values[1:]:
        both = make_op(REDUCTION_OPS[kind], [result, value], [op.results[0].type], attrs=op.attrs, loc=op.loc)
        result = op.block.insert_before(op, both).results[0]
    return result


def _insert(op: Op, root: Op) -> None:
    """Put a new op right behind the last of its operands, in the block of `root`."""
    block = root.block
    assert block is not None
    last: Op | None = None
    for value in op.operands:
        maker = value.defining_op
        if maker is not None and maker.block is block and (last is None or last.is_before(maker)):
            last = maker
    if last is None:
        block.insert_front(op)
    else:
        block.insert_after(last, op)
