"""`mpmd-split-loops`: a loop over values of several meshes is one loop for each.  See `docs/placement_algorithm.md`."""

from __future__ import annotations

from collections.abc import Iterable

from mpmd_trace.ir.bodies import effective_operands, region_dce
from mpmd_trace.ir.core import BlockArg, Op, Region, Value, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.ir.semantics import is_removable
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.fission.trip_count import counter_of_any
from mpmd_trace.passes.placement.open_conditionals import BRANCH
from mpmd_trace.passes.placement.rematerializable import byte_size, is_cheap
from mpmd_trace.passes.placement.sums import Origins, change_each
from mpmd_trace.passes.reachable import reachable

#: Values up to this size are computed by each part of a loop that needs them.
_SMALL_BYTES = 8
#: A loop that would be more ops than this is not unrolled.
_MOST_OPS = 10_000


class SplitLoops(Pass):
    """Split unnamed `stablehlo.while` loops whose values do not depend on each other into one per mesh.

    Each of the loops computes what its condition needs. Values that the loop does not change are read from outside. A
    loop whose values do depend on each other, for example through inner products of all gradients, is unrolled if its
    number of iterations is known.

    Before:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %n = stablehlo.constant dense<5> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %0:3 = stablehlo.while(%i = %n, %c = %u, %d = %v) : tensor<i32>, !t, !t
        cond {
          %1 = stablehlo.compare GT, %i, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
        } do {
          %1 = stablehlo.subtract %i, %one : tensor<i32>
          %2 = stablehlo.negate %c : !t
          %3 = stablehlo.tanh %d : !t
          stablehlo.return %1, %2, %3 : tensor<i32>, !t, !t
        }
        return %0#1, %0#2 : !t, !t

    After:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %n = stablehlo.constant dense<5> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %0:2 = stablehlo.while(%i = %n, %c = %u) : tensor<i32>, !t
        cond {
          %1 = stablehlo.compare GT, %i, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
        } do {
          %1 = stablehlo.subtract %i, %one : tensor<i32>
          %2 = stablehlo.negate %c : !t
          stablehlo.return %1, %2 : tensor<i32>, !t
        }
        %4:2 = stablehlo.while(%i = %n, %d = %v) : tensor<i32>, !t
        cond {
          %1 = stablehlo.compare GT, %i, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
        } do {
          %1 = stablehlo.subtract %i, %one : tensor<i32>
          %3 = stablehlo.tanh %d : !t
          stablehlo.return %1, %3 : tensor<i32>, !t
        }
        return %0#1, %4#1 : !t, !t
    """

    name = "mpmd-split-loops"
    summary = "split loops with independent values into one loop per mesh"
    only_with = ("stablehlo.while",)

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        return change_each(module, ("stablehlo.while",), _divide_all)


def _divide_all(function: FuncOp, origins: Origins) -> bool:
    changed = False
    for op in function.body.ops:
        if op.name == "stablehlo.while" and is_removable(op) and _divide(op, origins):
            origins.learn(function)  # what reads the loop
            changed = True
    return changed


def _divide(op: Op, origins: Origins) -> bool:
    """Split or unroll a loop that reads values of several meshes, or of unknown ones."""
    large = [v for v in effective_operands(op) if byte_size(v.type) > _SMALL_BYTES]
    meshes = {origins.of(v) for v in large}
    if len(meshes) < 2 and not (len(large) > 1 and None in meshes):
        return False
    changed = _read_from_outside(op)
    return _split(op, origins) or (len(meshes - {None}) > 1 and _unroll(op)) or changed


def _unroll(op: Op) -> bool:
    """Put the iterations of a loop in its place, if it is known how many there are, and that is not too many."""
    body, block = op.regions[1].block, op.block
    values = op.operands
    counter = counter_of_any(op)
    if counter is None or block is None or counter.trips * sum(1 for _ in body) > _MOST_OPS:
        return False
    for _ in range(counter.trips):
        mapping: dict[Value, Value] = dict(zip(body.args, values, strict=True))
        for inner in body:
            if not inner.is_terminator:
                copy = block.insert_before(op, inner.clone(mapping))
                if BRANCH in op.attrs and (copy.operands or copy.regions):
                    copy.attrs[BRANCH] = op.attrs[BRANCH]
        values = [mapping.get(v, v) for v in body.terminator.operands]
    op.replace_all_uses_with(values)
    op.erase()
    return True


