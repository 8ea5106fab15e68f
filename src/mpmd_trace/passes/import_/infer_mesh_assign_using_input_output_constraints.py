"""`mpmd-infer-mesh-assign-using-input-output-constraints`: an input and an output that share a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import cast

from mpmd_trace.ir.core import OpResult
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, make_unassign
from mpmd_trace.ir.types import MeshTensorType, TensorType
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.assignments import SameMesh
from mpmd_trace.passes.import_.building_blocks import assign_operand, on_mesh, redirect_other_uses
from mpmd_trace.passes.import_.mesh_sets import EMPTY, MeshSet, MeshSets, insert, intersect, pick, use_of_op


@dataclasses.dataclass(frozen=True)
class InferMeshAssignUsingInputOutputConstraints(Pass):
    """Assign each constrained pair of input and output to one mesh, if the analysis allows it.

    For each pair, this is the mesh on which one of them already is; otherwise one that both need; otherwise one that
    the input needs and on which the output can be; and for an input that no mesh needs, one that the output needs or
    can be on. Among several, the smallest name is taken. If there is none, `mpmd-enforce-input-output-equisharding`
    adds a transfer later.

    Before, with {constraints=0:0}:

        func.func public @main(%x: !t {mpmd.use_set = #mpmd.meshes_with_origins<"a">}) -> !t attributes
            {topology = #meshes} {
          %0 = stablehlo.negate %x : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !a {mpmd.use_set = #mpmd.meshes_with_origins<"a">}) -> !a attributes
            {topology = #meshes} {
          %0 = mpmd.unassign {origin = "io_constraint_in"} %arg0 : (!a) -> !t
          %1 = stablehlo.negate %0 : !t
          %2 = mpmd.assign {origin = "io_constraint_out"} %1 : (!t) -> !a
          return %2 : !a
        }
    """

    name = "mpmd-infer-mesh-assign-using-input-output-constraints"
    summary = "place constrained inputs and outputs on one mesh"
    constraints: tuple[SameMesh, ...] = option((), "input:output pairs of indices, comma separated")
    verbose_logging: bool = option(False, "accepted for compatibility; nothing is logged")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        changed = False
        for function in module.mpmd_functions:
            if not function.is_entry_point or function.is_declaration:
                continue
            _check(self.constraints, function, diagnostics)
            sets = MeshSets(module)
            for input, output in self.constraints:
                mesh = _choose(function, input, output, sets, diagnostics)
                if mesh is not None:
                    changed = _assign(function, input, output, mesh) or changed
            function.refresh_type()
        return changed


def _check(pairs: Iterable[SameMesh], function: FuncOp, diagnostics: Diagnostics) -> None:
    """Raise after an error unless every pair names an input and an output of the function."""
    counts = {"input": len(function.body.args), "output": len(function.returned)}
    for pair in pairs:
        for (what, count), index in zip(counts.items(), pair, strict=True):
            if not 0 <= index < count:
                raise diagnostics.fatal(
                    function,
                    f"the constraint {pair} names {what} {index}, but @{function.sym_name} "
                    f"has {count} {what}s (they are counted from 0)",
                )


def _choose(function: FuncOp, input: int, output: int, sets: MeshSets, diagnostics: Diagnostics) -> str | None:
    """Return the mesh for both, or None when the analysis finds none."""
    argument = function.body.args[input]
    value = function.returned[output]
    if isinstance(value.type, MeshTensorType):
        mesh = value.type.mesh
        if isinstance(argument.type, MeshTensorType) and argument.type.mesh != mesh:
            raise diagnostics.fatal(
                argument,
                f"input {input} of @{function.sym_name} is on mesh {argument.type.mesh} and output {output} "
                f"on {mesh}, but the constraint {input}:{output} asks for one mesh; assign both to one mesh "
                "or drop the constraint",
            )
        return mesh
    used_out = use_of_op(value.op) if isinstance(value, OpResult) else EMPTY
    possible_out = sets.src_of(value)
    if isinstance(argument.type, MeshTensorType):
        used_in = insert(EMPTY, argument.type.mesh)
    else:
        used_in = sets.use_of(argument)
    if not used_in.meshes:
        if used_out.meshes:
            return pick(used_out)
        return None if possible_out is None else pick(possible_out)
    both = cast(MeshSet, intersect(used_out, used_in))
    if both.meshes:
        return pick(both)
    return pick(cast(MeshSet, intersect(used_in, possible_out)))


def _assign(function: FuncOp, input: int, output: int, mesh: str) -> bool:
    changed = False
    terminator = function.body.terminator
    if isinstance(terminator.operand(output).type, TensorType):
        assign_operand(terminator, output, mesh, "io_constraint_out")
        changed = True
    argument = function.body.args[input]
    if isinstance(argument.type, TensorType):
        argument.type = on_mesh(argument.type, mesh)
        unassign = make_unassign(argument, "io_constraint_in")
        function.body.insert_front(unassign)
        redirect_other_uses(argument, unassign)
        changed = True
    return changed
