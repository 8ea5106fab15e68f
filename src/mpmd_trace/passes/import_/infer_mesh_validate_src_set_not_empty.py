"""`mpmd-infer-mesh-validate-src-set-not-empty`: is there a mesh for every op?"""

from __future__ import annotations

import dataclasses

from mpmd_trace.ir.core import Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import FuncOp, Module
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.greedy import walk_mutable
from mpmd_trace.passes.import_.error_limit import ErrorCounter
from mpmd_trace.passes.import_.mesh_flow import LET_MOVE, Flow, function_name, lines, mesh_list, op_line, ways_out
from mpmd_trace.passes.import_.mesh_sets import MeshSets, is_meshless, names, src_of_op, use_of_op
from mpmd_trace.passes.import_.reductions import REDUCE


@dataclasses.dataclass(frozen=True)
class InferMeshValidateSrcSetNotEmpty(Pass):
    """Check that every op and callee argument can be on some mesh, and that no reduction spans meshes.

    Only the first op of a chain of conflicts is reported. The pass fails if there is an error, and stops after
    `error_limit` errors.

    Refused:

        func.func public @main(%p: !a, %q: !b) -> !t attributes {topology = #meshes} {
          %0 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"a">} %p : (!a) -> !t
          %1 = mpmd.unassign {mpmd.src_set = #mpmd.meshes_with_origins<"b">} %q : (!b) -> !t
          %2 = stablehlo.divide %0, %1 {mpmd.src_set = #mpmd.meshes_with_origins<>} : !t
          return %2 : !t
        }

    Says: no mesh has all operands of this op, and nothing says where it should run: ...
    """

    name = "mpmd-infer-mesh-validate-src-set-not-empty"
    summary = "check that every op can be on some mesh"
    error_limit: int = option(5, "stop after this many errors; -1 reports all")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        errors = ErrorCounter(self.error_limit, self.name, diagnostics)
        flow = Flow(MeshSets(module))
        for function in module.mpmd_functions:
            if function.is_declaration:
                continue
            for op in walk_mutable(function.regions[0]):
                if errors.full:
                    break
                if is_meshless(op) and _starts_conflict(op, flow.sets):
                    errors.report(op, _op_message(op, flow))
            self._check_args(function, flow, errors)
            if errors.count:
                diagnostics.fail()
        return False

    def _check_args(self, function: FuncOp, flow: Flow, errors: ErrorCounter) -> None:
        for i, meshes in enumerate(flow.sets.boundary(function).arg_src):
            if errors.full:
                return
            if meshes is None or meshes.meshes:
                continue
            operands = [flow.sets.src_of(call.operand(i)) for call in flow.sets.used_calls(function)]
            if all(o is None or o.meshes for o in operands):
                errors.report(function, _arg_message(function, i, flow))


def _starts_conflict(op: Op, sets: MeshSets) -> bool:
    """Return whether the op has no mesh although its operands have one."""
    meshes = src_of_op(op)
    if meshes is None:
        return False
    if not meshes.meshes:
        operands = [sets.src_of(o) for o in op.operands]
        return all(o is None or o.meshes for o in operands)
    if REDUCE not in op.attrs:
        return False
    producers = [o.defining_op for o in op.operands]
    return all(p is None or REDUCE not in p.attrs for p in producers)


def _op_message(op: Op, flow: Flow) -> str:
    """Return what meets in this op, where it comes from, and the ways out."""
    reduction = REDUCE in op.attrs
    text = ["no mesh has all operands of this op, and nothing says where it should run:"]
    if reduction:
        text = ["this reduction combines values of different meshes, and nothing says that it may:"]
    text.append(f"  {op_line(op)}")
    for i, operand in enumerate(op.operands):
        text += _available(f"operand {i} is", operand, "it comes from", flow)
    needed = names(use_of_op(op))
    where = f" on {mesh_list(needed)}" if needed else ""
    text += lines(f"the result is needed{where} by", flow.destinations(op.results))
    ways = [
        "put the op into a named computation (or behind a named tensor of the operand to move) that is assigned to "
        "the mesh where it should run; its operands are then transferred there"
    ]
    if reduction:
        ways.append(
            "wrap the result in mpmd reduce: the parts are reduced on their meshes, the partial results move (for all "
            "reductions: set mpmd_infer_cross_mesh_reductions in the partitioning options)"
        )
        ways.append("let values move wherever needed: set mpmd_infer_transfers")
    else:
        ways.append(LET_MOVE)
    return "\n".join(text + ways_out(*ways))


def _available(what: str, value: Value, comes: str, flow: Flow) -> list[str]:
    """Return where the value can be, and what it comes from."""
    meshes = flow.sets.src_of(value)
    title = f"{what} available on {'any mesh' if meshes is None else mesh_list(names(meshes))}"
    return lines(f"{title}; {comes}", flow.sources([value])) or [f"  {title}"]


def _arg_message(function: FuncOp, index: int, flow: Flow) -> str:
    calls = flow.sets.used_calls(function)
    name = function_name(function)
    text = [
        f"argument {index} of @{name} can be on no mesh: its {len(calls)} calls pass values that have no mesh in common"
    ]
    for call in calls:
        text += _available(f"call of @{name}:", call.operand(index), "from", flow)
    argument = function.body.args[index]
    needed = names(flow.sets.use_of(argument))
    where = f" on {mesh_list(needed)}" if needed else ""
    text += lines(f"the argument is needed{where} by", flow.destinations([argument]))
    text += ways_out(
        "name the value before the call (named tensor) and assign the name to the mesh where the callee needs it",
        LET_MOVE,
    )
    return "\n".join(text)
