"""`mpmd-inline-nested-user-exposed-ops`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.bodies import copied_ops
from mpmd_trace.ir.core import Block, Region
from mpmd_trace.ir.diagnostics import Diagnostics, PassFailed
from mpmd_trace.ir.freezing import freeze
from mpmd_trace.ir.ops import BroadcastOp, FuncOp, Module, NamedComputationOp, NamedTensorOp, ReduceOp
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.import_.assignments import NameAssignment

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class InlineNestedUserExposedOps(FunctionPass):
    """Remove named computations, named tensors, broadcasts and reduces inside named computations.

    From the inside out, a nested computation is replaced by its body, and each of the others by its first operand. The
    nested op must have the assignment of the computation around it (mesh and stage; for a tensor, the mesh), or none;
    the outer computation must be assigned. With `inherit`, a computation without an assignment has that of the
    computation around it.

    Before, with {assignment=f@a}:

        %0 = mpmd.named_computation<"f"> (%x) (%u: !t) {
          %v = mpmd.named_computation<"g"> (%u) (%w: !t) {
            %y = stablehlo.sine %w : !t
            mpmd.return %y : !t
          } : (!t) -> !t
          %z = mpmd.named_tensor %v name="t" : !t
          mpmd.return %z : !t
        } : (!t) -> !t
        return %0 : !t

    After:

        %0 = mpmd.named_computation<"f"> (%x) (%u: !t) {
          %1 = stablehlo.sine %u : !t
          mpmd.return %1 : !t
        } : (!t) -> !t
        return %0 : !t
    """

    name = "mpmd-inline-nested-user-exposed-ops"
    summary = "inline named ops into the named computation around them"
    only_with = ("nested names",)

    assignment: tuple[NameAssignment, ...] = option((), "meshes of names, as NAME@MESH[/STAGE],...")
    inherit: bool = option(False, "nested computations without an assignment may hold named ops")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        inliner = _Inliner(dict(self.assignment), self.inherit, diagnostics)
        changed = False
        try:
            for op in walk_mutable(function.regions[0]):
                if isinstance(op, NamedComputationOp):
                    body = inliner.flatten(op, op)
                    changed = changed or body is not op.body
                    op.body = body
        except PassFailed:
            return True  # the other functions are looked at, too
        return changed


class _Inliner:
    def __init__(self, targets: Mapping[str, Assignment], inherit: bool, diagnostics: Diagnostics) -> None:
        self.targets = targets
        self.inherit = inherit
        self.diagnostics = diagnostics
        #: Results for bodies in which nothing was to be reported.
        self.known: dict[tuple[Region, str], Region] = {}

    def flatten(self, computation: NamedComputationOp, parent: NamedComputationOp) -> Region:
        """Return the body of the computation without nested named ops; the same one when it has none.

        Nested ops must have the assignment of `parent`.
        """
        body = computation.body
        key = (body, parent.origin.name)
        result = self.known.get(key)
        if result is not None:
            return result
        reported = len(self.diagnostics.found)
        flat = body
        if _has_exposed(body):
            copy = body.clone()
            self._flatten_block(copy.block, parent)
            flat = freeze(copy)
        if len(self.diagnostics.found) == reported:
            self.known[key] = flat
        return flat

    def _flatten_block(self, block: Block, parent: NamedComputationOp) -> None:
        for op in block:
            if isinstance(op, NamedComputationOp):
                inherits = self.inherit and op.origin.name not in self.targets
                op.body = self.flatten(op, parent if inherits else op)
                self._check_computation(op, parent)
                copies, values = copied_ops(op.body.block, op.operands)
                block.insert_all_before(op, copies)
                op.replace_all_uses_with(values)
                op.erase()
                continue
            for region in op.regions:
                for nested in region.blocks:
                    self._flatten_block(nested, parent)
            if isinstance(op, NamedTensorOp):
                self._check_tensor(op, parent)
            if isinstance(op, NamedTensorOp | BroadcastOp | ReduceOp):
                op.replace_all_uses_with([op.operand(0)])
                op.erase()

    def _target_of(self, parent: NamedComputationOp, nested: str) -> Assignment:
        name = parent.origin.name
        target = self.targets.get(name)
        if target is None:
            known = ", ".join(self.targets) or "none"
            raise self.diagnostics.fatal(
                parent,
                f"named computation '{name}', which holds {nested}, is not assigned to a mesh: add "
                f"'{name}@MESH' to the name-to-mesh assignment (assigned names: {known})",
            )
        return target

    def _check_computation(self, op: NamedComputationOp, parent: NamedComputationOp) -> None:
        name = op.origin.name
        outer = self._target_of(parent, f"the named computation '{name}'")
        inner = self.targets.get(name)
        if inner is not None and inner != outer:
            self.diagnostics.refuse(
                op,
                f"named computation '{name}' is assigned to {_place(inner)}, but it is nested in "
                f"'{parent.origin.name}', which is assigned to {_place(outer)}: assign both to the "
                f"same mesh and stage, leave '{name}' unassigned, or move it out of '{parent.origin.name}'",
            )

    def _check_tensor(self, op: NamedTensorOp, parent: NamedComputationOp) -> None:
        name = op.tensor_name
        outer = self._target_of(parent, f"the named tensor '{name}'")
        inner = self.targets.get(name)
        if inner is None:
            return
        # The mesh around is compared as written: a parent on `m#kind` never matches.
        if inner.mesh != outer.place:
            self.diagnostics.refuse(
                op,
                f"named tensor '{name}' is assigned to mesh {quote(inner.mesh)}, but it is nested in "
                f"'{parent.origin.name}', which is assigned to mesh {quote(outer.place)}: assign both to the same "
                f"mesh, leave '{name}' unassigned, or move it out of '{parent.origin.name}'",
            )
        elif inner.memory_kind is not None:
            log.warning(
                "%snamed tensor '%s' is assigned to memory kind %s, which has no effect inside of the named "
                "computation '%s'",
                op.loc.prefix,
                name,
                quote(inner.memory_kind),
                parent.origin.name,
            )


def _place(target: Assignment) -> str:
    stage = "without a stage" if target.stage is None else f"in stage {target.stage}"
    return f"mesh {quote(target.place)} {stage}"


def _has_exposed(body: Region) -> bool:
    return any(isinstance(op, NamedComputationOp | NamedTensorOp | BroadcastOp | ReduceOp) for op in body.walk())
