"""Gives mesh types to the arguments, operands and results of an `mpmd.for`."""

from __future__ import annotations

from mpmd_trace.ir.attributes import ArrayAttr, DictAttr
from mpmd_trace.ir.core import Op, OpResult
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, ForOp, make_assign, make_unassign
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.import_.building_blocks import assign_operand, on_mesh, put_behind
from mpmd_trace.passes.import_.mesh_flow import mesh_list, op_line
from mpmd_trace.passes.import_.mesh_sets import EMPTY, names, use_of_op, without_sets

__all__ = ["finish_loop", "place_loop_results"]


def place_loop_results(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Assign what the body yields to the mesh on which it is needed."""
    terminator = loop.body.block.terminator
    for i, value in enumerate(terminator.operands):
        if not isinstance(value.type, TensorType):
            continue
        destinations = use_of_op(value.op) if isinstance(value, OpResult) else EMPTY
        meshes = names(destinations)
        if len(meshes) != 1:
            raise diagnostics.fatal(
                loop,
                f"value {i} that the loop {op_line(loop)} carries is needed on {mesh_list(meshes)}, but a "
                "loop that is not unrolled keeps each value on one mesh; unroll the loop (unroll_factor) or "
                "compute the value in a named computation",
            )
        assign_operand(terminator, i, meshes[0])


def finish_loop(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Type the loop after its body has been rewritten."""
    _type_arguments(loop, diagnostics)
    for result, value in zip(loop.results, loop.body.block.terminator.operands, strict=True):
        result.type = value.type
    assert loop.block is not None
    for i, value in enumerate(loop.operands):
        target = loop.body.block.args[i].type
        if isinstance(value.type, TensorType) and isinstance(target, MeshTensorType):
            assign = make_assign(value, target)
            loop.block.insert_before(loop, assign)
            loop.set_operand(i, assign.result)
    behind: Op = loop
    for result in loop.results:
        if not isinstance(result.type, MeshTensorType):
            continue
        for user in result.users:
            if isinstance(user, AssignOp):
                unassign = make_unassign(result)
                behind = loop.block.insert_after(behind, unassign)
                user.set_operand(0, unassign.result)
    _drop_sets(loop)


def _type_arguments(loop: ForOp, diagnostics: Diagnostics) -> None:
    """Put every argument of the body on the mesh of its users and of the value yielded for it."""
    block = loop.body.block
    yielded = block.terminator.operands
    last: Op | None = None
    for arg in block.args:
        if not isinstance(arg.type, TensorType):
            continue
        assigns = [user for user in arg.users if isinstance(user, AssignOp)]
        meshes = list(dict.fromkeys(a.mesh_type.mesh for a in assigns))
        after = yielded[arg.index].type if arg.index < len(yielded) else None
        if isinstance(after, MeshTensorType) and after.mesh not in meshes:
            meshes.append(after.mesh)
        if len(meshes) > 1:
            raise diagnostics.fatal(
                loop,
                f"value {arg.index} that the loop {op_line(loop)} carries is needed on "
                f"{mesh_list(meshes)}, but a loop that is not unrolled keeps each value on one mesh; "
                "unroll the loop (unroll_factor)",
            )
        if not meshes:
            continue
        arg.type = on_mesh(arg.type, meshes[0])
        if not assigns:
            continue
        last = put_behind(last, make_unassign(arg), block)
        for assign in assigns:
            assign.set_operand(0, last.result)


def _drop_sets(loop: ForOp) -> None:
    attributes = loop.attrs.get("arg_attrs")
    if not isinstance(attributes, ArrayAttr):
        return
    cleaned = [without_sets(d) for d in attributes.elements if isinstance(d, DictAttr)]
    kept = [d for d in cleaned if d.entries]
    if kept:
        loop.attrs["arg_attrs"] = ArrayAttr.get(kept)
    else:
        del loop.attrs["arg_attrs"]
