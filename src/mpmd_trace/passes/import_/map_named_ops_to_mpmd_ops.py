"""`mpmd-map-named-ops-to-mpmd-ops`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.bodies import remembers
from mpmd_trace.ir.core import Op, Region, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import ForOp, FuncOp, Module, NamedComputationOp, NamedTensorOp, make_fragment
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.common.walks import enclosing_function
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.import_.assignments import NameAssignment
from mpmd_trace.passes.import_.building_blocks import assign_before, check_mesh, on_mesh, unassign_before

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MapNamedOpsToMpmdOps(FunctionPass):
    """Turn named computations into fragments on their meshes, and named tensors into assigns to theirs.

    A computation without an assignment is an error; a tensor without one is replaced by its operand. Each distinct
    operand of a fragment gets one assign, and each result an unassign, with the name as origin; the fragment has the
    computation's name and transpose count, and the stage. Memory kinds apply only to tensors.

    Before, with {assignment=f@a/3,t@b}:

        %0 = mpmd.named_computation<"f"(1)> (%x) (%u: !t) {
          %v = stablehlo.negate %u : !t
          mpmd.return %v : !t
        } : (!t) -> !t
        %1 = mpmd.named_tensor %0 name="t" : !t
        return %1 : !t

    After:

        %0 = mpmd.assign {origin = "f"} %x : (!t) -> !a
        %1 = mpmd.fragment<mesh="a", origin=["f"(1)], stage=3> (%0) (%u: !t) {
          %5 = stablehlo.negate %u : !t
          mpmd.return %5 : !t
        } : (!a) -> !a
        %2 = mpmd.unassign {origin = "f"} %1 : (!a) -> !t
        %3 = mpmd.assign {origin = "t"} %2 : (!t) -> !b
        %4 = mpmd.unassign {origin = "t"} %3 : (!b) -> !t
        return %4 : !t
    """

    name = "mpmd-map-named-ops-to-mpmd-ops"
    summary = "turn named computations into fragments, named tensors into assignments"

    assignment: tuple[NameAssignment, ...] = option((), "meshes of names, as NAME@MESH[/STAGE],...")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        targets = dict(self.assignment)  # the last entry of a name counts
        changed = False
        for op in list(walk_mutable(function.regions[0])):
            if isinstance(op, NamedComputationOp):
                changed = _map_computation(op, targets, diagnostics) or changed
            elif isinstance(op, NamedTensorOp):
                _map_tensor(op, targets, diagnostics)
                changed = True
        return changed


def _map_computation(op: NamedComputationOp, targets: Mapping[str, Assignment], diagnostics: Diagnostics) -> bool:
    name = op.origin.name
    target = targets.get(name)
    if target is None:
        known = ", ".join(targets) or "none"
        diagnostics.refuse(
            op,
            f"named computation '{name}' is not assigned to a mesh: add '{name}@MESH' to the "
            f"name-to-mesh assignment (assigned names: {known})",
        )
        return False
    mesh = target.mesh
    if target.memory_kind is not None:
        log.warning(
            "%snamed computation '%s' is assigned to %s; a computation has no memory kind, so only the mesh %s is used",
            op.loc.prefix,
            name,
            quote(target.place),
            quote(mesh),
        )
    check_mesh(enclosing_function(op), mesh, op, f"named computation '{name}'", diagnostics)
    _check_place(op, f"named computation '{name}'", diagnostics)
    _check_body(op, diagnostics)
    assigned: dict[Value, Value] = {}
    for value in op.operands:
        if value not in assigned:
            assigned[value] = assign_before(op, value, mesh, name, loc=op.loc)
    fragment = make_fragment(
        mesh,
        [assigned[v] for v in op.operands],
        [on_mesh(r.type, mesh) for r in op.results],
        op.body,
        origin=[op.origin],
        stage=target.stage,
        loc=op.loc,
    )
    assert op.block is not None
    op.block.insert_before(op, fragment)
    op.replace_all_uses_with([unassign_before(op, result, name, loc=op.loc) for result in fragment.results])
    op.erase()
    return True


def _check_place(op: Op, what: str, diagnostics: Diagnostics) -> None:
    """Raise unless the op is where fragments and assigns may be."""
    parent = op.parent_op
    if parent is not None and not isinstance(parent, FuncOp | ForOp):
        raise diagnostics.fatal(
            op,
            f"{what} is assigned to a mesh, but it is inside of a '{parent.name}', which runs on one "
            "mesh as a whole; name the whole construct, or leave this name unassigned",
        )


def _check_body(op: NamedComputationOp, diagnostics: Diagnostics) -> None:
    """Raise for tokens and for named ops inside, which cannot live in a fragment."""
    name = op.origin.name
    if any(v.type.is_token for v in [*op.operands, *op.results]):
        raise diagnostics.fatal(
            op,
            f"named computation '{name}' takes or returns a token, which cannot be assigned to a mesh; "
            "move the effectful op out of it",
        )
    nested = _named_ops(op.body)
    if nested:
        raise diagnostics.fatal(
            op, f"named computation '{name}' still holds {nested[0]}; run mpmd-inline-nested-user-exposed-ops first"
        )


@remembers
def _named_ops(body: Region) -> list[str]:
    result = []
    for op in body.walk():
        if isinstance(op, NamedComputationOp):
            result.append(f"named computation '{op.origin.name}'")
        elif isinstance(op, NamedTensorOp):
            result.append(f"named tensor '{op.tensor_name}'")
    return result


def _map_tensor(op: NamedTensorOp, targets: Mapping[str, Assignment], diagnostics: Diagnostics) -> None:
    name = op.tensor_name
    target = targets.get(name)
    value: Value = op.operand(0)
    if target is not None:
        function = enclosing_function(op)
        _check_place(op, f"named tensor '{name}'", diagnostics)
        check_mesh(function, target.mesh, op, f"named tensor '{name}'", diagnostics)
        value = assign_before(op, value, target.mesh, name, memory_kind=target.memory_kind, loc=op.loc)
        value = unassign_before(op, value, name, loc=op.loc)
    op.replace_all_uses_with([value])
    op.erase()