def _split(op: Op, origins: Origins) -> bool:
    condition, body = op.regions
    needs = _Needs(body)
    control = needs.closure({arg.index for arg in condition.block.args if arg.has_uses})
    shared = control | _counters(needs)
    by_mesh: dict[str | None, list[int]] = {}
    for part in _components(needs, shared):
        by_mesh.setdefault(_mesh_of(op, part, needs, origins), []).extend(part)
    if len(by_mesh) < 2:
        return False
    replaced: dict[int, Value] = {}
    for number, part in enumerate(by_mesh.values()):
        kept = sorted({*control, *(needs.closure(part) if number else (*part, *shared))})
        loop = _loop_of(op, kept)
        loop.move_before(op)
        for index, result in zip(kept, loop.results, strict=True):
            replaced.setdefault(index, result)
    op.replace_all_uses_with([replaced[i] for i in range(len(op.results))])
    op.erase()
    return True


def _counters(needs: _Needs) -> set[int]:
    """Small carried values that are cheap to compute, and need nothing but each other and values from outside."""

    def is_small(value: Value) -> bool:
        return byte_size(value.type) <= _SMALL_BYTES

    def is_counted(i: int) -> bool:
        return is_small(needs.yielded[i]) and all(
            is_cheap(maker) and all(map(is_small, effective_operands(maker))) for maker in needs.makers(i)
        )

    return {i for i in range(len(needs.yielded)) if all(map(is_counted, needs.closure([i])))}


def _read_from_outside(op: Op) -> bool:
    """Let the regions read what the loop only passes on from around it."""
    condition, body = op.regions
    yielded = body.block.terminator.operands
    same = [i for i, arg in enumerate(body.block.args) if yielded[i] is arg]
    for i in same:
        for region in (condition, body):
            region.block.args[i].replace_uses_if(op.operand(i), lambda use: not use.owner.is_terminator)
        op.results[i].replace_all_uses_with(op.operand(i))
    return bool(same)


class _Needs:
    """What the values in the body of a loop are made of."""

    def __init__(self, body: Region) -> None:
        self.body = body
        self.yielded = body.returned
        #: For each op at the top of the body the arguments that it is made of.
        self.args: dict[Op, frozenset[int]] = {}
        for op in body.block:
            if not op.is_terminator:
                self.args[op] = frozenset().union(*(self.of(v) for v in effective_operands(op)))

    def of(self, value: Value) -> frozenset[int]:
        """Return the arguments that a value in the body is made of."""
        if isinstance(value, BlockArg):
            return frozenset([value.index]) if value.owner is self.body.block else frozenset()
        maker = value.defining_op
        return self.args.get(maker, frozenset()) if maker is not None else frozenset()

    def closure(self, args: Iterable[int]) -> set[int]:
        """Return the arguments that these are made of over all iterations."""
        return set(reachable(args, lambda i: self.of(self.yielded[i])))

    def makers(self, index: int) -> dict[Op, None]:
        """Return the ops that compute a carried value, in the order of a walk to what it is made of."""

        def inside(values: Iterable[Value]) -> list[Op]:
            return [op for v in values if (op := v.defining_op) is not None and op in self.args]

        return reachable(inside([self.yielded[index]]), lambda op: inside(effective_operands(op)))


def _components(needs: _Needs, shared: set[int]) -> list[list[int]]:
    """Return groups of the carried values besides `shared` that depend neither on each other nor on one costly op."""
    parent = list(range(len(needs.yielded)))
    alone = [i for i in parent if i not in shared]

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    owner: dict[Op, int] = {}
    for i in alone:
        for other in needs.of(needs.yielded[i]) - shared:
            parent[root(other)] = root(i)
        for op in needs.makers(i):
            if not is_cheap(op):
                parent[root(owner.setdefault(op, i))] = root(i)
    groups: dict[int, list[int]] = {}
    for i in alone:
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


def _mesh_of(op: Op, part: list[int], needs: _Needs, origins: Origins) -> str | None:
    """Return the mesh that most bytes come from of what a part of the loop reads."""
    values = dict.fromkeys(op.operand(i) for i in part)
    for i in part:
        for maker in needs.makers(i):
            values.update((v, None) for v in effective_operands(maker) if v.block is op.block)
    bytes_of: dict[str, int] = {}
    for value in values:
        mesh = origins.of(value)
        if mesh is not None:
            bytes_of[mesh] = bytes_of.get(mesh, 0) + byte_size(value.type)
    return max(bytes_of, key=lambda mesh: bytes_of[mesh], default=None)


def _loop_of(op: Op, kept: list[int]) -> Op:
    """Return the loop with these carried values only."""
    gone = [i for i in range(len(op.results)) if i not in kept]
    regions = [region.clone() for region in op.regions]
    regions[1].block.terminator.erase_operands(gone)
    loop = op_like(op, [op.operand(i) for i in kept], [op.results[i].type for i in kept], regions=regions)
    for region in regions:
        while region_dce(region):
            pass
        region.block.erase_args(gone)
    return loop
