"""`mpmd-infer-mesh-validate-no-additional-transfers-needed`: can every value be where it is needed?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpmd_trace.ir.attributes import UNIT
from mpmd_trace.ir.core import Block, Op, Value
from mpmd_trace.ir.diagnostics import Diagnostics
from mpmd_trace.ir.ops import AssignOp, CallOp, FuncOp, Module
from mpmd_trace.passes.base import Pass, option
from mpmd_trace.passes.import_.error_limit import ErrorCounter
from mpmd_trace.passes.import_.mesh_flow import LET_MOVE, Flow, function_name, lines, mesh_list, op_line, ways_out
from mpmd_trace.passes.import_.mesh_sets import (
    MeshSets,
    is_meshless,
    is_subset,
    names,
    same_meshes,
    src_of_op,
    use_of_op,
)

_VISITED = "mpmd.visited_failure"


@dataclasses.dataclass(frozen=True)
class InferMeshValidateNoAdditionalTransfersNeeded(Pass):
    """Check that every value can be computed on every mesh on which it is needed.

    Callees come before entry points, users before producers. An op or assign that violates this is marked with
    `mpmd.visited_failure` and reported, unless one of its users was. Arguments are also checked, and consecutive calls
    of which result and argument disagree. The pass fails if there is an error, and stops after `error_limit` errors.

    Refused:

        func.func public @main(%x: !t) -> !t attributes {topology = #meshes} {
          %0 = stablehlo.negate %x
              {mpmd.src_set = #mpmd.meshes_with_origins<"a">, mpmd.use_set = #mpmd.meshes_with_origins<"b">} : !t
          return %0 : !t
        }

    Says: the result of this op is needed on mesh "b", but the op can only run on mesh "a"; a transfer to mesh "b" ...
    """

    name = "mpmd-infer-mesh-validate-no-additional-transfers-needed"
    summary = "check that every value can be where it is needed without new transfers"
    error_limit: int = option(5, "stop after this many errors; -1 reports all")

    def run(self, module: Module, diagnostics: Diagnostics) -> bool:
        check = _Check(module, ErrorCounter(self.error_limit, self.name, diagnostics))
        functions = [f for f in module.mpmd_functions if not f.is_declaration]
        callees = [f for f in functions if not f.is_entry_point]
        for function in callees + [f for f in functions if f.is_entry_point]:
            check.ops(function.body)
            check.arguments(function)
            if check.errors.count:
                diagnostics.fail()
        return check.errors.count > 0


class _Check:
    def __init__(self, module: Module, errors: ErrorCounter) -> None:
        self.sets = MeshSets(module)
        self.flow = Flow(self.sets)
        self.errors = errors

    def ops(self, block: Block) -> None:
        """Users before producers, an op before what is nested in it."""
        for op in reversed(block):
            if self.errors.full:
                return
            if isinstance(op, CallOp):
                self.call(op)
            elif is_meshless(op) or isinstance(op, AssignOp):
                self.op(op)
            for region in reversed(op.regions):
                if not region.frozen:
                    for nested in reversed(region.blocks):
                        self.ops(nested)

    def op(self, op: Op) -> None:
        possible, needed = src_of_op(op), use_of_op(op)
        if possible is None:
            return
        if not possible.meshes:
            raise self.errors.diagnostics.fatal(
                op,
                f"{op_line(op)} can be on no mesh, which an earlier check should have reported; run "
                "mpmd-infer-mesh-validate-src-set-not-empty before this pass",
            )
        if is_subset(needed, possible):
            return
        op.attrs[_VISITED] = UNIT
        if self.was_reported(op.results):
            self.errors.suppress()
        else:
            self.errors.report(op, self.op_message(op))

    def was_reported(self, values: Sequence[Value]) -> bool:
        """Return whether a user of the values carries the mark of a failure."""
        for value in values:
            for use in value.uses:
                user = use.owner
                if isinstance(user, CallOp):
                    callee = self.sets.callee(user)
                    if callee is not None and callee.arg_attr(use.index, _VISITED) is not None:
                        return True
                elif is_meshless(user) and _VISITED in user.attrs:
                    return True
        return False

    def call(self, call: CallOp) -> None:
        """In a chain of calls, what one call returns must be placed as the next one takes it."""
        callee = self.sets.callee(call)
        if callee is None:
            return
        boundary = self.sets.boundary(callee)
        for result in call.results:
            for use in result.uses:
                following = use.owner
                if not isinstance(following, CallOp) or following.callee != call.callee:
                    continue
                given, taken = boundary.result_use[result.index], boundary.arg_use[use.index]
                if not same_meshes(given, taken):
                    name = function_name(callee)
                    self.errors.report(
                        callee,
                        f"@{name} is called with its own results, but result {result.index} is needed on "
                        f"{mesh_list(names(given))} and argument {use.index}, to which it is passed, on "
                        f"{mesh_list(names(taken))}; the analysis did not settle on one placement. Assign "
                        "the argument and the result to one mesh with named tensors inside the function",
                    )

    def arguments(self, function: FuncOp) -> None:
        boundary = self.sets.boundary(function)
        limit = self.errors.limit
        for arg in function.body.args:
            if limit != -1 and self.errors.emitted >= limit:
                return
            possible = boundary.arg_src[arg.index]
            if possible is None or is_subset(boundary.arg_use[arg.index], possible):
                continue
            function.set_arg_attr(arg.index, _VISITED, UNIT)
            if self.was_reported([arg]):
                self.errors.suppress()
            else:
                self.errors.report(function, self.arg_message(function, arg.index))

    # Messages.

    def op_message(self, op: Op) -> str:
        possible, needed = src_of_op(op), use_of_op(op)
        assert possible is not None
        missing = [m for m in names(needed) if m not in possible.meshes]
        if isinstance(op, AssignOp):
            what = f"{mesh_list(missing)} asks for a value that is only available on"
        else:
            where = mesh_list(names(needed))
            what = f"the result of this op is needed on {where}, but the op can only run on"
        text = [f"{what} {mesh_list(names(possible))}; a transfer to {mesh_list(missing)} is missing"]
        text.append(f"  {op_line(op)}")
        text += lines("its operands come from", self.flow.sources(op.operands))
        values = op.operands if isinstance(op, AssignOp) else op.results
        text += lines("it is needed by", self.flow.destinations(values))
        return "\n".join(text + _ways_out(missing))

    def arg_message(self, function: FuncOp, index: int) -> str:
        boundary = self.sets.boundary(function)
        possible, needed = boundary.arg_src[index], boundary.arg_use[index]
        assert possible is not None
        missing = [m for m in names(needed) if m not in possible.meshes]
        name = function_name(function)
        text = [
            f"argument {index} of @{name} is needed on {mesh_list(names(needed))}, but what is passed is "
            f"only available on {mesh_list(names(possible))}; a transfer to {mesh_list(missing)} is missing"
        ]
        argument = function.body.args[index]
        text += lines("it comes from", self.flow.sources([argument]))
        text += lines("it is needed by", self.flow.destinations([argument]))
        return "\n".join(text + _ways_out(missing))


def _ways_out(missing: list[str]) -> list[str]:
    where = mesh_list(missing)
    return ways_out(
        f"name the value (named tensor or named computation) and assign the name to {where}; it is transferred there",
        f"move the op that needs it into a named computation that is not on {where}",
        LET_MOVE,
    )
