"""`mpmd-regroup-sums`: each mesh sums what it has before anything is sent.  See `docs/placement_algorithm.md`."""

from __future__ import annotations

from typing import cast

from mpmd_trace.ir.bodies import region_dce
from mpmd_trace.ir.core import BlockArg, Op, Value, make_op, op_like
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import CallOp, FuncOp, Module
from mpmd_trace.ir.semantics import reduction_kind
from mpmd_trace.ir.types import TensorType
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.placement.call_graph import CallGraph
from mpmd_trace.passes.placement.sums import Leaf, Origins, by_mesh, leaves_of, summed, total
from mpmd_trace.passes.placement.zeros import can_be_zero, make_zero


class RegroupSums(Pass):
    """Compute a sum of values of several meshes as the sum of one partial sum per mesh.

    The same applies to products, maxima, minima, `and` and `or`. A sum that a call returns, and that is only added to
    something, is returned as one partial sum per mesh; a sum that grows from call to call is carried as one partial sum
    per mesh, and added up after the last call. Sums are also found behind linear ops: a widening conversion, a reshape,
    a product with a scalar. Results may differ by rounding, since the order of additions changes.

    Before:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %0 = stablehlo.negate %u : !t
        %1 = stablehlo.negate %v : !t
        %2 = stablehlo.add %u, %v : !t
        %3 = stablehlo.add %2, %0 : !t
        %4 = stablehlo.add %3, %1 : !t
        return %4 : !t

    After:

        %u = mpmd.unassign %p : (!a) -> !t
        %v = mpmd.unassign %q : (!b) -> !t
        %0 = stablehlo.negate %u : !t
        %1 = stablehlo.add %u, %0 : !t
        %2 = stablehlo.negate %v : !t
        %3 = stablehlo.add %v, %2 : !t
        %4 = stablehlo.add %1, %3 : !t
        return %4 : !t
    """

    name = "mpmd-regroup-sums"
    summary = "sum the values of each mesh before those of several meshes"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        graph = CallGraph(module)
        origins = Origins(graph)
        changed = False
        for function in graph.functions:
            mixes = origins.learn(function)
            if not function.is_entry_point:
                split = _CallResults(function, origins)
                for index in range(len(function.returned)):
                    changed = split.result(index) or changed
                split.finish()
            changed = (mixes and _regroup(function, origins)) or changed
        return changed


def _regroup(function: FuncOp, origins: Origins) -> bool:
    changed = False
    for op in reversed(function.body.ops):  # not the new ones
        if not _is_root(op, origins):
            continue
        leaves = leaves_of(op, origins)
        groups = by_mesh(leaves, origins)
        meshes = len(groups) - (None in groups)
        if meshes < 2 or len(leaves) == len(groups):
            continue
        sums = [summed(op, group) for group in groups.values()]
        op.results[0].replace_all_uses_with(total(op, sums))
        changed = True
    if changed:
        region_dce(function.regions[0])
    return changed


def _is_root(op: Op, origins: Origins) -> bool:
    kind = reduction_kind(op)
    if kind is None or op in origins.free or not op.has_uses:
        return False
    result = op.results[0]
    user = result.users[0]
    return not (result.has_one_use and user.block is op.block and reduction_kind(user) == kind)


class _CallResults:
    """Returns sums of several meshes from a callee as one sum for each mesh."""

    def __init__(self, callee: FuncOp, origins: Origins) -> None:
        self.callee = callee
        self.origins = origins
        self.calls = origins.graph.calls[callee]
        #: New results: the number of the old one that they are part of, and whether that is carried.
        self.parts: list[tuple[int, bool]] = []

    def result(self, index: int) -> bool:
        """Split a result if that saves a transfer."""
        terminator = self.callee.body.terminator
        value = terminator.operand(index)
        root = value.defining_op
        type = value.type
        if root is None or reduction_kind(root) != "add" or not value.has_one_use or not self.calls:
            return False
        if not isinstance(type, TensorType) or not can_be_zero(type):
            return False
        leaves = leaves_of(root, self.origins)
        groups = by_mesh(leaves, self.origins)
        rest = groups.pop(None, [])
        if len(groups) < 2:
            return False
        carried = next((leaf for leaf in rest if self._is_carried(leaf, index)), None)
        if carried is None and not self._only_summed(index):
            return False
        first, *others = groups
        groups[first] = [*rest, *groups[first]]
        terminator.set_operand(index, summed(root, groups[first]))
        for mesh in others:
            part = summed(root, groups[mesh])
            if carried is not None:
                arg = self.callee.body.add_arg(type, loc=carried.value.location)
                part = total(root, [arg, part])
            terminator.append_operands([part])
            self.origins.found[part] = mesh
            self.parts.append((index, carried is not None))
        self.origins.found[terminator.operand(index)] = first
        return True

    def _is_carried(self, leaf: Leaf, index: int) -> bool:
        """Return whether the term is an argument that is this result of the call before, in all calls but the first."""
        arg = leaf.value
        if not isinstance(arg, BlockArg) or leaf.path or not arg.has_one_use:
            return False
        for before, call in zip(self.calls, self.calls[1:], strict=False):
            result = before.results[index]
            if call.operand(arg.index) is not result or not result.has_one_use or before.block is not call.block:
                return False
        return True

    def _only_summed(self, index: int) -> bool:
        """Return whether what the calls return is added to something, and used for nothing else."""
        users = [user for call in self.calls for user in call.results[index].users]
        return bool(users) and all(reduction_kind(user) == "add" for user in users)

    def finish(self) -> None:
        """Make the calls fit."""
        if not self.parts:
            return
        region_dce(self.callee.regions[0])
        self.callee.refresh_type()
        previous: CallOp | None = None
        for call in self.calls:
            previous = self._extend(call, previous)

    def _extend(self, call: CallOp, previous: CallOp | None) -> CallOp:
        assert call.block is not None
        types = [r.type for r in call.results]
        of_parts = [cast(TensorType, types[index]) for index, _ in self.parts]
        extra: list[Value] = []
        for part, (_, is_carried) in enumerate(self.parts):
            if is_carried and previous is not None:
                extra.append(previous.results[len(types) + part])
            elif is_carried:
                extra += call.block.insert_before(call, make_zero(of_parts[part], call.loc)).results
        new = cast(CallOp, op_like(call, [*call.operands, *extra], [*types, *of_parts]))
        new.move_before(call)
        is_last = call is self.calls[-1]
        whole: dict[int, list[Value]] = {}
        for part, (index, is_carried) in enumerate(self.parts):
            if is_last or not is_carried:
                whole.setdefault(index, [new.results[index]]).append(new.results[len(types) + part])
        call.replace_all_uses_with(new.results[: len(types)])
        for values in whole.values():
            self._add_up(new, values)
        call.erase()
        for result, value in zip(new.results, self.callee.returned, strict=True):
            self.origins.found[result] = self.origins.of(value)
        return new

    def _add_up(self, call: CallOp, values: list[Value]) -> None:
        """Let users of the first value use the sum of all."""
        if not values[0].has_uses:
            return
        made: list[Op] = [call]
        value = values[0]
        for other in values[1:]:
            add = make_op("stablehlo.add", [value, other], [value.type], loc=call.loc)
            add.move_after(made[-1])
            made.append(add)
            value = add.results[0]
        values[0].replace_uses_if(value, lambda use: use.owner is not made[1])
