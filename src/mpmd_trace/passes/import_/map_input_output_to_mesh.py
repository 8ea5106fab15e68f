"""`mpmd-map-input-output-to-mesh`."""

from __future__ import annotations

import dataclasses
import logging

from mpmd_trace.diagnostics.mlir_text import quote
from mpmd_trace.ir.assignment import Assignment
from mpmd_trace.ir.attributes import DictAttr, StringAttr
from mpmd_trace.ir.core import Op
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module, make_unassign
from mpmd_trace.ir.types import MeshTensorType, Type
from mpmd_trace.passes.base import FunctionPass, option
from mpmd_trace.passes.import_.assignments import IndexAssignment
from mpmd_trace.passes.import_.building_blocks import (
    assign_operand,
    check_mesh,
    on_mesh,
    put_behind,
    redirect_other_uses,
    result_location,
)

log = logging.getLogger(__name__)

_MEMORY_KIND = "mhlo.memory_kind"


@dataclasses.dataclass(frozen=True)
class MapInputOutputToMesh(FunctionPass):
    """Turn inputs and outputs of entry points that the user assigned into mesh tensors.

    The type of an input changes, and all users read an unassign at the start of the body (origin `user_in`). For an
    output, there is an assign in front of the return (origin `user_out`). A memory kind becomes part of the type,
    instead of an attribute. Positions out of range, unknown meshes, and values that already are on meshes are errors.

    Before, with {input-assignment=0@a output-assignment=0@b}:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %x : !t
          return %0 : !t
        }

    After:

        func.func public @main(%arg0: !a) -> !b attributes {topology = #meshes} {
          %0 = mpmd.unassign {origin = "user_in"} %arg0 : (!a) -> !t
          %1 = stablehlo.negate %0 : !t
          %2 = mpmd.assign {origin = "user_out"} %1 : (!t) -> !b
          return %2 : !b
        }
    """

    name = "mpmd-map-input-output-to-mesh"
    summary = "apply the meshes that the user gave for inputs and outputs"
    mpmd_only = True
    entry_only = True

    input_assignment: tuple[IndexAssignment, ...] = option((), "meshes of inputs, as INDEX@MESH[#KIND],...")
    output_assignment: tuple[IndexAssignment, ...] = option((), "meshes of outputs, as INDEX@MESH[#KIND],...")

    def run_on_function(self, function: FuncOp, module: Module, diagnostics: Diagnostics) -> bool:
        inputs = dict(self.input_assignment)
        outputs = dict(self.output_assignment)
        _check(function, "input", inputs, function.type.inputs, diagnostics)
        _check(function, "output", outputs, function.type.results, diagnostics)
        last: Op | None = None
        for index, target in sorted(inputs.items()):
            arg = function.body.args[index]
            arg.type = on_mesh(arg.type, target.mesh, target.memory_kind)
            last = put_behind(last, make_unassign(arg, "user_in"), function.body)
            redirect_other_uses(arg, last)
        for index, target in sorted(outputs.items()):
            loc, kind = result_location(function, index), target.memory_kind
            assign_operand(function.body.terminator, index, target.mesh, "user_out", memory_kind=kind, loc=loc)
        function.refresh_type()
        _drop_memory_kind_attributes(function)
        return bool(inputs or outputs)


def _check(
    function: FuncOp, what: str, assignment: dict[int, Assignment], types: tuple[Type, ...], diagnostics: Diagnostics
) -> None:
    """Raise for indices out of range, values that have a mesh already, and unknown meshes."""
    problems = []
    for index, target in sorted(assignment.items()):
        if not 0 <= index < len(types):
            problems.append(
                f"{what} {index} of @{function.sym_name} is assigned to mesh {quote(target.place)}, "
                f"but the function has {len(types)} {what}s (they are counted from 0)"
            )
        elif isinstance(types[index], MeshTensorType):
            problems.append(
                f"{what} {index} of @{function.sym_name} is assigned to mesh {quote(target.place)}, "
                f"but it is a mesh tensor already: {types[index]}"
            )
    for problem in problems[:-1]:
        diagnostics.error(function, problem)
    if problems:
        raise diagnostics.fatal(function, problems[-1])
    for index, target in sorted(assignment.items()):
        where = function.body.args[index].location if what == "input" else result_location(function, index)
        check_mesh(function, target.mesh, where, f"{what} {index} of @{function.sym_name}", diagnostics)


def _drop_memory_kind_attributes(function: FuncOp) -> None:
    """Drop the attribute of the memory kind where the type has it."""

    def drop(what: str, dicts: list[DictAttr], types: tuple[Type, ...]) -> list[DictAttr]:
        kept = []
        for i, (entries, type_) in enumerate(zip(dicts, types, strict=True)):
            kind = entries.entries.get(_MEMORY_KIND)
            if kind is None or not isinstance(type_, MeshTensorType) or type_.memory_kind is None:
                kept.append(entries)
                continue
            if not isinstance(kind, StringAttr) or kind.value != type_.memory_kind:
                log.warning(
                    "%s%s %d of @%s is assigned to memory kind %s, which replaces its attribute %s = %s",
                    function.loc.prefix,
                    what,
                    i,
                    function.sym_name,
                    quote(type_.memory_kind),
                    _MEMORY_KIND,
                    kind,
                )
            kept.append(entries.without(_MEMORY_KIND))
        return kept

    function.set_all_arg_attrs(drop("input", function.arg_attrs, function.type.inputs))
    function.set_all_res_attrs(drop("output", function.res_attrs, function.type.results))
