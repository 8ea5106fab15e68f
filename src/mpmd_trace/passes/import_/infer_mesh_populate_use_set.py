"""`mpmd-infer-mesh-populate-use-set`: on which meshes is each value needed?"""

from __future__ import annotations

from collections.abc import Iterator

from mpmd_trace.ir.core import Block, Op, OpResult
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, ForOp, FuncOp, Module, UnassignOp
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.import_.mesh_sets import (
    EMPTY,
    USE_SET,
    MeshSet,
    MeshSets,
    insert,
    is_meshless,
    is_terminal,
    loop_set,
    set_loop_set,
    union,
    use_of_op,
)

#: A chain of calls of one callee is processed again at most this often per call.
_MOST_REPEATS = 10


class InferMeshPopulateUseSet(Pass):
    """Annotate meshless ops, arguments and callee results with the meshes that need them (docs/rewriting.md).

    Entry points are visited in the order of the module, users before producers. An assign is needed on its mesh, with
    its origin as name; meshless ops, unassigns, broadcasts, reduces and arguments are needed wherever a use of their
    results is. A value used in a region counts as used by the op with the region. At calls, the analysis continues in
    the callee, whose sets grow with every call, repeatedly if results of a call are operands of another. Broadcasts and
    reduces need nothing of their operands. Existing sets are extended.

    Before:

        func.func public @main(%x: !t) -> !b attributes {topology = #meshes} {
          %0 = stablehlo.negate %x : !t
          %1 = mpmd.assign {origin = "f"} %0 : (!t) -> !b
          return %1 : !b
        }

    After:

        func.func public @main(%arg0: !t {mpmd.use_set = #mpmd.meshes_with_origins<"b"["f"]>}) -> !b attributes
            {topology = #meshes} {
          %0 = stablehlo.negate %arg0 {mpmd.use_set = #mpmd.meshes_with_origins<"b"["f"]>} : !t
          %1 = mpmd.assign {mpmd.use_set = #mpmd.meshes_with_origins<"b"["f"]>, origin = "f"} %0 : (!t) -> !b
          return %1 : !b
        }
    """

    name = "mpmd-infer-mesh-populate-use-set"
    summary = "find the meshes on which each value is needed"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        analysis = _UseSets(MeshSets(module))
        for function in module.mpmd_functions:
            if function.is_entry_point and not function.is_declaration:
                analysis.function(function)
        return analysis.sets.flush() or analysis.changed


def _users_first(block: Block) -> Iterator[Op]:
    """Yield the ops from the last to the first, nested ones before the op around them."""
    for op in reversed(block):
        for region in reversed(op.regions) if op.regions else ():
            if not region.frozen:
                for nested in reversed(region.blocks):
                    yield from _users_first(nested)
        yield op


class _UseSets:
    def __init__(self, sets: MeshSets) -> None:
        self.sets = sets
        self.changed = False
        #: The sets of a callee's results when the last walk over it changed nothing.
        self.settled: dict[FuncOp, list[MeshSet]] = {}

    def function(self, function: FuncOp) -> bool:
        """Walk the function, itself last; says whether any set changed."""
        before, self.changed = self.changed, False
        for op in _users_first(function.body):
            self.op(op)
        boundary = self.sets.boundary(function)
        old = list(boundary.arg_use)
        for arg in function.body.args:
            meshes = union(boundary.arg_use[arg.index], self.sets.needed(arg))
            boundary.store(boundary.arg_use, arg.index, meshes)
        changed = self.changed or old != boundary.arg_use
        self.changed = self.changed or before
        return changed

    def extend(self, op: Op, needed: MeshSet) -> None:
        self.store(op, union(use_of_op(op), needed))

    def store(self, op: Op, meshes: MeshSet) -> None:
        if op.attrs.get(USE_SET, EMPTY) is not meshes:
            self.changed = True
            if meshes.meshes:
                op.attrs[USE_SET] = meshes

    def op(self, op: Op) -> None:
        if type(op) is Op and is_meshless(op):  # nearly all ops
            needed = self.sets.needed_by_results(op)
            if op.attrs.get(USE_SET) is not needed:
                self.extend(op, needed)
        elif isinstance(op, AssignOp):
            self.store(op, insert(EMPTY, op.mesh_type.mesh, op.label))
        elif isinstance(op, CallOp):
            self.call(op)
        elif isinstance(op, ForOp):
            for arg in op.body.block.args:
                old = loop_set(op, arg.index, USE_SET) or EMPTY
                meshes = union(old, self.sets.needed(arg))
                if meshes is not old:
                    self.changed = True
                    set_loop_set(op, arg.index, USE_SET, meshes)
        elif op.name == "mpmd.return":
            self.loop_return(op)
        elif is_meshless(op) or is_terminal(op) or isinstance(op, UnassignOp):
            self.extend(op, self.sets.needed_by_results(op))

    def loop_return(self, terminator: Op) -> None:
        """Let what a loop yields be needed where the loop's result is needed."""
        loop = terminator.parent_op
        if not isinstance(loop, ForOp):
            return
        for result, value in zip(loop.results, terminator.operands, strict=False):
            if not isinstance(value, OpResult):
                continue
            needed = self.sets.needed(result)
            if not isinstance(value.op, CallOp):
                self.extend(value.op, needed)
                continue
            callee = self.sets.callee(value.op)
            if callee is not None and result.index < callee.body.terminator.num_operands:
                # The reference extends the callee's result with the number of the loop's result.
                boundary = self.sets.boundary(callee)
                meshes = union(boundary.result_use[result.index], needed)
                boundary.store(boundary.result_use, result.index, meshes)

    def call(self, call: CallOp) -> None:
        callee = self.sets.callee(call)
        if callee is None:
            return
        again = self.callee(call, callee)
        chained = any(isinstance(u, CallOp) and u.callee == call.callee for u in call.users)
        repeats = 0
        while chained and again and repeats < _MOST_REPEATS:
            again = self.callee(call, callee)
            repeats += 1

    def callee(self, call: CallOp, callee: FuncOp) -> bool:
        """Bring what the uses of the call need into the callee; says whether that asks for another round."""
        boundary = self.sets.boundary(callee)
        grown = False
        for result in call.results:
            old, needed = boundary.result_use[result.index], self.sets.needed(result)
            if needed is old:
                continue
            meshes = union(old, needed)
            if len(meshes.meshes) != len(old.meshes):  # new labels alone are not stored
                boundary.store(boundary.result_use, result.index, meshes)
                grown = True
        if not grown and any(s.meshes for s in boundary.arg_use):
            return False
        results = list(boundary.result_use)
        if self.settled.get(callee) != results:
            if self.function(callee):
                self.settled.pop(callee, None)
            else:
                self.settled[callee] = results
        return True
