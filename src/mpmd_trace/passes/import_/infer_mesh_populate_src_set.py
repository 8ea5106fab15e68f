"""`mpmd-infer-mesh-populate-src-set`: on which meshes can each value be without another transfer?"""

from __future__ import annotations

from mpmd_trace.ir.attributes import ReductionAttr
from mpmd_trace.ir.core import Block, BlockArg, Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, ForOp, FuncOp, Module, TransferOp, UnassignOp
from mpmd_trace.ir.semantics import reduction_kind
from mpmd_trace.passes.base import Pass
from mpmd_trace.passes.common.walks import enclosing_function
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.import_.mesh_sets import (
    EMPTY,
    SRC_SET,
    MeshSet,
    MeshSets,
    insert,
    intersect,
    is_meshless,
    loop_set,
    relabeled,
    set_loop_set,
    src_of_op,
    union,
)
from mpmd_trace.passes.import_.reductions import REDUCE, concat_reduction


class InferMeshPopulateSrcSet(Pass):
    """Annotate ops with the meshes on which they can run: all, if there is no annotation (docs/rewriting.md).

    This runs after `mpmd-infer-mesh-populate-use-set`, on entry points in the order of the module, producers before
    users. An argument can be where it is needed. An unassigned value can be on its mesh, on those it is transferred to,
    and, if it is an argument, where that is needed. A meshless op or an assign can be where all of its operands can be;
    an empty set means nowhere. Calls restrict the arguments of the callee.

    A sum, maximum, minimum, product, `and` or `or` (also a reduction over a concatenation) of values without a common
    mesh, or of marked ops of its kind, is marked as a candidate for `mpmd.reduce`; it can be wherever one of its
    operands can be.

    Before:

        func.func public @main(%p: !a, %q: !b) -> !t attributes {topology = #meshes} {
          %0 = mpmd.unassign {origin = "f"} %p : (!a) -> !t
          %1 = mpmd.unassign {origin = "g"} %q : (!b) -> !t
          %2 = stablehlo.maximum %0, %1 : !t
          return %2 : !t
        }

    After:

        func.func public @main(%arg0: !a, %arg1: !b) -> !t attributes {topology = #meshes} {
          %0 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"a"["f"]>, origin = "f"} %arg0 : (!a) -> !t
          %1 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"b"["g"]>, origin = "g"} %arg1 : (!b) -> !t
          %2 = stablehlo.maximum %0, %1
              {mpmd.reduce = #mpmd.reduction<max>, mpmd.src_set = #mpmd.meshes_with_origins<"a"["f"], "b"["g"]>} : !t
          return %2 : !t
        }
    """

    name = "mpmd-infer-mesh-populate-src-set"
    summary = "find the meshes on which each value can be without another transfer"

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        analysis = _SrcSets(MeshSets(module))
        for function in module.mpmd_functions:
            if function.is_entry_point and not function.is_declaration:
                analysis.entry_point(function)
        return analysis.sets.flush() or analysis.changed


class _SrcSets:
    def __init__(self, sets: MeshSets) -> None:
        self.sets = sets
        self.changed = False
        #: The sets of a callee's arguments when the last walk over it changed nothing.
        self.settled: dict[FuncOp, list[MeshSet | None]] = {}

    def entry_point(self, function: FuncOp) -> None:
        boundary = self.sets.boundary(function)
        for arg in function.body.args:
            if boundary.arg_use[arg.index].meshes:
                meshes = relabeled(boundary.arg_use[arg.index], "inferred_in")
                boundary.store(boundary.arg_src, arg.index, meshes)
        self.forward(function.body)

    def forward(self, block: Block) -> None:
        """Visit the ops of an entry point or of a loop in it, in order, without what is nested in leaf ops."""
        for op in block:
            self.op(op)
            if isinstance(op, ForOp):
                self.forward(op.body.block)

    def store(self, op: Op, meshes: MeshSet) -> None:
        if src_of_op(op) is not meshes:
            self.changed = True
            op.attrs[SRC_SET] = meshes

    def op(self, op: Op) -> None:
        if isinstance(op, UnassignOp):
            self.store(op, self.of_unassign(op))
        elif isinstance(op, CallOp):
            self.call(op)
        elif isinstance(op, AssignOp) or is_meshless(op):
            meshes = src_of_op(op)
            for use in op.operand_uses:
                other = self.sets.src_of(use.value)
                if other is not meshes:
                    meshes = intersect(meshes, other)
            if meshes is not None:
                self.store(op, meshes)
                if not meshes.meshes or _reads_reduction(op):
                    self.tag_reduction(op)
        elif isinstance(op, ForOp):
            self.loop(op)

    def of_unassign(self, op: UnassignOp) -> MeshSet:
        value = op.operand(0)
        result = insert(EMPTY, op.mesh_type.mesh, op.label)
        for user in value.users:
            if isinstance(user, TransferOp):
                result = insert(result, user.target_type.mesh, "transfer")
        if isinstance(value, BlockArg) and enclosing_function(op).is_entry_point:
            result = union(result, relabeled(self.sets.needed(op.result), "inferred_in"))
        return result

    def loop(self, loop: ForOp) -> None:
        for i, operand in enumerate(loop.operands):
            meshes = self.sets.src_of(operand)
            if meshes is not None and loop_set(loop, i, SRC_SET) is not meshes:
                self.changed = True
                set_loop_set(loop, i, SRC_SET, meshes)

    def tag_reduction(self, op: Op) -> None:
        """Mark `op` as part of a reduction across meshes when that resolves a conflict of its operands."""
        reducer = concat_reduction(op)
        kind = reducer[1] if reducer is not None else reduction_kind(op)
        if kind is None:
            return
        everything: MeshSet | None = None
        for operand in op.operands:
            meshes = self.sets.src_of(operand)
            if meshes is not None and not meshes.meshes:
                return
            if meshes is not None:
                everything = meshes if everything is None else union(everything, meshes)
        if everything is None:
            return
        tag = ReductionAttr.get(kind)
        own = src_of_op(op)
        continues = any(o.defining_op is not None and o.defining_op.attrs.get(REDUCE) is tag for o in op.operands)
        if (own is not None and not own.meshes) or continues:
            for tagged in (op,) if reducer is None else (op, reducer[0]):
                if tagged.attrs.get(REDUCE) is not tag:
                    self.changed = True
                    tagged.attrs[REDUCE] = tag
            self.store(op, everything)

    def call(self, call: CallOp) -> None:
        callee = self.sets.callee(call)
        if callee is None:
            return
        boundary = self.sets.boundary(callee)
        for use, old in zip(call.operand_uses, list(boundary.arg_src), strict=False):
            meshes = self.sets.src_of(use.value)
            if meshes is not old:
                meshes = intersect(meshes, old)
                if meshes is not None:
                    boundary.store(boundary.arg_src, use.index, meshes)
        args = list(boundary.arg_src)
        if self.settled.get(callee) == args:
            return
        before, self.changed = self.changed, False
        for op in walk_mutable(callee.regions[0]):
            self.op(op)
        if self.changed:
            self.settled.pop(callee, None)
        else:
            self.settled[callee] = args
        self.changed = self.changed or before


def _reads_reduction(op: Op) -> bool:
    """Return whether an operand is marked as a reduction across meshes, of whatever kind."""
    for use in op.operand_uses:
        producer = use.value.defining_op
        if producer is not None and REDUCE in producer.attrs:
            return True
    return False
